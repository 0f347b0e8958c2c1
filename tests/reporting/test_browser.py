"""The page in a real Chromium: it draws, stays silent, fits, and follows the link as the library computes it."""

import json
import math
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fewjoule.energy import LINKS, Link, ShannonLink, link
from fewjoule.energy.show import PREFIXES
from fewjoule.reporting import write_report
from fewjoule.reporting.cards import NOBODY, Card, answers, contenders, note_words, quality_words, sentence, shown
from fewjoule.reporting.facts import Facts, digest, frontier
from fewjoule.reporting.radio import EU868_PAYLOAD_BYTES
from fewjoule.reporting.run_folder import RunFolder
from fewjoule.reporting.wording import joules_text
from tests.reporting.run_folders import METHODS, make_folder
from tests.reporting.test_cards import charged

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
if BROWSER is None:
    pytest.skip("no Chromium on this machine; install it with apt-get install chromium", allow_module_level=True)
sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed; pip install 'fewjoule[test]'"
)

SCREENS = {"phone": (390, 844), "laptop": (1280, 800), "desk": (1440, 900)}
TOO_WIDE = """() => [...document.querySelectorAll("body *")].filter((e) => {
  const box = e.getBoundingClientRect();
  return box.width > 0 && (box.right > innerWidth + 1 || box.left < -1) && !e.closest(".scroll, pre, .skip, svg svg");
}).map((e) => e.tagName + "." + e.className)"""
POINTS = """() => [...document.querySelectorAll("#quality .on-wide .point")].map((point) =>
  [point.dataset.method, ...point.getAttribute("transform").match(/-?[0-9.]+/g).map(Number),
   point.querySelector("title").textContent])"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """A page with what it complained about and asked for."""

    def __init__(
        self,
        browser: Any,
        path: Path,
        size: tuple[int, int],
        scheme: str = "light",
        *,
        at: str = "",
        script: bool = True,
    ) -> None:
        view = {"width": size[0], "height": size[1]}
        self.context = browser.new_context(viewport=view, color_scheme=scheme, java_script_enabled=script)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto((path / "report.html").as_uri() + at)
        if script:
            self.page.wait_for_selector("html[data-ready=yes]", timeout=60_000)

    def texts(self, part: str) -> dict[str, str]:
        """The cells of a part of the table, by method."""
        return dict(
            self.page.evaluate(
                """(part) => [...document.querySelectorAll(`#methods [data-part="${part}"]`)].map((cell) =>
                     [cell.dataset.method, cell.textContent])""",
                part,
            )
        )

    def points(self) -> dict[str, tuple[float, str]]:
        """How far right each point is drawn, and the joules its title says, by method."""
        return {name: (x, said.rsplit(" for ", 1)[1]) for name, x, _, said in self.page.evaluate(POINTS)}

    def press(self, control: str, key: str, times: int = 1) -> None:
        self.page.focus(f"#{control}")
        for _ in range(times):
            self.page.keyboard.press(key)


@pytest.mark.parametrize("run", ["regression", pytest.param("classification", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("screen", "scheme"), [("phone", "light"), ("laptop", "dark"), ("desk", "light")])
def test_the_page_draws_silently_offline_and_fits(
    browser: Any, request: pytest.FixtureRequest, run: str, screen: str, scheme: str
) -> None:
    opened = Opened(browser, request.getfixturevalue(run), SCREENS[screen], scheme)
    page = opened.page
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(TOO_WIDE) == []
    scales = page.evaluate(
        """() => [...document.querySelectorAll(".chart svg")].filter((svg) => svg.checkVisibility()).map((svg) =>
             svg.getBoundingClientRect().width / Number(svg.getAttribute("width")))"""
    )
    assert len(scales) == 4  # the diagnostics are folded away
    assert min(scales) > 0.9  # a chart that had to shrink would have unreadable letters
    shown = page.evaluate("[...document.querySelectorAll('#quality svg')].map((s) => s.getBoundingClientRect().bottom)")
    assert max(shown) <= SCREENS[screen][1]  # cards and scatter are above the fold
    colours = page.evaluate(
        "[getComputedStyle(document.documentElement).color, getComputedStyle(document.documentElement).backgroundColor]"
    )
    ink, ground = (sum(map(int, colour.strip("rgb()").split(","))) for colour in colours)
    assert (ink < ground) == (scheme == "light")
    opened.context.close()


@pytest.fixture(scope="module")
def opened(browser: Any, regression: Path) -> Iterator[Opened]:
    desk = Opened(browser, regression, SCREENS["desk"])
    yield desk
    desk.context.close()


@pytest.fixture
def desk(opened: Opened) -> Opened:
    if opened.page.is_visible("#reset"):
        opened.page.click("#reset")
    assert not opened.page.is_visible("#reset")  # there is nothing to go back from
    return opened


def value(joules: str) -> float:
    """`1.49 kJ` as a number."""
    number, unit = joules.split()
    return float(number) * 10.0 ** next(power for power, prefix in PREFIXES.items() if prefix + "J" == unit)


@cache
def read(path: Path) -> tuple[RunFolder, list[Facts]]:
    folder = RunFolder.read(path)
    return folder, digest(folder)


def check(desk: Opened, regression: Path, where: str, chosen: Link, budget: float = math.inf) -> None:
    """Every marker, label, card, sentence and cell against joules that Python charges message by message."""
    folder, facts = read(regression)
    joules = {name: charged(name, chosen) for name in METHODS}
    words = {name: joules_text(amount) for name, amount in joules.items()}
    drawn = {f.name: words[f.name] for f in facts if f.quality is not None}
    assert {name: said for name, (_, said) in desk.points().items()} == drawn
    # on a logarithmic axis the places are a line in the logarithms of the joules
    paid = {name: x for name, (x, _) in desk.points().items() if joules[name]}
    logs = {name: math.log(joules[name]) for name in paid}
    left, right = min(paid, key=lambda name: paid[name]), max(paid, key=lambda name: paid[name])
    slope = (paid[right] - paid[left]) / (logs[right] - logs[left])
    assert paid[right] - paid[left] > 300
    for name, x in paid.items():
        assert x - paid[left] == pytest.approx(slope * (logs[name] - logs[left]), abs=0.15), name
    assert desk.texts("total") == words
    methods = [m._replace(joules=joules[m.name]) for m in contenders(facts, folder.summary)]
    assert cards_of(desk) == [card_of(folder, card) for card in shown(methods, budget)]
    assert desk.page.inner_text("#answer") == sentence(where, folder.summary, methods, "meta_backward", budget)
    presets = desk.page.evaluate(
        """[...document.querySelectorAll('.radios [data-link]')].map((row) =>
             [row.dataset.link, ...[...row.querySelectorAll('td')].map((cell) => cell.textContent)])"""
    )
    assert [name for name, _, _ in presets] == list(LINKS)
    for name, label, cost in presets:
        on = [m._replace(joules=charged(m.name, LINKS[name])) for m in methods]
        best = answers(on, budget)["value"].chosen
        assert [label, cost] == ([NOBODY, ""] if best is None else [best.short, joules_text(best.joules)]), name
    within = f" for at most {joules_text(budget)}" if budget < math.inf else ""
    assert desk.page.text_content(".radios caption") == f"Best value on each preset link{within}"
    steps = [f for f in frontier((m.name, m.joules, m.error) for m in methods) if joules[f] and f != "invented"]
    assert desk.page.is_visible("[data-part=dashed]") == (len(steps) > 1)
    assert f"Joules on {where};" in desk.page.inner_text("#methods caption")
    title = desk.page.text_content("#quality .on-wide svg title")
    assert f"joules on {where}." in title.replace("Joules", "joules")
    assert all(f"for {said}" in title for said in drawn.values())
    bars = desk.page.evaluate(
        """[...document.querySelectorAll('#energy text[data-part=total]')].map((text) =>
             [text.dataset.method, text.textContent])"""
    )
    assert dict(bars) == words
    outside = desk.page.evaluate("[...document.querySelectorAll('tr.out')].map((row) => row.dataset.method)")
    assert set(outside) == {name for name, amount in joules.items() if amount > budget}
    assert desk.complaints == []


CARD = ("title", "label", "quality", "joules", "sent", "note")


def cards_of(desk: Opened) -> list[list[str]]:
    """What each card on the screen says: its keys, then its parts."""
    found: list[list[str]] = desk.page.evaluate(
        """(parts) => [...document.querySelectorAll(".card")].map((card) =>
             [card.dataset.card, ...parts.map((part) => card.querySelector(`[data-part=${part}]`).textContent)])""",
        CARD,
    )
    return found


def card_of(folder: RunFolder, card: Card) -> list[str]:
    method = card.answer.chosen
    assert method is not None
    said = (quality_words(folder.summary, method.error), joules_text(method.joules), method.sent)
    return [" ".join(card.keys), card.title, method.label, *said, note_words(folder.summary, card)]


def test_the_page_opens_with_the_run_s_own_numbers(desk: Opened, regression: Path) -> None:
    check(desk, regression, "the paper’s link", LINKS["paper"])


def test_script_and_python_draw_the_same_picture(browser: Any, desk: Opened, regression: Path) -> None:
    still = Opened(browser, regression, SCREENS["desk"], script=False)
    places = """() => [...document.querySelectorAll("#quality .on-wide .moving > *")].map((e) =>
      [e.tagName, e.textContent, ["transform", "d", "x", "x1"].map((name) => e.getAttribute(name)).find((at) => at),
       e.getAttribute("y") || e.getAttribute("y2")])"""
    ours, theirs = still.page.evaluate(places), desk.page.evaluate(places)
    assert len(ours) >= 3 * len(METHODS)
    numbers = re.compile(r"-?\d+\.?\d*")
    for one, other in zip(ours, theirs, strict=True):
        assert one[0] == other[0]
        for a, b in zip(one[2:], other[2:], strict=True):
            assert [float(n) for n in numbers.findall(a or "")] == pytest.approx(
                [float(n) for n in numbers.findall(b or "")], abs=0.11
            )
        if one[0] == "text":
            assert one[1] == other[1]
    still.context.close()


@pytest.mark.parametrize("name", LINKS)
def test_trial_1_everything_follows_a_preset(desk: Opened, regression: Path, name: str) -> None:
    desk.page.select_option("#link", name)
    title = desk.page.evaluate("document.querySelector('#link').selectedOptions[0].textContent")
    where = title.removesuffix(" – this run")
    check(desk, regression, where, LINKS[name])


def shannon(**changes: float) -> ShannonLink:
    """The paper's link with another bandwidth, power or SNR; the noise follows."""
    paper = LINKS["paper"]
    assert isinstance(paper, ShannonLink)
    width, power = changes.get("bandwidth_hz", paper.bandwidth_hz), changes.get("power_watts", paper.power_watts)
    noise = power / (changes.get("snr", paper.snr) * width)
    return ShannonLink(bandwidth_hz=width, power_watts=power, noise_watts_per_hz=noise)


MOVES: dict[str, tuple[str, str, str, str, Link]] = {  # preset, control, key, where, the same link in Python
    "snr": ("paper", "snr", "Home", "the paper’s link (SNR at the receiver -20.0 dB)", shannon(snr=0.01)),
    "power": ("paper", "power_watts", "Home", "the paper’s link (radiated power -10.0 dBm)", shannon(power_watts=1e-4)),
    "band": ("paper", "bandwidth_hz", "End", "the paper’s link (bandwidth of one agent 100 MHz)",
             shannon(bandwidth_hz=1e8)),
    "factor": ("lora-sf7", "spreading_factor", "End", "LoRa (spreading factor 12)",
               link("lora-sf7", spreading_factor=12, payload_bytes=EU868_PAYLOAD_BYTES[12])),
    "lora band": ("lora-sf7", "bandwidth_hz", "End", "LoRa (spreading factor 7, bandwidth 500 kHz)",
                  link("lora-sf7", bandwidth_hz=500e3)),
    "draw": ("lora-sf12", "transmit_watts", "End", "LoRa (spreading factor 12, draw while sending 1.00 W)",
             link("lora-sf12", transmit_watts=1.0)),
    "rate": ("nb-iot", "rate_bits_per_second", "Home", "NB-IoT (rate up 100 bit/s)",
             link("nb-iot", rate_bits_per_second=100.0)),
    "active": ("lte", "active_watts", "Home", "LTE (draw while active 0 W)", link("lte", active_watts=0.0)),
    "wake": ("wifi", "message_joules", "End", "Wi-Fi (to wake, per message 100 J)", link("wifi", message_joules=100.0)),
}  # fmt: skip


@pytest.mark.parametrize("move", MOVES)
def test_trial_1_everything_follows_each_slider(desk: Opened, regression: Path, move: str) -> None:
    preset, control, key, where, expected = MOVES[move]
    desk.page.select_option("#link", preset)
    desk.press(control, key)
    check(desk, regression, where, expected)
    spoken = desk.page.get_attribute(f"#{control}", "aria-valuetext")
    assert spoken == desk.page.text_content(f"label[for={control}] output")
    assert spoken in where


def test_trial_2_the_budget_leaves_out_what_costs_more(desk: Opened, regression: Path) -> None:
    for budget in (100.0, 1e-6):
        desk.page.fill("#budget", str(budget))
        check(desk, regression, "the paper’s link", LINKS["paper"], budget)
    desk.page.fill("#budget", "")
    check(desk, regression, "the paper’s link", LINKS["paper"])


def test_the_address_holds_the_view_and_brings_it_back(browser: Any, desk: Opened, regression: Path) -> None:
    desk.page.select_option("#link", "lora-sf7")
    desk.press("spreading_factor", "ArrowRight", 2)
    desk.page.fill("#budget", "50")
    at = desk.page.evaluate("location.hash")
    assert at == "#link=lora-sf7&spreading_factor=9&budget=50"
    again = Opened(browser, regression, SCREENS["desk"], at=at)
    same = link("lora-sf7", spreading_factor=9, payload_bytes=115)
    check(again, regression, "LoRa (spreading factor 9)", same, 50.0)
    assert again.page.input_value("#budget") == "50"
    assert again.page.input_value("#spreading_factor") == "9"
    again.page.click("#reset")
    assert again.page.evaluate("location.hash") == ""
    check(again, regression, "the paper’s link", LINKS["paper"])
    again.context.close()


@pytest.mark.parametrize(
    "at", ["#link=nobody&budget=-3", "#link=lora-sf7&spreading_factor=99", "#%E0%A4%A&snr=x", "#x"]
)
def test_a_wrong_address_is_left_alone(browser: Any, regression: Path, at: str) -> None:
    odd = Opened(browser, regression, SCREENS["desk"], at=at)
    preset = "lora-sf7" if "lora" in at else "paper"
    check(odd, regression, "LoRa SF7" if "lora" in at else "the paper’s link", LINKS[preset])
    odd.context.close()


@pytest.mark.parametrize("screen", [pytest.param("desk", marks=pytest.mark.slow), "phone"])
def test_labels_do_not_cover_each_other_on_any_link(browser: Any, regression: Path, screen: str) -> None:
    opened = Opened(browser, regression, SCREENS[screen])
    for name in LINKS:
        opened.page.select_option("#link", name)
        boxes = opened.page.evaluate(
            """() => [...document.querySelectorAll("#quality text[data-label]")]
                 .map((text) => text.getBoundingClientRect()).filter((b) => b.width)
                 .map((b) => [b.left, b.top + 2, b.right, b.bottom - 2])"""
        )
        assert len(boxes) == len([f for f in read(regression)[1] if f.quality is not None]), name
        for i, a in enumerate(boxes):
            for b in boxes[:i]:
                assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (name, a, b)
    opened.context.close()


def test_a_new_task_and_another_method_are_shown(desk: Opened) -> None:
    page = desk.page
    curve = "document.querySelector('[data-look=\"2\"] [data-curve=truth]').getAttribute('d')"
    first = page.evaluate(curve)
    desk.press("task", "End")
    assert page.inner_text("#task-value") == "3 of 3"
    assert page.evaluate(curve) != first
    page.select_option("#other", "maml")
    assert page.inner_text('[data-look="2"] [data-part=label]') == "MAML"
    # the invented models say y (1 - 0.5 / (1 + steps)): their loss is a known share of the mean square
    said = page.inner_text('[data-look="2"] [data-part=score]')
    data = json.loads(page.text_content("#data"))["unseen"]
    square = sum(y * y for y in data["truth"][2]) / len(data["truth"][2])
    number = float(said.split()[1])
    assert number == pytest.approx(square * (0.5 / 11) ** 2, rel=0.1)


def test_wrong_classes_are_outlined(browser: Any, classification: Path) -> None:
    opened = Opened(browser, classification, SCREENS["phone"])
    page = opened.page
    for task in range(3):
        looks = page.query_selector_all(".look")
        assert looks
        for look in looks:
            wrong = look.query_selector_all(".query.wrong")
            assert len(wrong) == 2  # of 12, after 10 steps ten are right
            assert all(" not " in query.inner_text() for query in wrong)
            assert len(look.query_selector_all(".query")) == 12
        assert page.evaluate("[...document.querySelectorAll('.query img')].every((i) => i.naturalWidth === 8)")
        opened.press("task", "ArrowRight")
        assert page.input_value("#task") == str(min(task + 2, 3))
    opened.context.close()


def test_without_a_script_everything_is_there(browser: Any, regression: Path) -> None:
    still = Opened(browser, regression, SCREENS["desk"], script=False)
    page = still.page
    charts = page.locator(".chart svg:visible")
    assert charts.count() == 4
    assert page.locator(".look > svg:visible").count() == 3
    assert page.locator(".controls:visible").count() == 0
    assert page.locator(".radios tbody tr").count() == len(LINKS)
    assert page.inner_text("[data-card~=value] [data-part=joules]").endswith("J")
    scores = "[...document.querySelectorAll('.look [data-part=score]')].map((score) => score.textContent)"
    scripted = Opened(browser, regression, SCREENS["desk"])
    assert page.evaluate(scores) == scripted.page.evaluate(scores)
    scripted.context.close()
    still.context.close()


def test_everything_is_reached_by_keyboard(desk: Opened) -> None:
    page = desk.page
    page.fill("#budget", "100")  # so that there is something to go back from
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    reached = []
    for _ in range(20):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    for name in ("link", "snr", "power_watts", "bandwidth_hz", "budget", "reset", "task", "other", "SUMMARY"):
        assert name in reached


def test_what_is_read_aloud_is_short_and_waits_until_the_slider_rests(desk: Opened) -> None:
    page = desk.page
    page.evaluate("window.spoken = []")
    page.evaluate(
        "new MutationObserver(() => spoken.push(document.querySelector('#said').textContent))"
        ".observe(document.querySelector('#said'), {childList: true, characterData: true, subtree: true})"
    )
    page.wait_for_timeout(1000)  # what the fixture's reset had to say
    page.evaluate("spoken.length = 0")
    desk.press("snr", "ArrowLeft", 20)
    page.wait_for_function("spoken.length > 0", timeout=20_000)
    page.wait_for_timeout(300)
    (said,) = page.evaluate("spoken")
    assert said.startswith("Best value: ")
    assert len(said) < 80


@pytest.mark.parametrize("run", ["regression", pytest.param("classification", marks=pytest.mark.slow)])
def test_it_prints_light_on_at_most_four_pages(
    browser: Any, request: pytest.FixtureRequest, run: str, tmp_path: Path
) -> None:
    opened = Opened(browser, request.getfixturevalue(run), SCREENS["desk"], "dark")
    opened.page.pdf(path=tmp_path / "page.pdf", format="A4")
    pages = len(re.findall(rb"/Type\s*/Page\b", (tmp_path / "page.pdf").read_bytes()))
    assert 1 <= pages <= 4
    opened.page.emulate_media(media="print", color_scheme="dark")
    ground = opened.page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ground').trim()")
    assert ground == "#ffffff"
    opened.context.close()


def test_an_older_folder_has_a_page_that_says_why_it_has_no_menu(browser: Any, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", tasks=5, predictions=False)
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    for method in summary["methods"].values():
        del method["messages"]
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    write_report(folder)
    old = Opened(browser, folder, SCREENS["phone"])
    assert old.page.query_selector_all("input, #reset, #unseen") == []
    assert "made by an older version" in old.page.inner_text("#radio")
    assert old.page.locator(".chart svg:visible").count() == 4
    assert old.complaints == []
    old.context.close()
