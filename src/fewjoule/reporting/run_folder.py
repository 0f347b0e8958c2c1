"""The run folder: the files that scripts may rely on, their columns and the schema of summary.json.

The report reads nothing else; `docs/run-folder.md` describes every column. energy.csv is the ledger's own.
"""

import json
import math
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fewjoule.energy.ledger import Kind, Ledger, Phase
from fewjoule.energy.show import html_table, text_table
from fewjoule.errors import LARGEST_COUNT, InputError
from fewjoule.files import read_csv_columns, write_csv
from fewjoule.reporting import display
from fewjoule.reporting.cells import LARGEST, Array, damaged, numbers_of, reading

FORMAT: Literal[1] = 1
STUDY, SUMMARY, ENERGY = "study.toml", "summary.json", "energy.csv"
NAMES = ("method", "agent")
LEAST_SEEDS = 3
"""An interval from two seeds is 12.7 standard errors to either side and says nothing."""

Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
Positive = Annotated[float, Field(gt=0, le=LARGEST)]


class _Part(BaseModel):
    # a limit of length also has pydantic refuse texts that are no Unicode
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, str_max_length=100_000)


class Amount(_Part):
    """What one phase spent, one kind of knowledge; per seed, all agents together."""

    joules: Number
    seconds: Number | None = None
    bits: Number | None = None
    flops: Number | None = None


class Quantiles(_Part):
    """Over the new tasks, None where infinite; `low` and `high` bound the headline statistic over seeds."""

    q05: Number | None
    q25: Number | None
    median: Number | None
    q75: Number | None
    q95: Number | None
    mean: Number | None
    low: Number | None
    high: Number | None


class Quality(_Part):
    loss: Quantiles
    accuracy: Quantiles | None = None
    overflowed: int = Field(0, ge=0)  # fine-tunings whose loss is infinite, of all seeds and new tasks


class Spread(_Part):
    """Over the agents, on test samples of their own, as means over seeds; `low` and `high` bound `mean` over seeds."""

    worst_tenth: Number | None
    median: Number | None
    mean: Number | None
    low: Number | None = None
    high: Number | None = None
    better_than_alone: Number | None = None  # share of the agents; a tie counts half


class Messages(_Part):
    """What all agents sent or received in a run, per seed: enough to charge it on any other link.

    `sizes` are [bits of a message, how many]; `longest` are [bits of the longest message of a round, how many rounds],
    from which the time follows, since agents send at the same time.
    """

    sizes: list[tuple[Number, Number]] = Field([], max_length=100_000)
    longest: list[tuple[Number, Number]] = Field([], max_length=100_000)


class MethodSummary(_Part):
    """One method's row of `summary.json`."""

    label: str
    method: str
    settings: dict[str, Any] = {}
    rounds: int
    sent: str = ""  # what the agents send, in words; empty in the folders of older versions
    ceiling: bool = False  # trained on the new tasks' own family: nobody can have it, so it wins nothing
    diverged: list[int] = []
    quality: dict[int, Quality]
    personal: dict[int, Spread] = {}  # after each number of fine-tuning steps on an agent's own samples
    worth: dict[str, Number | None] = {}  # `training.worth.Worth`, medians over seeds; None is infinite
    remarks: list[str] = []  # what to know before the meta-model is used, one line each
    share_best: Number | None = None
    share_best_in_paper: Number | None = None
    energy: dict[Phase, dict[Kind, Amount]]
    messages: dict[Literal["uplink", "downlink"], Messages] = {}  # empty in the folders of older versions
    uplink_values: float = 0.0
    downlink_values: float = 0.0
    traffic: dict[str, Number] = {}  # of a real federation: bytes per seed, as charged, as payload, over the network
    skipped: int = 0


class LinkFacts(_Part):
    """The link of the run; the numbers are absent where it is not a Shannon link."""

    name: str
    source: str = ""
    bits_per_weight: int = Field(32, ge=1, le=LARGEST_COUNT)
    bandwidth_hz: Positive | None = None
    power_watts: Positive | None = None
    noise_watts_per_hz: Positive | None = None
    gain: Positive = 1.0
    amplifier_efficiency: Positive = 1.0
    circuit_watts: float = Field(0.0, ge=0, le=LARGEST)
    outage: float | None = Field(None, gt=0, lt=1)

    @property
    def is_shannon(self) -> bool:
        """Whether the page can compute what the radio would cost with other numbers."""
        return None not in (self.bandwidth_hz, self.power_watts, self.noise_watts_per_hz)


class Summary(_Part):
    """`summary.json`; `statistic` over the new tasks is the quality that methods are ranked by."""

    format: Literal[1]
    study: str
    title: str = ""
    metric: Literal["loss", "accuracy"]
    better: Literal["lower", "higher"]
    statistic: Literal["median", "mean"] = "median"
    steps: list[int]
    headline_steps: int
    model: str
    weights: int
    agents: list[str] = Field(min_length=1)
    seeds: list[int] = Field(min_length=1)
    tasks: int
    data: str
    link: LinkFacts
    alone: Spread | None = None  # what agents have by themselves, where they keep test samples
    methods: dict[str, MethodSummary]

    def numbers(self, method: str, steps: int) -> Quantiles | None:
        """A method's loss or accuracy after these fine-tuning steps; None where every seed diverged."""
        at = self.methods[method].quality.get(steps)
        return None if at is None else at.loss if self.metric == "loss" else at.accuracy

    def score(self, method: str, steps: int) -> float | None:
        """The method's quality; None where every seed diverged or fine-tuning overflowed."""
        numbers = self.numbers(method, steps)
        return None if numbers is None else numbers.median if self.statistic == "median" else numbers.mean

    def no_score(self, method: str, steps: int) -> str:
        """Why the score is None."""
        at, runs = self.methods[method].quality.get(steps), len(self.seeds) - len(self.methods[method].diverged)
        if at is None:
            return "diverged" if runs == 0 else "not tested"
        return f"infinite: {at.overflowed} of {runs * self.tasks} overflowed"

    def to_json(self) -> str:
        """The text of the file; what was never set is left out."""
        return json.dumps(self.model_dump(mode="json", exclude_unset=True), indent=1) + "\n"

    @classmethod
    def read(cls, folder: Path) -> "Summary":
        """Read and check a folder's summary.json; a damaged one is an `InputError` that names the fault."""
        path = folder / SUMMARY
        with reading(path):
            raw = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(raw, dict) and raw.get("format") != FORMAT:
                raise InputError(
                    f"{path} was written by another version of fewjoule (format {raw.get('format')!r}, this one reads "
                    f"{FORMAT}); run the study again."
                )
            summary = cls.model_validate(raw)
        for fault in summary._faults():
            raise damaged(path, fault)
        return summary

    def _faults(self) -> Iterator[str]:
        if not self.methods:
            yield "it lists no methods"
        if self.headline_steps not in self.steps:
            yield f"headline_steps {self.headline_steps} is not one of steps {self.steps}"
        for name, method in self.methods.items():
            if self.tasks and not method.quality and set(method.diverged) != set(self.seeds):
                yield f"methods.{name} has no quality although not every seed diverged"
            missing = [steps for steps in self.steps if method.quality and steps not in method.quality]
            if missing:
                yield f"methods.{name}.quality has no entry for {missing[0]} steps"
            if self.metric == "accuracy" and any(q.accuracy is None for q in method.quality.values()):
                yield f"methods.{name}.quality has no accuracy"


@dataclass(frozen=True)
class Table:
    """A CSV file of the folder: method and agent are names, all else are numbers; an empty cell is NaN."""

    file: str
    columns: tuple[str, ...]

    def write(self, folder: Path, rows: Iterable[Sequence[object]]) -> None:
        write_csv(folder / self.file, self.columns, rows)

    def read(self, folder: Path, summary: Summary) -> dict[str, Array]:
        """The columns, names as objects; every row is of a method that the summary knows."""
        path = folder / self.file
        with reading(path):
            lines, cells = read_csv_columns(path, self.columns)
            if strangers := set(cells["method"]) - set(summary.methods):
                at = next(i for i, name in enumerate(cells["method"]) if name in strangers)
                raise damaged(path, f"line {lines[at]}: {SUMMARY} has no method {cells['method'][at]!r}")
            return {
                key: np.array(column, object) if key in NAMES else numbers_of(path, lines, key, column)
                for key, column in cells.items()
            }


EVALUATION = Table("evaluation.csv", ("method", "seed", "task", "steps", "loss", "accuracy"))
TRACE = Table("trace.csv", ("method", "seed", "round", "loss", "spread", "step", "radius", "active", "present"))
PERSONAL = Table(
    "personal.csv", ("method", "seed", "agent", "steps", "loss", "accuracy", "alone_loss", "alone_accuracy")
)
PATHS = Table("paths.csv", ("method", "agent", "round", "pc1", "pc2"))


@dataclass(frozen=True, repr=False)
class RunFolder:
    """Everything a report shows.

    `values` are each method's losses (or accuracies) on the new tasks at the headline number of steps, all seeds
    together. `trace` has for each method its rounds and the medians over seeds of `TRACE`'s columns from `loss` on, by
    column. `paths` has one array [rounds + 1, 3] of (round, pc1, pc2) per method and agent.
    """

    path: Path
    study: str
    summary: Summary
    ledger: Ledger
    values: dict[str, Array]
    trace: dict[str, dict[str, Array]]
    paths: dict[str, dict[str, Array]]

    @classmethod
    def read(cls, path: str | Path) -> "RunFolder":
        """Read a run folder; a missing or damaged file is an `InputError` that names it."""
        path = Path(path)
        if not path.is_dir():
            raise InputError(f"{path} is not a folder; give a run folder, as `fewjoule run` writes it.")
        if not (path / STUDY).is_file():
            raise InputError(f"{path} is not a run folder: it has no {STUDY}; give one that `fewjoule run` wrote.")
        for name in (SUMMARY, EVALUATION.file, ENERGY, TRACE.file, PATHS.file):
            if not (path / name).is_file():
                raise InputError(
                    f"{path} is not a complete run folder: {name} is missing; finish it with "
                    f"`fewjoule run --resume {path}` or give another folder."
                )
        summary = Summary.read(path)
        with reading(path / STUDY):
            study = (path / STUDY).read_text(encoding="utf-8")
            tomllib.loads(study)
        with reading(path / ENERGY):
            ledger = _ledger(path / ENERGY)
        return cls(path, study, summary, ledger, _values(path, summary), _trace(path, summary), _paths(path, summary))

    def __repr__(self) -> str:
        return f"RunFolder {self.path}: {self.summary.title}\n{text_table(*display.table(self), left=1)}"

    def _repr_html_(self) -> str:
        return html_table(*display.table(self), f"{self.summary.title} ({self.path})")

    def plot(self) -> Any:
        """Quality against joules of the training: an Altair chart."""
        return display.chart(self)


def _ledger(path: Path) -> Ledger:
    ledger = Ledger.from_csv(path)
    for line, row in enumerate(ledger, start=2):
        if max(row.joules, row.seconds or 0, row.bits or 0, row.flops or 0) > LARGEST:
            raise damaged(path, f"line {line}: no amount may exceed {LARGEST:g}")
    return ledger


def _values(folder: Path, summary: Summary) -> dict[str, Array]:
    table = EVALUATION.read(folder, summary)
    rows = table["steps"] == summary.headline_steps
    methods, values = table["method"][rows], table[summary.metric][rows]
    for name, method in summary.methods.items():
        if method.quality and name not in methods:
            raise damaged(folder / EVALUATION.file, f"it has no rows of {name!r} after {summary.headline_steps} steps")
    return {name: values[methods == name] for name in summary.methods if name in methods}


def _trace(folder: Path, summary: Summary) -> dict[str, dict[str, Array]]:
    table, trace = TRACE.read(folder, summary), {}
    for name in dict.fromkeys(table["method"]):
        rows = table["method"] == name
        rounds, which = np.unique(table["round"][rows], return_inverse=True)
        medians = {column: _medians(table[column][rows], which, len(rounds)) for column in TRACE.columns[3:]}
        trace[name] = {"round": rounds, **medians}
    return trace


def _medians(values: Array, group: Array, groups: int) -> Array:
    """Median of each group of values, over those that are finite; NaN where none is."""
    kept = np.isfinite(values)
    values, group = values[kept], group[kept]
    order = np.lexsort((values, group))
    values, counts = values[order], np.bincount(group, minlength=groups)
    starts = np.cumsum(counts) - counts
    found = np.full(groups, math.nan)
    some = counts > 0
    low, high = starts[some] + (counts[some] - 1) // 2, starts[some] + counts[some] // 2
    found[some] = (values[low] + values[high]) / 2
    return found


def _paths(folder: Path, summary: Summary) -> dict[str, dict[str, Array]]:
    paths: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    table = PATHS.read(folder, summary)
    for method, agent, *point in zip(*(table[column] for column in PATHS.columns), strict=True):
        if math.isfinite(point[1]) and math.isfinite(point[2]):
            paths[method][agent].append(point)
    return {name: {agent: np.asarray(sorted(points)) for agent, points in each.items()} for name, each in paths.items()}
