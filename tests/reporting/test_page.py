"""The page as text: self-contained, safe, and every number with its kind. What it does is in test_browser.py."""

import base64
import itertools
import json
import math
import re
import struct
import zlib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewjoule.reporting import write_report
from fewjoule.reporting.facts import digest, finished
from fewjoule.reporting.run_folder import RunFolder
from fewjoule.reporting.scatter import heights
from fewjoule.reporting.svg import LINE, in_column, joules_tick, log_ticks, placed, plain_ticks, room_of
from fewjoule.reporting.unseen import as_picture
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
    assert len(page.encode()) < 600_000


def test_every_column_of_joules_names_its_kinds_once(page: str) -> None:
    table = page[page.index('<table id="methods">') :]
    head = table[: table.index("</thead>")]
    columns = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', head, re.S)
    kinds = {re.split(r"[<,]", each)[0].strip(): re.findall(r'class="kind">([^<]*)<', each) for each in columns}
    assert kinds["computation"] == ["modelled"]
    assert kinds["uplink"] == ["analytic"]
    assert kinds["pretraining"] == ["modelled"]
    assert 'class="kind"' not in table[table.index("<tbody>") : table.index("</tbody>")]


def test_tables_have_captions_and_headers(page: str) -> None:
    body = page.split("<script")[0]
    tags = Elements(body).tags
    assert body.count("<table") == body.count("<caption") == 5
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in tags if tag == "th")


def test_controls_have_labels(page: str) -> None:
    tags = Elements(page).tags
    labelled = {attributes.get("for") for tag, attributes in tags if tag == "label"}
    controls = {attributes["id"] for tag, attributes in tags if tag in ("input", "select")}
    assert controls == {"link", "budget", "task", "other"}  # sliders come with the script
    assert controls <= labelled


@pytest.mark.slow
def test_names_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)> & \"'"
    methods = {"average": METHODS["average"], "bad": (evil, *METHODS["fedsgd"][1:])}
    run = make_folder(tmp_path / "run", methods=methods, tasks=5)
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    summary |= dict.fromkeys(("study", "title", "model", "data"), evil) | {"link": {"name": evil}}
    summary["methods"]["bad"]["traffic"] = {"charged_up": 1.0}
    (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    text = write_report(run).read_text(encoding="utf-8")
    assert text.count("</script") == 2
    assert not [tag for tag, _ in Elements(text).tags if tag == "img"]


def test_trial_18_a_comment_with_a_script_in_a_label_stays_text(tmp_path: Path) -> None:
    methods = {"average": ("<!--<script>", *METHODS["average"][1:]), "maml": ("bell \a", *METHODS["maml"][1:])}
    run = make_folder(tmp_path / "run", methods=methods, tasks=5)
    text = write_report(run).read_text(encoding="utf-8")
    assert "<!--" not in text[text.index('id="data">') : text.index('<script type="module">')]
    assert text.count("<script") == text.count("</script") == 2
    # vl-convert ends the whole process on a character that no SVG may hold
    assert "bell \N{REPLACEMENT CHARACTER}" in (run / "figures" / "quality.svg").read_text(encoding="utf-8")


def test_trial_10_two_seeds_have_no_interval(regression: Path, classification: Path) -> None:
    for run, seeds in ((regression, 2), (classification, 3)):
        text = (run / "report.html").read_text(encoding="utf-8")
        assert len(RunFolder.read(run).summary.seeds) == seeds
        for sign in ('class="interval"', "in brackets a 95 % interval", "Bars: 95 % intervals over seeds"):
            assert (sign in text.split("<script")[0]) == (seeds > 2), sign
        assert all((f.low is None) == (seeds == 2 or f.quality is None) for f in digest(RunFolder.read(run)))


def test_trial_10_what_costs_nothing_stands_at_its_error_like_the_others(classification: Path) -> None:
    """Upwards is better, and the distances are those of the logarithms of the errors, also in the column of 0 J."""
    folder = RunFolder.read(classification)
    facts = finished(digest(folder))
    places = {name: y for name, (y, _, _) in heights(folder.summary, facts, "wide").items()}
    errors = {f.name: math.log(1 - f.quality) for f in facts if f.quality is not None}
    best, worst = facts[0].name, facts[-1].name
    assert worst == "random"
    slope = (places[worst] - places[best]) / (errors[worst] - errors[best])
    assert slope > 0
    for name, y in places.items():
        assert y - places[best] == pytest.approx(slope * (errors[name] - errors[best]), abs=0.2)


def test_a_chart_says_in_words_what_it_shows(page: str) -> None:
    for title in re.findall(r"<svg[^>]*><title>([^<]*)</title>", page):
        assert len(title) > 20
    assert len(re.findall(r'role="img"', page)) == len(re.findall(r"<svg[^>]*><title>", page))


def test_sensor_windows_and_images_are_told_apart() -> None:
    rng = np.random.default_rng(0)
    cases = {
        (784,): "data:image/png", (28, 28): "data:image/png", (28, 28, 1): "data:image/png",
        (16, 16, 3): "data:image/png", (561,): "data:image/svg", (128, 6): "data:image/svg", (4,): "",
    }  # fmt: skip
    for shape, kind in cases.items():
        assert as_picture(rng.random(shape)).startswith(kind), shape
        assert bool(as_picture(rng.random(shape))) == bool(kind)
    assert as_picture(rng.normal(size=784)).startswith("data:image/svg")  # no grey values


def test_a_small_png_has_the_pixels_of_the_input() -> None:
    image = np.arange(64, dtype=np.float64).reshape(8, 8) / 63
    png = base64.b64decode(as_picture(image).split(",")[1])
    (length,) = struct.unpack(">I", png[33:37])
    rows = zlib.decompress(png[41 : 41 + length])
    assert [rows[9 * i] for i in range(8)] == [0] * 8
    assert [list(rows[9 * i + 1 : 9 * i + 9]) for i in range(8)] == (image * 255).round().astype(int).tolist()


@pytest.mark.parametrize("width", [350, 540])
def test_no_label_is_placed_on_another(width: int) -> None:
    rng = np.random.default_rng(0)
    points = [(float(x), float(y), "label of a method") for x, y in rng.uniform(20, 300, (25, 2))]
    boxes = []
    for place, (_, _, label) in zip(placed(points, width, 0, 400), points, strict=True):
        if place is not None:
            left = place.x - room_of(label) if place.left else place.x
            boxes.append((left, place.y - 6.5, left + room_of(label), place.y + 6.5))
    assert len(boxes) > 20
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]


@given(st.lists(st.floats(0, 300), min_size=1, max_size=30))
def test_labels_in_a_column_keep_the_order_of_their_points(points: list[float]) -> None:
    places = in_column(points, 0, 260)
    gap = min(LINE, (260 - LINE) / max(len(points) - 1, 1))
    order = sorted(range(len(points)), key=lambda i: points[i])
    for one, other in itertools.pairwise(order):
        assert places[other] - places[one] >= gap - 1e-9
    assert all(LINE / 2 - 1e-9 <= place <= 260 - LINE / 2 + 1e-9 for place in places)
    if len(points) == 1 and 7 < points[0] < 253:
        assert places == points  # nothing in its way


def test_ticks_lie_within_the_axis_and_are_round() -> None:
    assert log_ticks(0.5, 2e4) == [1, 10, 100, 1000, 1e4]
    assert log_ticks(0.9, 60) == [1, 2, 5, 10, 20, 50]
    assert log_ticks(0.15, 0.7) == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    assert plain_ticks(-4.9, 4.9) == [-4, -2, 0, 2, 4]
    assert [joules_tick(value) for value in (1e-4, 0.2, 1, 5e4)] == ["100 µJ", "200 mJ", "1 J", "50 kJ"]
