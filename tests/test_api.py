"""The public API: every name has a docstring and an example that runs, all on one page."""

import inspect
import re
from pathlib import Path

import pytest

import fewjoule as fj

PAGE = (Path(__file__).parents[1] / "docs" / "api.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in BLOCKS:
        exec(compile(block, "docs/api.md", "exec"), names)
    said = capsys.readouterr().out
    assert "Ledger of" in said
    assert (tmp_path / "runs/small/report.html").is_file()
    for name in ("run", "adapted", "ledger", "folder"):
        assert names[name].plot().to_dict()["$schema"]  # type: ignore[attr-defined]
    for name in ("ledger", "folder"):
        assert "<table>" in names[name]._repr_html_()  # type: ignore[attr-defined]


def test_every_public_name_stands_on_the_page_with_an_example():
    shown = set(re.findall(r"\bfj\.(\w+)", "\n".join(BLOCKS))) | set(re.findall(r"`(\w+)`", PAGE))
    given = set(re.findall(r"# (\w+):", "\n".join(BLOCKS)))
    assert set(fj.__all__) - {"__version__"} - shown - given == set()


def test_every_public_name_has_a_docstring():
    for name in fj.__all__:
        thing = getattr(fj, name)
        if inspect.isclass(thing) or inspect.isfunction(thing) or inspect.ismodule(thing):
            assert thing.__doc__, name
            assert not thing.__doc__.startswith(f"{name}("), f"{name} has only the docstring that Python makes up"
