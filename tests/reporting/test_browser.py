"""The page in a real Chromium: it draws, stays silent, fits, and recomputes radio energy as the library does."""

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fewjoule.energy import LINKS
from fewjoule.energy.show import PREFIXES
from fewjoule.reporting import write_report
from fewjoule.reporting.facts import digest
from fewjoule.reporting.run_folder import RunFolder
from fewjoule.reporting.wording import joules_text
from tests.reporting.run_folders import AGENTS, METHODS, WEIGHTS, make_folder

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
if BROWSER is None:
    pytest.skip("no Chromium on this machine; install it with apt-get install chromium", allow_module_level=True)
sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed; pip install 'fewjoule[test]'"
)

SCREENS = {"phone": (390, 844), "desk": (1440, 900)}
TOO_WIDE = """() => [...document.querySelectorAll("body *")].filter((e) => {
  const box = e.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1) && !e.closest(".scroll, pre, .skip");
}).map((e) => e.tagName + "." + e.className)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """A page with what it complained about and asked for."""

    def __init__(self, browser: Any, path: Path, size: tuple[int, int], scheme: str) -> None:
        self.context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto((path / "report.html").as_uri())
        self.page.wait_for_selector("html[data-ready=yes]", timeout=60_000)

    def total(self, method: str) -> str:
        return self.page.inner_text(f'[data-method="{method}"][data-part=total]')


@pytest.mark.parametrize("run", ["regression", pytest.param("classification", marks=pytest.mark.slow)])
@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_draws_silently_offline_and_fits(
    browser: Any, request: pytest.FixtureRequest, run: str, screen: str, scheme: str
) -> None:
    folder = request.getfixturevalue(run)
    opened = Opened(browser, folder, SCREENS[screen], scheme)
    page = opened.page
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
    assert len(opened.requests) <= 2  # the page, and its empty icon
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(TOO_WIDE) == []
    drawn = page.evaluate(
        """() => [...document.querySelectorAll("[data-chart]")].map((box) => {
             const svg = box.querySelector("svg");
             return [box.dataset.chart, svg.getBoundingClientRect().width / Number(svg.getAttribute("width")),
                     svg.closest("[role=graphics-document]").getAttribute("aria-label")];
           })"""
    )
    assert len(drawn) == 8
    for name, scale, label in drawn:
        assert scale > 0.9, name  # a chart that had to shrink would have unreadable letters
        assert label, name
    ink, ground = page.evaluate(
        "[getComputedStyle(document.documentElement).color, getComputedStyle(document.documentElement).backgroundColor]"
    )
    numbers = [sum(map(int, colour.strip("rgb()").split(","))) for colour in (ink, ground)]
    assert (numbers[0] < numbers[1]) == (scheme == "light")
    opened.context.close()


@pytest.fixture(scope="module")
def desk(browser: Any, regression: Path) -> Iterator[Opened]:
    opened = Opened(browser, regression, SCREENS["desk"], "light")
    yield opened
    opened.context.close()


def marks(page: Any) -> list[list[int]]:
    """Where the points of the first chart are, in tenths of a pixel."""
    return page.evaluate(
        """() => [...document.querySelectorAll("[data-chart=quality] .mark-symbol.role-mark path")].map((path) =>
             path.getAttribute("transform").match(/-?[0-9.]+/g).map((number) => Math.round(10 * number)))"""
    )


def points(page: Any) -> dict[str, tuple[float, str]]:
    """How far right each point of the first chart is drawn, and the joules its tooltip says, by label."""
    found = page.evaluate(
        """() => [...document.querySelectorAll("[data-chart=quality] .mark-symbol.role-mark path")].map((path) =>
             [path.__data__.tooltip.method, Number(path.getAttribute("transform").match(/-?[0-9.]+/)[0]),
              path.__data__.tooltip.joules])"""
    )
    return {label: (x, joules.split(" (")[0]) for label, x, joules in found}


def value(joules: str) -> float:
    """`1.49 kJ` as a number."""
    number, unit = joules.split()
    return float(number) * 10.0 ** next(power for power, prefix in PREFIXES.items() if prefix + "J" == unit)


def expected(method: str, link: Any, bits: float, computation: float) -> str:
    _, _, rounds, first, *_ = METHODS[method]
    uploads = rounds * len(AGENTS["loss"]) + first
    return joules_text(uploads * link.energy_joules(bits * WEIGHTS["loss"]) + computation)


def test_the_table_starts_with_the_run_s_own_numbers(desk: Opened, regression: Path) -> None:
    for f in digest(RunFolder.read(regression)):
        assert desk.total(f.name) == joules_text(f.joules())


def test_a_slider_moved_by_keyboard_changes_chart_and_table_as_the_library_computes(desk: Opened) -> None:
    page, paper = desk.page, LINKS["paper"]
    before, places = {name: desk.total(name) for name in METHODS}, marks(page)
    page.focus("#power_watts")
    page.keyboard.press("Home")
    assert page.inner_text("#power_watts-value") == "1.00 mW"
    assert page.get_attribute("#power_watts", "aria-valuetext") == "1.00 mW"
    weak = replace(paper, power_watts=1e-3)
    for name in ("meta_backward", "average", "maml"):
        computation = 15 * METHODS[name][6]
        assert desk.total(name) == expected(name, weak, 32, computation), name
    assert marks(page) != places
    page.focus("#bits_per_weight")
    for _ in range(16):
        page.keyboard.press("ArrowLeft")
    assert page.inner_text("#bits_per_weight-value") == "16 bits"
    assert desk.total("average") == expected("average", weak, 16, 0)
    page.click("#reset")
    assert {name: desk.total(name) for name in METHODS} == before
    assert marks(page) == places
    assert page.inner_text("#power_watts-value") == "2.00 W"
    assert desk.complaints == []


def test_trial_1_every_point_moves_with_the_sliders(desk: Opened) -> None:
    page, shown = desk.page, [name for name, row in METHODS.items() if row[3] and row[4] > 0]  # it costs and finished
    for slider, key in (("bits_per_weight", "Home"), ("power_watts", "Home"), ("power_watts", "End")):
        page.focus(f"#{slider}")
        page.keyboard.press(key)
        drawn = points(page)
        assert {label: joules for label, (_, joules) in drawn.items()} == {
            METHODS[name][0]: desk.total(name) for name in shown
        }
        # on a logarithmic axis the places are a line in the logarithms of the table's joules
        x, logs = zip(*((x, math.log(value(joules))) for x, joules in drawn.values()), strict=True)
        slope = (max(x) - min(x)) / (max(logs) - min(logs))
        assert [place - min(x) for place in x] == pytest.approx([slope * (each - min(logs)) for each in logs], abs=1.5)
    page.click("#reset")


def texts(page: Any) -> dict[str, str]:
    """What the page says of joules in words: its first sentence, the table's caption, and the charts' spoken texts."""
    said = {"answer": page.inner_text(".answer"), "table": page.inner_text("#methods caption")}
    for chart in ("quality", "energy", "time"):
        said[chart] = page.get_attribute(f"[data-chart={chart}] [role=graphics-document]", "aria-label")
    return said


def test_trial_2_every_text_follows_the_sliders_or_names_the_run_s_link(desk: Opened) -> None:
    page, before = desk.page, texts(desk.page)
    assert all("On the run’s link “paper”" in before[name] for name in before if name != "table")
    assert "on the run’s link “paper”" in before["table"]
    page.focus("#power_watts")
    page.keyboard.press("Home")
    now = texts(page)
    assert now.pop("answer") == before["answer"]
    for text in now.values():
        assert "n another link (5.00 kHz, 1.00 mW, 1e-4 W/Hz, 32 bits per weight)" in text
    assert f"for {desk.total('maml')} (" in now["quality"]
    page.set_viewport_size({"width": 390, "height": 844})  # drawn again
    page.wait_for_selector("[data-chart=time][data-layout=narrow] svg")
    assert texts(page) == {"answer": before["answer"], **now}
    page.set_viewport_size({"width": SCREENS["desk"][0], "height": SCREENS["desk"][1]})
    page.click("#reset")
    page.wait_for_selector("[data-chart=time][data-layout=wide] svg")
    assert texts(page) == before


def test_trial_2_a_link_of_another_kind_has_no_sliders_and_says_why(browser: Any, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", tasks=5)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    summary["link"] = {"name": "lora-sf7", "source": "a data sheet"}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    write_report(folder)
    opened = Opened(browser, folder, SCREENS["phone"], "light")
    assert opened.page.query_selector_all("input, #reset") == []
    section = opened.page.inner_text("#link")
    assert "run’s link “lora-sf7” (analytic; a data sheet)" in section
    assert "There are no sliders" in section
    assert "log₂" not in section
    assert "SNR" not in section
    assert opened.complaints == []
    opened.context.close()


def test_labels_of_the_chart_do_not_cover_each_other_on_any_link(desk: Opened) -> None:
    page = desk.page
    for key in ("End", "Home"):
        page.focus("#noise_watts_per_hz")
        page.keyboard.press(key)
        boxes = page.evaluate(
            """() => [...document.querySelectorAll("[data-chart=quality] g.mark-text.role-mark")]
                 .map((group) => [...group.querySelectorAll("text")]).filter((texts) => texts.length > 1).at(-1)
                 .map((text) => text.getBoundingClientRect())
                 .map((b) => [b.left, b.top + 2, b.right, b.bottom - 2])"""
        )
        assert len(boxes) == len(METHODS) - 2  # all but the free one and the one that diverged
        for i, a in enumerate(boxes):
            for b in boxes[:i]:
                assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a, b)
    page.click("#reset")


def test_the_verdict_is_the_cheapest_method_that_is_good_enough(desk: Opened, regression: Path) -> None:
    facts = {f.name: f for f in digest(RunFolder.read(regression)) if f.quality is not None}
    for goal in facts.values():
        desk.page.select_option("#target", goal.name)
        rivals = [f for f in facts.values() if f.quality <= goal.quality]
        cheapest = min(rivals, key=lambda f: (f.joules(), f.quality))
        assert desk.page.inner_text("#verdict [data-part=winner]") == cheapest.label
    assert "172 µJ per bit sent (analytic)" in desk.page.inner_text("#verdict")
    assert "SNR 4.00 (6.02 dB), 11.6 kbit/s" in desk.page.inner_text("#verdict")


def test_everything_is_reached_by_keyboard(desk: Opened) -> None:
    page = desk.page
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    for name in ("bandwidth_hz", "power_watts", "noise_watts_per_hz", "bits_per_weight", "reset", "target"):
        assert name in reached


def test_the_printed_page_is_light_and_as_wide_as_paper(browser: Any, regression: Path, tmp_path: Path) -> None:
    opened = Opened(browser, regression, SCREENS["desk"], "dark")
    opened.page.pdf(path=tmp_path / "page.pdf", format="A4")
    assert (tmp_path / "page.pdf").stat().st_size > 10_000
    opened.page.emulate_media(media="print", color_scheme="dark")
    ground = opened.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ground').trim()")
    assert ground == "#ffffff"
    assert opened.complaints == []
    opened.context.close()
