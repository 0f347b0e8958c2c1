"""The three answers: small cases worked out by hand, and what always holds."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewjoule.energy import LINKS, Ledger, charge_radio
from fewjoule.reporting.cards import (
    NOBODY_FINISHED,
    NOT_SENSIBLE,
    Card,
    Contender,
    answers,
    contenders,
    lines,
    note_words,
    sensible,
    sentence,
    shown,
)
from fewjoule.reporting.facts import digest, on_frontier
from fewjoule.reporting.radio import answers_on, joules_on
from fewjoule.reporting.run_folder import RunFolder, Summary
from tests.reporting.run_folders import AGENTS, METHODS, bits_of, make_folder


def method(name: str, error: float, joules: float, half: float | None = None, *, server: float = 0.0) -> Contender:
    """With an interval from error / half to error * half."""
    low, high = (None, None) if half is None else (error / half, error * half)
    is_control = name in ("random", "control")
    return Contender(name, name, name, error, low, high, joules, server, name == "random", is_control)


RANDOM = method("random", 10.0, 0.0, 1.1)


def chosen(methods: list[Contender], budget: float = math.inf) -> list[str | None]:
    return [answer.chosen and answer.chosen.name for answer in answers(methods, budget).values()]


def note(summary: Summary, methods: list[Contender], key: str) -> str:
    """The small letters of the card that holds this answer."""
    return note_words(summary, next(card for card in shown(methods) if key in card.keys))


def test_sensible_is_half_of_the_way_on_a_logarithmic_scale() -> None:
    # half of the way from 10 to 0.1 is 1
    found = sensible([RANDOM, method("best", 0.1, 9, 1.1), method("just", 1.0, 1, 1.1), method("not", 1.01, 1, 1.1)])
    assert [m.name for m in found] == ["best", "just"]


def test_what_ties_with_a_random_start_is_not_sensible() -> None:
    assert [m.name for m in sensible([RANDOM, method("best", 0.1, 9, 1.1), method("loose", 0.9, 1, 12)])] == ["best"]


def test_without_a_random_start_the_worst_stands_for_it() -> None:
    assert [m.name for m in sensible([method("worst", 10, 1), method("best", 0.1, 9), method("mid", 0.5, 1)])] == [
        "best",
        "mid",
    ]


@pytest.mark.parametrize(("error", "winner"), [(0.51, "cheap"), (0.49, "dear")])
def test_ten_times_the_joules_must_halve_the_error(error: float, winner: str) -> None:
    methods = [RANDOM, method("cheap", 1.0, 1.0), method("dear", error, 10.0)]
    assert chosen(methods) == ["cheap", winner, "dear"]


def test_what_costs_nothing_may_be_the_cheapest_but_has_no_value_per_joule() -> None:
    methods = [RANDOM, method("free", 0.5, 0.0), method("paid", 0.4, 5.0)]
    assert chosen(methods) == ["free", "paid", "paid"]


def test_a_control_wins_only_where_nothing_beats_it() -> None:
    control = method("control", 0.3, 0.0, 1.1)
    better, worse, same = method("better", 0.1, 9, 1.1), method("worse", 0.4, 1, 1.1), method("same", 0.28, 1, 1.1)
    assert chosen([RANDOM, control, better, worse]) == ["better"] * 3
    assert chosen([RANDOM, control, worse]) == ["control"] * 3
    assert chosen([RANDOM, control, better], 5.0) == ["control"] * 3  # all that the budget leaves
    assert chosen([RANDOM, control, same]) == ["same"] * 3
    assert all(answer.ties == [control] for answer in answers([RANDOM, control, same]).values())
    assert chosen([RANDOM, method("control", 9.0, 0.0, 1.1), better, worse]) == ["worse", "better", "better"]


def test_a_control_is_called_one(regression: Path) -> None:
    summary = RunFolder.read(regression).summary
    alone = note(summary, [RANDOM, method("control", 0.3, 0.0), method("worse", 0.4, 1.0)], "cheapest")
    assert alone == "a control: it learns from no agent; too few seeds for an interval"
    methods = [RANDOM, method("control", 0.3, 0.0, 1.1), method("same", 0.28, 1.0, 1.1)]
    assert note(summary, methods, "value").endswith("; a tie with control (control, 0 J)")
    facts = digest(RunFolder.read(regression))
    assert {f.name for f in facts if f.is_control} == {"random", "invented"}
    assert not {"random", "invented"} & set(on_frontier(facts))


def test_a_tie_is_called_a_tie_and_its_cheapest_is_named(regression: Path) -> None:
    summary = RunFolder.read(regression).summary
    methods = [RANDOM, method("a", 0.10, 50, 1.2), method("b", 0.11, 5, 1.2), method("c", 0.12, 9, 1.2)]
    best = answers(methods)["quality"]
    assert best.chosen == methods[1]
    assert note(summary, methods, "quality") == "95 % interval 0.0833 to 0.120; a tie with b (5.00 J) and 1 other"
    apart = [RANDOM, method("a", 0.10, 50, 1.01), method("b", 0.11, 5, 1.01)]
    assert answers(apart)["quality"].ties == []


def test_below_three_seeds_there_is_neither_interval_nor_tie(regression: Path, classification: Path) -> None:
    for path, few in ((regression, True), (classification, False)):
        folder = RunFolder.read(path)
        methods = contenders(digest(folder), folder.summary)
        said = note(folder.summary, methods, "quality")
        assert ("too few seeds for an interval" in said, "95 % interval" in said) == (few, not few)
        assert not few or all(answer.ties == [] for answer in answers(methods).values())


def test_a_card_says_what_the_server_spends(regression: Path) -> None:
    methods = [RANDOM, method("a", 0.1, 1.0, server=8.9)]
    assert note(RunFolder.read(regression).summary, methods, "value").endswith("; 8.90 J more at the server")


def test_a_budget_leaves_out_what_costs_more(regression: Path) -> None:
    summary = RunFolder.read(regression).summary
    methods = [RANDOM, method("cheap", 1.0, 1.0), method("dear", 0.1, 10.0)]
    assert chosen(methods, 5.0) == ["cheap", "cheap", "cheap"]
    assert chosen(methods, 0.5) == [None, None, "random"]
    said = sentence("a link", summary, methods, "dear", 0.5)
    assert said == "On a link, 1 of 3 methods cost at most 500 mJ. The cheapest sensible one, cheap, costs 1.00 J."
    said = sentence("a link", summary, methods, "dear", 5.0)  # what does not fit is not recommended by the way
    assert said == "On a link, 2 of 3 methods cost at most 5.00 J. cheap gives loss 1.00 for 1.00 J."
    said = sentence("a link", summary, methods, "cheap", 20.0)
    assert said.endswith("cheap gives loss 1.00 for 1.00 J, 0.1 times the energy.")


def test_a_method_has_one_card_and_a_budget_below_all_names_the_cheapest() -> None:
    cheap, middle, dear = method("cheap", 1.0, 1.0), method("middle", 0.12, 5.0), method("dear", 0.1, 100.0)
    assert [(c.title, c.keys) for c in shown([RANDOM, cheap, middle, dear])] == [
        ("Cheapest sensible", ("cheapest",)),
        ("Best value", ("value",)),
        ("Best quality", ("quality",)),
    ]
    assert [c.title for c in shown([RANDOM, cheap, middle])] == ["Cheapest sensible", "Best value and best quality"]
    (one,) = shown([RANDOM, middle])
    assert one.title == "Cheapest sensible, best value and best quality"
    (nothing,) = shown([RANDOM, cheap, middle], 0.5)
    assert (nothing.title, nothing.answer.chosen) == ("No sensible method fits 500 mJ", cheap)
    assert nothing.remark == "the cheapest sensible method"


def test_where_nothing_is_sensible_the_card_says_so() -> None:
    tied = method("tied", 9.9, 1.0, 1.1)
    (card,) = shown([RANDOM, tied])
    assert (card.title, card.answer.chosen, card.remark) == ("Best quality", tied, NOT_SENSIBLE)
    (alone,) = shown([tied])
    assert alone == Card(("cheapest", "value", "quality"), "The only method", answers([tied])["quality"])
    assert shown([]) == []


def test_a_card_says_what_is_sent_and_how_much(regression: Path) -> None:
    folder = RunFolder.read(regression)
    sent = {m.name: m.sent for m in contenders(digest(folder), folder.summary)}
    assert sent["average"] == "each agent sends its weights once: 7.04 kB"  # 1761 x 4 bytes
    assert sent["meta_backward"] == "each agent sends its weights 51 times: 359 kB in all"
    assert sent["answers"].endswith("once: 15 bytes")  # 120 bits, as the invented folder has it


NUMBERS = st.floats(1e-3, 1e3)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.none() | st.floats(1.01, 3)), max_size=8), st.floats(1e-3, 2e3))
def test_what_always_holds_of_the_answers(rows: list[tuple[float, float, float | None]], budget: float) -> None:
    methods = [method(f"m{i}", *row) for i, row in enumerate(rows)]
    found = answers(methods, budget)
    fitting = [m for m in methods if m.joules <= budget]
    assert all(a.chosen is None or a.chosen.joules <= budget for a in found.values())
    best, cheapest, value = (found[key].chosen for key in ("quality", "cheapest", "value"))
    assert (best is None) == (not fitting)
    assert best is None or best.error == min(m.error for m in fitting)
    if cheapest is not None and value is not None:
        assert cheapest.joules <= value.joules
        assert value.error <= cheapest.error  # whoever is dearer must be better
        assert not any(m.joules <= value.joules and m.error < value.error for m in sensible(fitting))


@pytest.mark.parametrize("width", [60, 80])
def test_the_terminal_has_a_line_for_each_answer(regression: Path, classification: Path, width: int) -> None:
    for path in (regression, classification):
        folder = RunFolder.read(path)
        facts = digest(folder)
        said, cards = lines(folder.summary, facts, width), shown(contenders(facts, folder.summary))
        assert len(cards) in (2, 3)
        assert [line.rstrip(":") for line in said if line.endswith(":")] == [c.title for c in cards if len(cards) < 3]
        assert all(len(line) <= width for line in said)
        answers_said = [line for line in said if not line.endswith(":")]
        assert all(line.split()[-1].endswith("J") or line.endswith(")") for line in answers_said)


def test_one_method_for_all_is_said_once(tmp_path: Path) -> None:
    methods = {"maml": METHODS["maml"], "random": METHODS["random"]}
    folder = RunFolder.read(make_folder(tmp_path / "run", methods=methods, tasks=5))
    title, answer = lines(folder.summary, digest(folder))
    assert title == "Cheapest sensible, best value and best quality:"
    assert answer.startswith("  MAML, loss ")


def test_a_long_label_is_cut_for_the_terminal(tmp_path: Path) -> None:
    methods = {"maml": ("a method " * 12, *METHODS["maml"][1:]), "random": METHODS["random"]}
    folder = RunFolder.read(make_folder(tmp_path / "run", methods=methods, tasks=5))
    _, line = lines(folder.summary, digest(folder))
    assert len(line) == 80
    assert "…, loss" in line


def test_nobody_finished(regression: Path) -> None:
    assert chosen([]) == [None, None, None]
    assert lines(RunFolder.read(regression).summary, []) == [NOBODY_FINISHED]


@pytest.mark.parametrize("name", LINKS)
def test_another_link_costs_what_the_ledger_would_charge_there(regression: Path, name: str) -> None:
    """The page's presets against the ledger's own charging, message by message."""
    folder = RunFolder.read(regression)
    facts = digest(folder)
    expected = {f.name: charged(f.name, LINKS[name]) for f in facts}
    for f in facts:
        assert joules_on(f, LINKS[name]) == pytest.approx(expected[f.name], rel=1e-9), f.name
    found = answers_on(facts, contenders(facts, folder.summary), LINKS[name])["quality"].chosen
    assert found is not None
    assert found.joules == pytest.approx(expected[found.name], rel=1e-9)


def charged(name: str, link: object) -> float:
    """Joules of a method of the invented run on a link: arithmetic, and every message put on a ledger."""
    ledger = Ledger()
    up, down = bits_of(name, METHODS[name], "loss")
    charge_radio(ledger, link, method=name, seed=0, agents=AGENTS["loss"], uplink_bits=up, downlink_bits=down)
    return ledger.total(mix_kinds=True) + 15 * METHODS[name][6]


def test_the_run_s_own_link_gives_the_ledger_s_numbers(regression: Path) -> None:
    facts = digest(RunFolder.read(regression))
    for f in facts:
        assert joules_on(f, LINKS["paper"]) == pytest.approx(f.joules(), rel=1e-9)
    assert on_frontier(facts)
