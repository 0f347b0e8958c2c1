"""Reading a run folder: the files `fewjoule run` wrote, checked, as plain values. Nothing else is ever read."""

import csv
import json
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from fewjoule.energy.ledger import Ledger
from fewjoule.errors import InputError

EVALUATION = ("method", "seed", "task", "steps", "loss", "accuracy")
TRACE = ("method", "seed", "round", "loss", "spread", "step", "radius", "active", "present")
PATHS = ("method", "agent", "round", "pc1", "pc2")
Phase = Literal["pretraining", "computation", "uplink", "downlink", "adaptation"]
Kind = Literal["measured", "modelled", "analytic"]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Amount(_Part):
    """What one phase spent, one kind of knowledge; per seed, all agents together."""

    joules: float
    seconds: float | None = None
    bits: float | None = None
    flops: float | None = None


class Quantiles(_Part):
    """Over the new tasks, None where infinite; `low` and `high` bound the headline statistic over seeds."""

    median: float | None
    mean: float | None
    low: float | None
    high: float | None


class Quality(_Part):
    loss: Quantiles
    accuracy: Quantiles | None = None


class MethodSummary(_Part):
    """One method's row of `summary.json`."""

    label: str
    method: str
    settings: dict[str, Any] = {}
    rounds: int
    diverged: list[int] = []
    quality: dict[int, Quality]
    share_best: float | None = None
    share_best_in_paper: float | None = None
    energy: dict[Phase, dict[Kind, Amount]]
    uplink_values: float = 0.0
    downlink_values: float = 0.0
    traffic: dict[str, float] = {}  # of a real federation: bytes per seed, as charged, as payload, over the network
    skipped: int = 0


class LinkFacts(_Part):
    """The link of the run; the numbers are absent where it is not a Shannon link."""

    name: str
    bandwidth_hz: float | None = None
    power_watts: float | None = None
    noise_watts_per_hz: float | None = None
    bits_per_weight: float = 32
    gain: float = 1.0
    amplifier_efficiency: float = 1.0
    circuit_watts: float = 0.0
    outage: float | None = None


class Summary(_Part):
    """`summary.json`; `statistic` over the new tasks is the quality that methods are ranked by."""

    format: Literal[1]
    study: str
    title: str = ""
    statistic: Literal["median", "mean"] = "median"
    metric: Literal["loss", "accuracy"]
    better: Literal["lower", "higher"]
    steps: list[int]
    headline_steps: int
    model: str
    weights: int
    agents: list[str]
    seeds: list[int]
    tasks: int
    data: str
    link: LinkFacts
    methods: dict[str, MethodSummary]

    def numbers(self, method: str, steps: int) -> Quantiles | None:
        """A method's loss or accuracy after these fine-tuning steps; None where every seed diverged."""
        at = self.methods[method].quality.get(steps)
        return None if at is None else at.loss if self.metric == "loss" else at.accuracy

    def score(self, method: str, steps: int) -> float | None:
        """The method's quality; None where every seed diverged or fine-tuning overflowed."""
        numbers = self.numbers(method, steps)
        return None if numbers is None else numbers.median if self.statistic == "median" else numbers.mean


@dataclass(frozen=True)
class RunFolder:
    """Everything a report shows.

    `values` are each method's losses (or accuracies) on the new tasks at the headline number of steps, all seeds
    together. `trace` has one array [rounds, 7] per method: the round, then the medians over seeds of `TRACE`'s columns
    from `loss` on. `paths` has one array [rounds + 1, 3] of (round, pc1, pc2) per method and agent.
    """

    path: Path
    study: dict[str, Any]
    study_text: str
    summary: Summary
    ledger: Ledger
    values: dict[str, np.ndarray[Any, Any]]
    trace: dict[str, np.ndarray[Any, Any]]
    paths: dict[str, dict[str, np.ndarray[Any, Any]]]


def read_folder(path: str | Path) -> RunFolder:
    """Read a run folder; a missing or damaged file is an `InputError` that names it."""
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"{path} is not a folder; give a run folder, as `fewjoule run` writes it.")
    if not (path / "study.toml").is_file():
        raise InputError(f"{path} is not a run folder: it has no study.toml; give one that `fewjoule run` wrote.")
    for name in ("summary.json", "evaluation.csv", "energy.csv", "trace.csv", "paths.csv"):
        if not (path / name).is_file():
            raise InputError(
                f"{path} is not a complete run folder: {name} is missing; finish it with "
                f"`fewjoule run --resume {path}` or give another folder."
            )
    summary = _summary(path / "summary.json")
    study_text = _text(path / "study.toml")
    try:
        study = tomllib.loads(study_text)
    except tomllib.TOMLDecodeError as error:
        raise _damaged(path / "study.toml", str(error)) from error
    try:
        ledger = Ledger.from_csv(path / "energy.csv")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _damaged(path / "energy.csv", str(error)) from error
    return RunFolder(
        path=path,
        study=study,
        study_text=study_text,
        summary=summary,
        ledger=ledger,
        values=_values(path / "evaluation.csv", summary),
        trace=_trace(path / "trace.csv", summary),
        paths=_paths(path / "paths.csv", summary),
    )


def _summary(path: Path) -> Summary:
    try:
        raw = json.loads(_text(path))
    except json.JSONDecodeError as error:
        raise _damaged(path, str(error)) from error
    try:
        summary = Summary.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise _damaged(path, f"{where}: {first['msg']}") from error
    if not summary.methods:
        raise _damaged(path, "it lists no methods")
    if summary.headline_steps not in summary.steps:
        raise _damaged(path, f"headline_steps {summary.headline_steps} is not one of steps {summary.steps}")
    for name, method in summary.methods.items():
        if not method.quality and set(method.diverged) != set(summary.seeds):
            raise _damaged(path, f"methods.{name} has no quality although not every seed diverged")
        missing = [steps for steps in summary.steps if method.quality and steps not in method.quality]
        if missing:
            raise _damaged(path, f"methods.{name}.quality has no entry for {missing[0]} steps")
        if summary.metric == "accuracy" and any(q.accuracy is None for q in method.quality.values()):
            raise _damaged(path, f"methods.{name}.quality has no accuracy")
    return summary


def _values(path: Path, summary: Summary) -> dict[str, np.ndarray[Any, Any]]:
    column, wanted = summary.metric, str(summary.headline_steps)
    values: dict[str, list[float]] = {}
    for row in _rows(path, EVALUATION, summary):
        if row["steps"] == wanted:
            values.setdefault(row["method"], []).append(_number(path, row, column))
    for name, method in summary.methods.items():
        if method.quality and name not in values:
            raise _damaged(path, f"it has no rows of {name!r} after {wanted} steps")
    return {name: np.asarray(each) for name, each in values.items()}


def _trace(path: Path, summary: Summary) -> dict[str, np.ndarray[Any, Any]]:
    seeds: dict[str, dict[int, list[list[float]]]] = {}
    columns = TRACE[3:]
    for row in _rows(path, TRACE, summary):
        at = int(_number(path, row, "round"))
        numbers = [_number(path, row, column) for column in columns]
        seeds.setdefault(row["method"], {}).setdefault(at, []).append(numbers)
    return {
        name: np.asarray([[at, *_medians(np.asarray(rounds[at]))] for at in sorted(rounds)])
        for name, rounds in seeds.items()
    }


def _medians(rows: np.ndarray[Any, Any]) -> list[float]:
    """Median of every column over the seeds that have a number there; NaN where none has."""
    finite = [column[np.isfinite(column)] for column in rows.T]
    return [float(np.median(column)) if len(column) else math.nan for column in finite]


def _paths(path: Path, summary: Summary) -> dict[str, dict[str, np.ndarray[Any, Any]]]:
    paths: dict[str, dict[str, list[tuple[float, float, float]]]] = {}
    for row in _rows(path, PATHS, summary):
        at, x, y = (_number(path, row, column) for column in ("round", "pc1", "pc2"))
        if math.isfinite(x) and math.isfinite(y):
            paths.setdefault(row["method"], {}).setdefault(row["agent"], []).append((at, x, y))
    return {
        name: {agent: np.asarray(sorted(points)) for agent, points in agents.items()} for name, agents in paths.items()
    }


def _rows(path: Path, columns: tuple[str, ...], summary: Summary) -> Iterator[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            if tuple(header) != columns:
                raise _damaged(path, f"its first line must be {','.join(columns)}, got {','.join(header)!r}")
            for cells in reader:
                if len(cells) != len(columns):
                    raise _damaged(path, f"line {reader.line_num} has {len(cells)} cells instead of {len(columns)}")
                row = dict(zip(columns, cells, strict=True))
                if row["method"] not in summary.methods:
                    raise _damaged(path, f"line {reader.line_num}: summary.json has no method {row['method']!r}")
                yield row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise _damaged(path, str(error)) from error


def _number(path: Path, row: dict[str, str], column: str) -> float:
    try:
        return float(row[column] or "nan")
    except ValueError:
        raise _damaged(path, f"{column} must be a number, got {row[column]!r}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, why: str) -> InputError:
    return InputError(f"{path} cannot be used: {' '.join(why.split())}; run the study again.")
