"""What the report says about each method: its quality, its joules by phase and kind, and who stands on the frontier."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fewjoule.energy.ledger import KINDS, PHASES, Ledger
from fewjoule.report.colours import family_of
from fewjoule.report.folder import MethodSummary, RunFolder, Summary

TRAINING = ("computation", "uplink", "downlink")
"""The phases a method is charged for; pretraining (the local models exist already) and adaptation stand apart."""
RADIO = ("uplink", "downlink")
SMALLEST_ERROR = 1e-4
"""An error of 0 is drawn here on a logarithmic axis."""


@dataclass(frozen=True)
class Spent:
    """One phase and kind of one method, per seed: `seconds` is the time that passes where agents send at once."""

    phase: str
    kind: str
    joules: float
    seconds: float | None
    seconds_kind: str
    bits: float | None
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """One method. `quality` is its loss or accuracy at the headline steps, None where it diverged or overflowed."""

    name: str
    label: str
    family: str
    rounds: int
    quality: float | None
    low: float | None
    high: float | None
    spent: tuple[Spent, ...]
    own_bits: bool  # the method has a code of its own, not the link's bits per weight
    share_best: float | None
    share_best_in_paper: float | None
    diverged: tuple[int, ...]

    def joules(self, phases: Iterable[str] = TRAINING) -> float:
        """Joules of these phases, all kinds together; `kinds` says which kinds those are."""
        chosen = set(phases)
        return math.fsum(s.joules for s in self.spent if s.phase in chosen)

    def kinds(self, phases: Iterable[str] = TRAINING) -> tuple[str, ...]:
        """The kinds of knowledge behind `joules`."""
        chosen = set(phases)
        return tuple(k for k in KINDS if any(s.kind == k and s.joules > 0 for s in self.spent if s.phase in chosen))


def digest(folder: RunFolder) -> list[Facts]:
    """All methods, the best first, those that diverged last."""
    summary = folder.summary
    sources, elapsed = _sources(folder.ledger), _elapsed(folder.ledger, len(summary.seeds))
    largest = _largest_messages(folder.ledger)
    facts = [
        _facts(name, method, summary, sources, elapsed, largest.get(name, math.inf))
        for name, method in summary.methods.items()
    ]
    labels = [f.label for f in facts]
    facts = [replace(f, label=f"{f.label} ({f.name})") if labels.count(f.label) > 1 else f for f in facts]
    sign = 1 if summary.better == "lower" else -1
    return sorted(facts, key=lambda f: math.inf if f.quality is None else sign * f.quality)


def error_of(summary: Summary, quality: float) -> float:
    """The quantity whose logarithm is drawn, lower is better: the loss, or 1 - accuracy."""
    return max(quality if summary.metric == "loss" else 1 - quality, SMALLEST_ERROR)


def frontier(points: Iterable[tuple[str, float, float]]) -> list[str]:
    """Names of (name, joules, error) that no other point beats in one without losing in the other, cheapest first."""
    best, names = math.inf, []
    for name, _, error in sorted(points, key=lambda p: (p[1], p[2], p[0])):
        if error < best:
            best = error
            names.append(name)
    return names


def on_frontier(facts: list[Facts], summary: Summary) -> list[str]:
    """The frontier of the methods that did not diverge, cheapest first."""
    return frontier((f.name, f.joules(), error_of(summary, f.quality)) for f in facts if f.quality is not None)


def all_sources(folder: RunFolder) -> list[tuple[str, str, str]]:
    """Every (phase, kind, source) on the ledger, in the order of the phases."""
    found = {(row.phase, row.kind, row.source) for row in folder.ledger}
    return sorted(found, key=lambda s: (PHASES.index(s[0]), KINDS.index(s[1]), s[2]))


def _facts(
    name: str,
    method: MethodSummary,
    summary: Summary,
    sources: dict[tuple[str, str, str], set[str]],
    elapsed: dict[tuple[str, str, str], float],
    largest: float,
) -> Facts:
    spent = []
    for phase in PHASES:
        for kind in KINDS:
            amount = method.energy.get(phase, {}).get(kind)  # type: ignore[call-overload]
            if amount is None:
                continue
            key = (name, phase, kind)
            named = tuple(sorted(sources.get(key, ())))
            seconds = elapsed.get(key, amount.seconds) if phase in RADIO else amount.seconds
            spent.append(Spent(phase, kind, amount.joules, seconds, _seconds_kind(kind, named), amount.bits, named))
    numbers = summary.numbers(name, summary.headline_steps)
    return Facts(
        name=name,
        label=method.label,
        family=family_of(method.method),
        rounds=method.rounds,
        quality=summary.score(name, summary.headline_steps),
        low=None if numbers is None else numbers.low,
        high=None if numbers is None else numbers.high,
        spent=tuple(spent),
        own_bits=_coded(method.settings) or largest < 0.9 * summary.weights * summary.link.bits_per_weight,
        share_best=method.share_best,
        share_best_in_paper=method.share_best_in_paper,
        diverged=tuple(method.diverged),
    )


def _seconds_kind(kind: str, sources: tuple[str, ...]) -> str:
    """The CPU-time model takes watts for granted, but its seconds are those of a clock."""
    return "measured" if sources and all(source.startswith("CPU time") for source in sources) else kind


def _largest_messages(ledger: Ledger) -> dict[str, float]:
    """Bits of each method's largest uplink row; less than all weights take means that a code is at work."""
    found: dict[str, float] = {}
    for row in ledger:
        if row.phase == "uplink" and row.bits is not None:
            found[row.method] = max(found.get(row.method, 0.0), row.bits)
    return found


def _coded(settings: dict[str, Any]) -> bool:
    return any(settings.get(name) not in (None, "float32") for name in ("codec", "first_codec"))


def _sources(ledger: Ledger) -> dict[tuple[str, str, str], set[str]]:
    found: dict[tuple[str, str, str], set[str]] = {}
    for row in ledger:
        found.setdefault((row.method, row.phase, row.kind), set()).add(row.source)
    return found


def _elapsed(ledger: Ledger, seeds: int) -> dict[tuple[str, str, str], float]:
    """Seconds of radio per seed: agents send at once in bands of their own, so a round takes as long as its slowest."""
    slowest: dict[tuple[str, str, str, int, int], float] = {}
    for row in ledger:
        if row.phase in RADIO and row.seconds is not None:
            at = (row.method, row.phase, row.kind, row.seed, row.round)
            slowest[at] = max(slowest.get(at, 0.0), row.seconds)
    sums: dict[tuple[str, str, str], list[float]] = {}
    for (method, phase, kind, _, _), seconds in slowest.items():
        sums.setdefault((method, phase, kind), []).append(seconds)
    return {key: math.fsum(each) / seeds for key, each in sums.items()}
