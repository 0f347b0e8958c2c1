"""docs/energy.md: its snippets run, and its tables name every preset with the numbers of the code."""

import re
from pathlib import Path

import pytest

from fewjoule.energy import DEVICES, LINKS, device, link

PAGE = Path(__file__).parents[2] / "docs" / "energy.md"


@pytest.fixture(scope="module")
def page():
    return PAGE.read_text(encoding="utf-8")


def test_the_snippets_run(page, capsys):
    snippets = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(snippets) == 2
    for snippet in snippets:
        exec(snippet, {})
    assert "1485.29" in capsys.readouterr().out


@pytest.mark.parametrize("name", DEVICES)
def test_the_table_of_devices_is_the_code(page, name):
    row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    preset = device(name)
    assert float(cells[1].split(",")[0]) == preset.watts
    assert float(cells[2]) == pytest.approx(preset.flops_per_second, rel=0.005)
    assert float(cells[3].split()[0]) * 1e-9 == pytest.approx(preset.joules_per_flop, rel=0.03)


@pytest.mark.parametrize("name", LINKS)
def test_the_table_of_links_names_every_preset(page, name):
    row = next(line for line in page.splitlines() if line.startswith("|") and f"`{name}`" in line)
    assert len(row.split("|")[3].strip()) > 20, "the source"


def test_the_papers_costs_on_the_page_are_the_links(page):
    paper = link("paper")
    for d in (1761, 6442):
        upload = paper.energy_joules(32 * d)
        for joules in (f"{upload:.3f} J", f"{150 * upload:.1f} J", f"{3 * upload:.1f} J"):
            assert joules in page
        assert f"{paper.seconds(32 * d):.3f} s" in page
