"""The page as text: self-contained, safe, and every number with its kind. What it does is in test_browser.py."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fewjoule.energy.show import digits
from fewjoule.reporting import write_report
from fewjoule.reporting.axes import LAYOUTS, PAPER_LAYOUT, Layout
from fewjoule.reporting.charts import charts
from fewjoule.reporting.datasets import datasets
from fewjoule.reporting.facts import digest
from fewjoule.reporting.run_folder import RunFolder
from tests.reporting.run_folders import METHODS, make_folder


class Elements(HTMLParser):
    """Start tags with their attributes, and the text of table cells."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def page(regression: Path) -> str:
    return (regression / "report.html").read_text(encoding="utf-8")


def test_the_page_asks_for_nothing_but_itself(page: str) -> None:
    for tag, attributes in Elements(page).tags:
        for name in ("src", "href", "srcset", "action", "data"):
            target = attributes.get(name) or ""
            assert target.startswith(("#", "data:")) or not target, (tag, target)
    assert "@import" not in page.split("</style>")[0]
    assert "url(" not in page.split("</style>")[0]


def test_the_page_is_of_a_reasonable_size(page: str) -> None:
    assert len(page.encode()) < 1_800_000
    data = re.search(r'id="data">(.*?)</script>', page, re.S)
    assert data is not None
    assert len(data[1]) < 700_000
    assert set(json.loads(data[1])["charts"]) == {
        "quality",
        "cdf",
        "energy",
        "time",
        "steps",
        "spread",
        "radius",
        "paths",
    }


def test_every_number_of_joules_in_the_table_names_its_kind(page: str) -> None:
    table = page[page.index('<table id="methods">') : page.index("</table>")]
    cells = re.findall(r"<td[^>]*>(.*?)</td>", table, re.S)
    spent = [cell for cell in cells if re.search(r"\d\S* [pnµmkMGT]?J<", cell)]
    assert len(spent) > 3 * len(METHODS) - 6
    for cell in spent:
        assert re.search(r'class="kind">[^<]*(measured|modelled|analytic|nothing spent)', cell), cell


def test_tables_have_captions_and_headers(page: str) -> None:
    body = page.split("<script")[0]
    tags = Elements(body).tags
    assert body.count("<table") == body.count("<caption") == 3
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in tags if tag == "th")


def test_controls_have_labels(page: str) -> None:
    tags = Elements(page).tags
    labelled = {attributes.get("for") for tag, attributes in tags if tag == "label"}
    controls = {attributes["id"] for tag, attributes in tags if tag in ("input", "select")}
    assert controls == {"bandwidth_hz", "power_watts", "noise_watts_per_hz", "bits_per_weight", "target"}
    assert controls <= labelled


def test_names_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)> & \"'"
    methods = {"average": METHODS["average"], "bad": (evil, *METHODS["fedsgd"][1:])}
    run = make_folder(tmp_path / "run", methods=methods, tasks=5)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    summary |= dict.fromkeys(("study", "title", "model", "data"), evil) | {"link": {"name": evil}}
    summary["methods"]["bad"]["traffic"] = {"charged_up": 1.0}
    (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    text = write_report(run).read_text(encoding="utf-8")
    assert text.count("</script") == 3
    assert not [tag for tag, _ in Elements(text).tags if tag == "img"]


def test_trial_18_a_comment_with_a_script_in_a_label_stays_text(tmp_path: Path) -> None:
    methods = {"average": ("<!--<script>", *METHODS["average"][1:]), "maml": ("bell \a", *METHODS["maml"][1:])}
    run = make_folder(tmp_path / "run", methods=methods, tasks=5)
    text = write_report(run).read_text(encoding="utf-8")
    assert "<!--" not in text[text.index('id="data">') : text.index('<script type="module">')]
    assert text.count("<script") == text.count("</script") == 3
    # vl-convert ends the whole process on a character that no SVG may hold
    assert "bell \N{REPLACEMENT CHARACTER}" in (run / "figures" / "quality.svg").read_text(encoding="utf-8")


def test_trial_10_two_seeds_have_no_interval(regression: Path, classification: Path) -> None:
    for run, seeds in ((regression, 2), (classification, 3)):
        text = (run / "report.html").read_text(encoding="utf-8")
        assert len(RunFolder.read(run).summary.seeds) == seeds
        for sign in ('class="interval"', "in brackets a 95 % interval", "bars: 95 % over seeds"):
            assert (sign in text.split("<script")[0]) == (seeds > 2), sign
        assert all((f.low is None) == (seeds == 2 or f.quality is None) for f in digest(RunFolder.read(run)))


def test_trial_10_what_costs_nothing_shows_an_error_on_an_axis_of_errors(classification: Path) -> None:
    (random,) = (f for f in digest(RunFolder.read(classification)) if f.name == "random")
    assert random.quality != pytest.approx(random.error)
    svg = (classification / "figures" / "quality.svg").read_text(encoding="utf-8")
    assert f">random start (0 J): {digits(random.error)}<" in svg


@pytest.mark.parametrize("metric", ["regression", "classification"])
def test_descriptions_satisfy_the_schema_in_every_layout(metric: str, request: pytest.FixtureRequest) -> None:
    folder = RunFolder.read(request.getfixturevalue(metric))
    facts = digest(folder)
    for chart in charts(folder.summary, facts, datasets(folder, facts)):
        assert chart.caption
        assert chart.alt_text
        for width in LAYOUTS.values():
            chart.draw(Layout(width)).to_dict(validate=True)


def test_the_narrow_layout_is_for_phones() -> None:
    assert Layout(LAYOUTS["narrow"]).columns == 1
    assert LAYOUTS[PAPER_LAYOUT] <= 680  # a printed page
