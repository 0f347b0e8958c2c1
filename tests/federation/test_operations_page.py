"""The page for operators, and the README of every kit, say what the package does."""

import re
import shlex
from pathlib import Path

import pytest

from fewjoule.cli import load
from fewjoule.energy.presets import DEVICES
from fewjoule.federation.carrier.metrics import render

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text("utf-8")
TEMPLATES = ROOT / "src" / "fewjoule" / "federation" / "templates"


def commands(text: str) -> list[str]:
    lines = re.findall(r"^ {4}fewjoule federation (.+?)(?: +#.*)?$", text, re.M)
    return lines + re.findall(r"`fewjoule federation ([a-z][^`]*)`", text)


@pytest.mark.parametrize("page", ["docs/operations.md", *(f"src/fewjoule/federation/templates/kit-{r}.md" for r in
                                                          ("server", "agent", "operator"))])  # fmt: skip
def test_every_command_is_one(page: str) -> None:
    known = load("federation").commands
    found = commands((ROOT / page).read_text("utf-8"))
    assert found
    for line in found:
        name, *words = shlex.split(line)
        known[name].make_context(name, words)  # raises on an option or argument that is not there


def test_every_file_and_page_is_there() -> None:
    named = re.findall(r"`(deploy/[^`]*?)`", PAGE) + re.findall(r"(deploy/\S+\.service)", PAGE)
    assert len(named) > 5
    assert all((ROOT / name).exists() for name in named)
    for target in re.findall(r"\]\(([a-z-]+\.md)", PAGE):
        assert (ROOT / "docs" / target).is_file(), target
    assert re.search(r"--device ([a-z0-9-]+)", PAGE)[1] in DEVICES  # type: ignore[index]


def test_every_test_that_the_page_on_attacks_names_is_there() -> None:
    page = (ROOT / "docs" / "attacks.md").read_text("utf-8")
    texts = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    there = {name for text in texts for name in re.findall(r"def (test_\w+)", text)}
    named = set(re.findall(r"\b(test_[a-z0-9_]+)(\.py)?", page))
    names = {name for name, is_file in named if not is_file}
    assert len(names) > 30
    for name in names:
        assert any(each.startswith(name) for each in there), name


def test_every_metric_is_one() -> None:
    status = {
        "jobs": [], "agents": {"north": None}, "refused": 0, "last_exchange": 0.0, "certificates": {"north": 5.0},
    }  # fmt: skip
    served = set(re.findall(r"^(fewjoule_\w+)", render(status), re.M))
    named = set(re.findall(r"`(fewjoule_\w+)", PAGE))
    assert len(named) >= 4
    assert named <= served
    assert 'fewjoule_certificate_ends_timestamp_seconds{name="north"} 5.0' in render(status)
