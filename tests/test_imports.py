"""The house has few rooms, and a room never imports one above it: read from the source, not from a list of hopes."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "fewjoule"
ROOMS = (  # from the ground up
    "errors", "files", "randomness", "tasks", "models", "energy", "codecs", "training", "methods", "simulation",
    "reporting", "studies", "federation", "cli",
)  # fmt: skip
LONGEST_MODULE = 350
MODULES = sorted(SOURCE.rglob("*.py"))


def imports(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fewjoule"):
            yield node.module if node.module != "fewjoule" else f"fewjoule.{node.names[0].name}"
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("fewjoule"))


def test_the_top_floor_is_small():
    assert len(list(SOURCE.glob("*.py"))) <= 6
    assert {p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"} <= set(ROOMS)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_no_room_imports_one_above_it(path):
    room = path.relative_to(SOURCE).with_suffix("").parts[0]
    if room in ("__init__", "__main__", "_version"):
        return
    for name in imports(path):
        target = name.split(".")[1]
        if target != "_version":
            assert ROOMS.index(target) <= ROOMS.index(room), f"{room} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_modules_stay_small(path):
    assert len(path.read_text("utf-8").splitlines()) <= LONGEST_MODULE


@pytest.mark.parametrize("room", ["tasks", "models", "energy", "codecs", "training", "simulation", "studies"])
def test_the_map_shows_what_is_there(room):
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text("utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{room}/`"))
    named = re.findall(r"`(\w+)`", row.split("|")[3])
    assert sorted(named) == sorted(p.stem for p in (SOURCE / room).glob("*.py") if p.stem != "__init__")
