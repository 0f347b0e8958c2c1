"""The three answers of a run: cheapest sensible, best value, best quality. Page, terminal and page.js say the same.

A method takes part if somebody could have it (no ceiling) and it did not diverge. `error` is the loss, or 1 - accuracy.

- Two methods *tie* if their 95 % intervals over seeds overlap. Below three seeds there is no interval and no tie.
- A *control* learns from no agent: the random start, and `invented`. It is what the others must beat.
- *Sensible* is a method that gets at least half of the way from a random start to the lowest error, on a logarithmic
  scale, does not tie with the random start, and has a lower error than every control. Without a random start the worst
  method stands for it. Only where no such method is left does a control that gets half of the way take its place.
- **Cheapest sensible**: of the sensible methods the one with the fewest joules.
- **Best value**: of the sensible methods that cost anything the one with the lowest error x joules^log10(2): ten times
  the joules must at least halve the error. Where nothing sensible costs anything, the cheapest.
- **Best quality**: the lowest error.

A budget leaves out what costs more; a control may then be all that is left. Of methods that are equal in all this the
first by name is taken. A method that is the answer to several questions has one card (`shown`).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from fewjoule.energy.show import bytes_text
from fewjoule.reporting.facts import Facts, error_of, score_text
from fewjoule.reporting.run_folder import MethodSummary, Summary
from fewjoule.reporting.wording import joules_text, listing, times_text

TITLES = {"cheapest": "Cheapest sensible", "value": "Best value", "quality": "Best quality"}
HALVES = math.log10(2)
"""Power of the joules in the rule of best value."""
FEWEST = "too few seeds for an interval"
CONTROL = "a control: it learns from no agent"
NOBODY = "nothing fits"
NOBODY_FINISHED = "Every method diverged on every seed, so there is no meta-model to compare."
NOT_SENSIBLE = "no method is clearly better than a random start"


class Contender(NamedTuple):
    """One method on one link. `low` and `high` bound the error over seeds, None below three."""

    name: str
    label: str
    short: str
    error: float
    low: float | None
    high: float | None
    joules: float
    server: float  # joules that the server spends by itself, not in `joules`
    random: bool  # a random start, which the others are measured by
    control: bool  # learns from no agent, so it wins only where nothing beats it
    sent: str = ""  # what its agents send, in words


class Answer(NamedTuple):
    """A method and those that tie with it; None where no method qualifies."""

    chosen: Contender | None
    ties: list[Contender]


class Card(NamedTuple):
    """What the reader sees of one method: the answers it is (keys of `TITLES`), their title, and what to add."""

    keys: tuple[str, ...]
    title: str
    answer: Answer
    remark: str = ""


def contenders(facts: Sequence[Facts], summary: Summary) -> list[Contender]:
    """The methods that take part, with the joules of the run's link."""
    found = []
    for f in facts:
        if f.contends and f.error is not None:
            ends = [None, None] if f.low is None or f.high is None else [f.low, f.high]
            low, high = sorted(error_of(summary, end) for end in ends if end is not None) or (None, None)
            spent, is_random = (f.joules(), f.joules(["server"])), f.summary.method == "random"
            sent = sent_words(f.summary, len(summary.agents))
            found.append(Contender(f.name, f.label, f.short, f.error, low, high, *spent, is_random, f.is_control, sent))
    return found


def sent_words(method: MethodSummary, agents: int) -> str:
    """`each agent sends its weights 51 times: 359 kB in all`; nothing where the folder does not say it."""
    uplink = method.messages.get("uplink")
    if not method.sent or uplink is None or not uplink.sizes:
        return method.sent
    senders = 1 if method.sent.startswith("one agent") else agents
    bits = math.fsum(bits * count for bits, count in uplink.sizes) / senders
    return f"{method.sent}: {bytes_text(bits)}{'' if method.sent.endswith('once') else ' in all'}"


def shown(methods: Sequence[Contender], budget: float = math.inf) -> list[Card]:
    """The cards: one for each method that is an answer. Where nothing sensible fits, the cheapest that is sensible."""
    found = answers(methods, budget)
    if found["cheapest"].chosen is not None:
        by_method: dict[str, list[str]] = {}
        for key, answer in found.items():
            if answer.chosen is not None:
                by_method.setdefault(answer.chosen.name, []).append(key)
        return [Card(tuple(keys), _title(keys), found[keys[-1]]) for keys in by_method.values()]
    everything = answers(methods)
    if everything["cheapest"].chosen is not None:
        title = f"No sensible method fits {joules_text(budget)}"
        return [Card(tuple(TITLES), title, everything["cheapest"], "the cheapest sensible method")]
    best = everything["quality"]
    if best.chosen is None:
        return []
    if len(methods) == 1:
        return [Card(tuple(TITLES), "The only method", best)]
    return [Card(tuple(TITLES), TITLES["quality"], best, NOT_SENSIBLE)]


def _title(keys: Sequence[str]) -> str:
    first, *others = (TITLES[key] for key in keys)
    return listing([first, *(title[0].lower() + title[1:] for title in others)])


def answers(methods: Sequence[Contender], budget: float = math.inf) -> dict[str, Answer]:
    """The answer of every card, by the keys of `TITLES`."""
    fitting = [m for m in methods if m.joules <= budget]
    fits = sensible(methods, budget)
    paid, controls = [m for m in fits if m.joules > 0], [m for m in fitting if m.control and m not in fits]
    cheapest = min(fits, key=lambda m: (m.joules, m.error, m.name), default=None)
    value = min(paid, key=lambda m: (worth(m), m.joules, m.name), default=cheapest)
    lowest = min(fitting, key=lambda m: (m.error, m.joules, m.name), default=None)
    equals = [m for m in fitting if lowest is not None and (m is lowest or tie(m, lowest))]
    return {
        "cheapest": Answer(cheapest, _as_cheap(cheapest, [*fits, *controls])),
        "value": Answer(value, _as_cheap(value, [*fits, *controls])),
        "quality": Answer(lowest, [m for m in equals if m is not lowest]),
    }


def tie(one: Contender, other: Contender) -> bool:
    """Whether their intervals overlap; never where one has none."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.low <= other.high and other.low <= one.high


def sensible(methods: Sequence[Contender], budget: float = math.inf) -> list[Contender]:
    """The methods that are worth having at all and fit the budget; controls only where nothing else is left."""
    if not methods:
        return []
    start = next((m for m in methods if m.random), max(methods, key=lambda m: (m.error, m.name)))
    half = math.sqrt(start.error * min(m.error for m in methods))
    good = [m for m in methods if m is not start and m.error <= half and not tie(m, start) and m.joules <= budget]
    controls = [m for m in methods if m.control]
    learned = [m for m in good if not m.control and all(m.error < c.error for c in controls)]
    return learned or [m for m in good if m.control]


def worth(method: Contender) -> float:
    """What best value has the least of: log10 of error x joules^log10(2)."""
    return math.log10(method.error) + HALVES * math.log10(method.joules)


def _as_cheap(chosen: Contender | None, methods: Sequence[Contender]) -> list[Contender]:
    """What ties with the chosen one for no more than a tenth more joules."""
    if chosen is None:
        return []
    return [m for m in methods if m is not chosen and tie(m, chosen) and m.joules <= 1.1 * chosen.joules]


def quality_words(summary: Summary, error: float) -> str:
    """`loss 0.359` or `accuracy 91.2 %`."""
    return f"{summary.metric} {score_text(summary, error if summary.metric == 'loss' else 1 - error)}"


def interval_words(summary: Summary, method: Contender) -> str:
    """`95 % interval 0.214 to 0.590`, or that there are too few seeds for one."""
    if method.low is None or method.high is None:
        return FEWEST
    ends = (method.low, method.high) if summary.metric == "loss" else (method.high, method.low)
    return "95 % interval " + " to ".join(quality_words(summary, end).split(" ", 1)[1] for end in ends)


def note_words(summary: Summary, card: Card) -> str:
    """What a card says in small letters: the interval, ties, and what the server spends."""
    chosen, ties = card.answer
    if chosen is None:
        return ""
    said = [card.remark, CONTROL if chosen.control else "", interval_words(summary, chosen), tie_words(ties)]
    server = f"{joules_text(chosen.server)} more at the server" if chosen.server else ""
    return "; ".join(part for part in [*said, server] if part)


def tie_words(ties: Sequence[Contender]) -> str:
    """`a tie with A (29.1 J)`, `a tie with A (0 J) and 3 others`: the cheapest is named; or nothing."""
    if not ties:
        return ""
    cheapest = min(ties, key=lambda m: (m.joules, m.error, m.name))
    others = [f"{len(ties) - 1} {'other' if len(ties) == 2 else 'others'}"] if len(ties) > 1 else []
    what = f"{'control, ' if cheapest.control else ''}{joules_text(cheapest.joules)}"
    return "a tie with " + listing([f"{cheapest.short} ({what})", *others])


def sentence(
    where: str, summary: Summary, methods: Sequence[Contender], reference: str | None, budget: float = math.inf
) -> str:
    """What to take on this link, in one or two sentences; `reference` is the method all others are compared with."""
    fitting = [m for m in methods if m.joules <= budget]
    start = f"On {where}, "
    if budget < math.inf:
        start += f"{len(fitting)} of {len(methods)} methods cost at most {joules_text(budget)}. "
    chosen = answers(methods, budget)["value"].chosen
    if chosen is None:
        needed = answers(methods)["cheapest"].chosen
        if needed is not None:
            return f"{start}The cheapest sensible one, {needed.label}, costs {joules_text(needed.joules)}."
        if len(methods) > 1:
            return f"On {where}, {NOT_SENSIBLE}."
        chosen, start = methods[0], f"On {where}, "
    said = f"{start}{chosen.label} gives {quality_words(summary, chosen.error)} for {joules_text(chosen.joules)}."
    other = next((m for m in fitting if m.name == reference and m.name != chosen.name), None)
    if other is None:
        return said
    times = f", {times_text(other.joules / chosen.joules)} times the energy" if chosen.joules and other.joules else ""
    gives = f"{quality_words(summary, other.error)} for {joules_text(other.joules)}"
    return f"{said} {other.label} gives {gives}{times}."


def lines(summary: Summary, facts: Sequence[Facts], width: int = 80) -> list[str]:
    """The cards for a terminal: a line each, or two where one method is several answers."""
    found, out = shown(contenders(facts, summary)), []
    for card in found:
        chosen, ties = card.answer
        if chosen is None:
            continue
        head = f"{card.title + ':':<19}"
        if len(found) < len(TITLES):
            out.append(card.title + ":")
            head = "  "
        tail = f", {quality_words(summary, chosen.error)}, {joules_text(chosen.joules)}"
        note = f" ({tie_words(ties)})" if ties else ""
        room = width - len(head) - len(tail)
        if len(chosen.label) + len(note) > room:
            note = " (a tie)" if ties else ""
        label = chosen.label if len(chosen.label) + len(note) <= room else chosen.label[: room - len(note) - 1] + "…"
        out.append(head + label + tail + note)
    return out or [NOBODY_FINISHED]
