"""The frontier of quality against joules: rounds x local steps x bits of every method on the paper's two studies.

From the built-in studies to tables in a folder. A setting is *chosen* on the first half of the new tasks and *reported*
on the second, so that the best of many settings is not flattered by the tasks that picked it.

    frontier.csv    study, method, setting, joules and bits of one agent, quality on both halves with its interval
    targets.csv     study, target, method: the cheapest setting that reaches the target on the first half, and what it
                    reaches on the second
"""

import csv
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fewjoule.adapt import adapt
from fewjoule.energy import Link, device, link
from fewjoule.errors import InputError
from fewjoule.local import train_locally
from fewjoule.methods import method
from fewjoule.methods.method import Method
from fewjoule.models import Model
from fewjoule.simulate import Simulation
from fewjoule.study import Study
from fewjoule.study_energy import method_flops
from fewjoule.summary import interval
from fewjoule.tasks.samples import Agents
from fewjoule.writing import write_atomically

STUDIES = ("sinusoid", "mnist")
SEEDS = 10
FINE, TENTH, THIRTIETH = "quantise:3", "top-k:0.1:2", "top-k:0.03:2"
Settings = dict[str, Any]
Values = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Point:
    """One setting of one method. Energies are of one agent, the mean over agents and seeds; quality is the study's
    statistic over new tasks and seeds, on the half it is chosen and the half it is reported on. `low` and `high` bound
    the reported one over seeds at 95 %. `joules` is everything that is known: radio and arithmetic."""

    study: str
    method: str
    setting: str
    paper: bool
    uplink_bits_per_weight: float
    uplink_joules: float
    downlink_joules: float | None
    arithmetic_joules: float
    chosen: float
    reported: float
    low: float | None
    high: float | None
    diverged: int

    @property
    def joules(self) -> float:
        return self.uplink_joules + (self.downlink_joules or 0.0) + self.arithmetic_joules


@dataclass(frozen=True)
class Target:
    """The cheapest setting of a method that reaches `quality` on the first half; None where none does."""

    study: str
    name: str
    quality: float
    method: str
    point: Point | None


def grid(study: Study, quick: bool = False) -> list[tuple[str, Settings, bool]]:
    """The settings that are swept: method, its settings, and whether they are the paper's own."""
    step, training = study.local.step, study.local.max_steps
    out: list[tuple[str, Settings, bool]] = []

    def add(name: str, **settings: Any) -> None:
        out.append((name, settings, settings.pop("paper", False)))

    def rounds_of(count: int, share: float = 0.1) -> Settings:
        return {"rounds": count, "local_steps": max(1, round(share * training / count)), "step": step}

    add("meta_backward", paper=True)
    add("fedsgd", step=step)
    add("average")
    for target in ("match", "better", "best"):
        add("lean", target=target, training_steps=training, step=step)
    tenth: Settings = {"codec": TENTH, "feedback": False}
    for spec in (TENTH,) if quick else (FINE, TENTH):
        add("average", codec=spec)
    for count in (1, 9) if quick else (1, 4, 9, 19):
        add("fedavg", **rounds_of(count))
        for spec in (TENTH,) if quick else (THIRTIETH, TENTH):
            add("fedavg", **rounds_of(count), codec=spec, feedback=count <= 2)
    if quick:
        return out
    add("fedavg", **rounds_of(4), codec=FINE)
    add("fedavg", **rounds_of(9, 0.01), **tenth)
    add("meta_backward", codec=FINE)
    add("meta_backward", radius={"kind": "constant", "first": 1e-6})
    add("meta_backward", rounds=5)
    add("meta_backward", rounds=5, codec=TENTH)
    add("fedsgd", step=step, codec=TENTH, feedback=True)
    add("fedexp", **rounds_of(4))
    add("fedexp", **rounds_of(4), **tenth)
    add("fedavgm", **rounds_of(9))
    add("fedavgm", **rounds_of(9), **tenth)
    add("fisher")
    add("imaml")
    add("maml", inner_step=study.evaluation.step)
    return out


def sweep(
    study: Study,
    *,
    quick: bool = False,
    told: Callable[[str], None] = lambda text: None,
    done: Callable[[Point], None] = lambda point: None,
) -> list[Point]:
    """Run every setting of the grid over the study's seeds; `done` is handed each point when it is known."""
    seeds, e = list(study.seeds), study.evaluation
    if e.tasks < 2:
        raise InputError(f"evaluation.tasks must be at least 2, to choose on one half, got {e.tasks}.")
    model = study.model.build()
    agents, tasks, _ = study.family.build(seeds, e)
    told(f"{study.name}: local training of {len(agents)} agents, {len(seeds)} seeds")
    local = train_locally(model, agents, seed=seeds, **study.local.model_dump())
    metric = "accuracy" if model.loss_name == "cross_entropy" else "loss"
    points = []
    settings = grid(study, quick)
    for i, (name, given, paper) in enumerate(settings):
        built = method(name, **given)
        run = Simulation(built, model, agents, local, seed=seeds).run()
        result = adapt(model, run.meta, tasks, steps=[e.headline], step=e.step, optimiser=e.optimiser)
        values = getattr(result, metric)[..., 0]  # [seeds, tasks]
        bits = (run.uplink_bits, run.downlink_bits)
        points.append(_point(study, model, agents, built, (name, given, paper), bits, values))
        last = points[-1]
        done(last)
        told(
            f"{study.name} {i + 1}/{len(settings)}: {name} {last.setting or 'as it is'}: {metric} {last.reported:.4g}, "
            f"{last.uplink_bits_per_weight:.4g} bits per weight sent, {last.joules:.3g} J"
        )
    return points


def _point(
    study: Study,
    model: Model,
    agents: Agents,
    built: Method,
    entry: tuple[str, Settings, bool],
    bits: tuple[Values, Values],
    values: Values,
) -> Point:
    name, given, paper = entry
    radio = link(study.energy.link)
    good = ~np.isnan(values).all(1)
    half = values.shape[1] // 2
    statistic = np.median if study.evaluation.statistic == "median" else np.mean
    ratio = model.loss_name == "mse"
    chosen, reported, low, high = float("nan"), float("nan"), None, None
    if good.any():
        chosen, reported = float(statistic(values[good][:, :half])), float(statistic(values[good][:, half:]))
        low, high = interval(statistic(values[good][:, half:], axis=1), ratio=ratio)
    flops = method_flops(built, model, agents) / len(agents)
    return Point(
        study.name, name, describe(given), paper,
        float(bits[0].sum(1).mean()) / model.size,
        _joules(bits[0], radio.energy_joules), _received(bits[1], radio),
        device(study.energy.device).energy_joules(flops),
        chosen, reported, low, high, int((~good).sum()),
    )  # fmt: skip


def _joules(bits: Values, price: Callable[[float], float]) -> float:
    """Mean over seeds and agents of the sum over rounds [seeds, rounds + 1, agents]."""
    prices = {b: price(b) if b else 0.0 for b in np.unique(bits).tolist()}
    return float(np.vectorize(prices.__getitem__, otypes=[float])(bits).sum(1).mean())


def _received(bits: Values, radio: Link) -> float | None:
    try:
        return _joules(bits, radio.receive_joules)
    except InputError:
        return None


def describe(settings: Settings) -> str:
    """Settings in one line."""
    kept = {k: v for k, v in settings.items() if k not in ("step", "training_steps")}
    return ", ".join(f"{k} {v}" for k, v in kept.items())


def targets(points: list[Point], lower_is_better: bool) -> list[Target]:
    """The table joules-to-target: the quality of Meta-Backward at the paper's settings, a third of its loss or what
    50 rounds of FedSGD reach less 0.02, and the best single setting's; chosen on the first half of the tasks."""
    paper = next(p for p in points if p.paper)
    fedsgd = next(p for p in points if p.method == "fedsgd" and "codec" not in p.setting)
    wanted = {"Meta-Backward's": paper.chosen}
    if lower_is_better:
        wanted["a third of Meta-Backward's"] = paper.chosen / 3
    else:
        wanted["FedSGD's less 0.02"] = fedsgd.chosen - 0.02
    out = []
    for name, quality in wanted.items():
        for each in dict.fromkeys(p.method for p in points):
            reach = [p for p in points if p.method == each and _reaches(p.chosen, quality, lower_is_better)]
            best = min(reach, key=lambda p: p.joules) if reach else None
            out.append(Target(points[0].study, name, quality, each, best))
    return out


def _reaches(value: float, quality: float, lower_is_better: bool) -> bool:
    return value <= quality if lower_is_better else value >= quality


def pareto(points: Iterable[Point], lower_is_better: bool) -> list[Point]:
    """The settings that no cheaper one betters on the first half, by rising joules."""
    out: list[Point] = []
    for point in sorted(points, key=lambda p: p.joules):
        if np.isnan(point.chosen):
            continue
        if not out or (point.chosen < out[-1].chosen if lower_is_better else point.chosen > out[-1].chosen):
            out.append(point)
    return out


def write_tables(folder: Path, points: list[Point], reached: list[Target], on_frontier: set[int]) -> None:
    """frontier.csv and targets.csv; `on_frontier` are positions in `points`."""
    head = [
        "study", "method", "setting", "paper", "frontier", "uplink_bits_per_weight", "uplink_joules",
        "downlink_joules", "arithmetic_joules", "joules", "chosen", "reported", "low", "high", "diverged",
    ]  # fmt: skip
    rows = [
        [
            p.study, p.method, p.setting, int(p.paper), int(i in on_frontier), p.uplink_bits_per_weight,
            p.uplink_joules, p.downlink_joules, p.arithmetic_joules, p.joules, p.chosen, p.reported, p.low, p.high,
            p.diverged,
        ]
        for i, p in enumerate(points)
    ]  # fmt: skip
    _write(folder / "frontier.csv", head, rows)
    papers = {p.study: p for p in points if p.paper}
    head = ["study", "target", "quality", "method", "setting", "joules", "times_less_uplink", "reported", "low", "high"]
    rows = []
    for t in reached:
        p = t.point
        known: list[Any] = [None] * 6
        if p is not None:
            less = papers[t.study].uplink_joules / p.uplink_joules if p.uplink_joules else None
            known = [p.setting, p.joules, less, p.reported, p.low, p.high]
        rows.append([t.study, t.name, t.quality, t.method, *known])
    _write(folder / "targets.csv", head, rows)


def _write(path: Path, head: list[str], rows: list[list[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([[f"{v:.7g}" if isinstance(v, float) else v for v in row] for row in rows])
    write_atomically(path, text.getvalue().encode(), force=True)
