"""What the report says about each method: its quality, its joules by phase and kind, and who stands on the frontier."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fewjoule.energy.ledger import KINDS, PHASES, TRAINING, Spent
from fewjoule.energy.show import digits
from fewjoule.reporting.colours import family_of
from fewjoule.reporting.run_folder import LEAST_SEEDS, MethodSummary, RunFolder, Summary
from fewjoule.reporting.wording import drawable

CONTROLS = ("random", "invented")
"""Methods that learn from no agent, by their registered names: what the others must beat."""
SMALLEST_ERROR = 1e-4
"""An error of 0 is drawn here on a logarithmic axis."""


@dataclass(frozen=True)
class Facts:
    """One method. `quality` is its loss or accuracy at the headline steps, None where it diverged or overflowed.

    `low` and `high` bound it over seeds, None from fewer than three. `error` is what is drawn on a logarithmic axis
    (see `error_of`).
    """

    name: str
    label: str
    quality_text: str  # as `score_text` writes it
    short: str  # without what stands in brackets, where that still says which method it is
    family: str
    summary: MethodSummary
    quality: float | None
    error: float | None
    low: float | None
    high: float | None
    spent: tuple[Spent, ...]

    @property
    def contends(self) -> bool:
        """Whether the method has a quality that somebody could have."""
        return self.quality is not None and not self.summary.ceiling

    @property
    def is_control(self) -> bool:
        """Whether the method learns from no agent."""
        return self.summary.method in CONTROLS and not self.summary.ceiling

    @property
    def share(self) -> float:
        """Share of the new tasks on which the method is the best; 0 where nobody knows it."""
        return self.summary.share_best or 0.0

    def joules(self, phases: Sequence[str] = TRAINING) -> float:
        """Joules of these phases, all kinds together; `kinds` says which kinds those are."""
        return math.fsum(s.joules for s in self.of(phases))

    def kinds(self) -> tuple[str, ...]:
        """The kinds of knowledge behind the joules of the training."""
        found = {s.kind for s in self.of(TRAINING) if s.joules > 0}
        return tuple(kind for kind in KINDS if kind in found)

    def of(self, phases: Sequence[str]) -> list[Spent]:
        """What was spent on these phases."""
        return [s for s in self.spent if s.phase in phases]


def digest(folder: RunFolder) -> list[Facts]:
    """All methods, the best first, those that diverged last."""
    summary = folder.summary
    labels = Counter(method.label for method in summary.methods.values())
    spent: dict[str, list[Spent]] = defaultdict(list)
    for amount in folder.ledger.spent(seeds=len(summary.seeds)):
        spent[amount.method].append(amount._replace(sources=tuple(sorted(amount.sources))))
    shorts = Counter(_short(method.label) for method in summary.methods.values())
    facts = []
    for name, method in summary.methods.items():
        quality, numbers = summary.score(name, summary.headline_steps), summary.numbers(name, summary.headline_steps)
        few = len(summary.seeds) - len(method.diverged) < LEAST_SEEDS
        facts.append(
            Facts(
                name=name,
                label=(label := drawable(f"{method.label} ({name})" if labels[method.label] > 1 else method.label)),
                short=_short(label) if shorts[_short(method.label)] == 1 else label,
                family=family_of(method.method),
                summary=method,
                quality=quality,
                quality_text="–" if quality is None else score_text(summary, quality),
                error=None if quality is None else error_of(summary, quality),
                low=None if numbers is None or few else numbers.low,
                high=None if numbers is None or few else numbers.high,
                spent=tuple(spent[name]),
            )
        )
    sign = 1 if summary.better == "lower" else -1
    return sorted(facts, key=lambda f: math.inf if f.quality is None else sign * f.quality)


def _short(label: str) -> str:
    return label.split(" (")[0] or label


def seconds_kind(spent: Spent) -> str:
    """How the seconds are known: the CPU-time model takes watts for granted, but its seconds are those of a clock."""
    return "measured" if all(source.startswith("CPU time") for source in spent.sources) else spent.kind


def score_text(summary: Summary, quality: float) -> str:
    """A loss as `0.359`, an accuracy as `91.2 %`."""
    return digits(quality) if summary.metric == "loss" else f"{100 * quality:.1f} %"


def error_of(summary: Summary, quality: float) -> float:
    """The quantity whose logarithm is drawn, lower is better: the loss, or 1 - accuracy."""
    return max(quality if summary.metric == "loss" else 1 - quality, SMALLEST_ERROR)


def finished(facts: list[Facts]) -> list[Facts]:
    """The methods that have a quality, the best first."""
    return [f for f in facts if f.quality is not None]


def references(facts: list[Facts]) -> list[Facts]:
    """The methods that all others are seen beside: the average of the local models and the best Meta-Backward."""
    average = [f for f in finished(facts) if (f.family, f.name) == ("without rounds", "average")]
    return average + [f for f in finished(facts) if f.family == "Meta-Backward"][:1]


def frontier(points: Iterable[tuple[str, float, float]]) -> list[str]:
    """Names of (name, joules, error) that no other point beats in one without losing in the other, cheapest first."""
    best, names = math.inf, []
    for name, _, error in sorted(points, key=lambda p: (p[1], p[2], p[0])):
        if error < best:
            best = error
            names.append(name)
    return names


def on_frontier(facts: list[Facts]) -> list[str]:
    """The frontier of the methods that contend, cheapest first; controls push others off it but are not on it."""
    found = frontier((f.name, f.joules(), f.error) for f in facts if f.contends and f.error is not None)
    controls = {f.name for f in facts if f.is_control}
    return [name for name in found if name not in controls]


def all_sources(facts: list[Facts]) -> list[tuple[str, str, str]]:
    """Every (phase, kind, source) of the run, in the order of the phases."""
    found = {(s.phase, s.kind, source) for f in facts for s in f.spent for source in s.sources}
    return sorted(found, key=lambda s: (PHASES.index(s[0]), KINDS.index(s[1]), s[2]))
