"""The pages on own data, own models, methods and radio budgets say what the package does."""

import re
from pathlib import Path

import pytest

from fewjoule.cli import COMMANDS, load
from fewjoule.energy import LINKS, link
from fewjoule.methods import METHODS

DOCS = Path(__file__).parent.parent / "docs"
PAGES = ["scale.md", "own-data.md", "own-models.md", "choosing-a-method.md", "radio-budgets.md", "microcontrollers.md"]


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_flag_exists(page: str) -> None:
    commands = {name: load(name) for name in COMMANDS}
    flags = {name: {o for p in command.params for o in p.opts} for name, command in commands.items()}
    everywhere = set().union(*flags.values())
    for line in text_of(page).splitlines():
        said = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", line))
        assert said <= everywhere, line
        called = re.match(r" {4}fewjoule ([a-z]+) ", line)
        if called:
            assert said <= flags[called.group(1)], line


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([a-z-]+\.md)", text_of(page)):
        assert (DOCS / target).is_file(), target


def test_every_method_is_listed() -> None:
    table = text_of("choosing-a-method.md").split("## Which one")[0]
    assert set(METHODS) <= set(re.findall(r"`([a-z_]+)`", table))


def test_the_costs_of_an_upload_are_those_of_the_links() -> None:
    rows = re.findall(
        r"^\| `([a-z0-9-]+)`[^|]*\| ([\d.]+) J[^|]*\| ([\d.]+) J[^|]*\| ([\d.]+) J", text_of("radio-budgets.md"), re.M
    )
    assert {name for name, *_ in rows} == set(LINKS)
    for name, *joules in rows:
        for said, bits in zip(joules, (32 * 1761, 32 * 6442, 3 * 1761), strict=True):
            assert float(said) == pytest.approx(link(name).energy_joules(bits), rel=0.06)


def test_the_snippet_on_budgets_gives_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", text_of("radio-budgets.md"), re.S)
    exec(snippet, {})
    assert float(capsys.readouterr().out) == pytest.approx(0.316, abs=5e-4)
