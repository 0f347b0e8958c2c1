"""The frontier of quality against joules: rounds x local steps x bits of every method on the paper's two studies.

    python bench/frontier.py [--out FOLDER] [--seeds N] [--quick] [--data-dir FOLDER] [--set KEY=VALUE]
    python bench/measure.py frontier        keeps the numbers, and makes README's picture and its words

From the built-in studies to tables and a picture in a folder. A setting is *chosen* on the first half of the new tasks
and *reported* on the second, so that the best of many settings is not flattered by the tasks that picked it.

    frontier.csv    study, method, setting, joules and bits of one agent, quality on both halves with its interval
    targets.csv     study, target, method: the cheapest setting that reaches the target on the first half, and what it
                    reaches on the second
    quality.svg     the picture, and quality.png
"""

import argparse
import csv
import io
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fewjoule.cli.options import named_values
from fewjoule.energy import Link, device, link
from fewjoule.errors import InputError
from fewjoule.files import use_compile_cache, write_atomically
from fewjoule.methods import method
from fewjoule.methods.method import Method
from fewjoule.models.model import Model
from fewjoule.simulation.simulate import Simulation
from fewjoule.simulation.work import method_flops
from fewjoule.studies.settings import Study, load_study
from fewjoule.studies.summary import interval
from fewjoule.tasks.samples import Agents
from fewjoule.training.adapt import adapt
from fewjoule.training.local import train_locally

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
    learning_rate, training = study.local.learning_rate, study.local.max_steps
    out: list[tuple[str, Settings, bool]] = []

    def add(name: str, **settings: Any) -> None:
        out.append((name, settings, settings.pop("paper", False)))

    def rounds_of(count: int, share: float = 0.1) -> Settings:
        return {"rounds": count, "local_steps": max(1, round(share * training / count)), "learning_rate": learning_rate}

    add("meta_backward", paper=True)
    add("fedsgd", learning_rate=learning_rate)
    add("average")
    for target in ("match", "better", "best"):
        add("lean", target=target, training_steps=training, learning_rate=learning_rate)
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
    add("fedsgd", learning_rate=learning_rate, codec=TENTH, feedback=True)
    add("fedexp", **rounds_of(4))
    add("fedexp", **rounds_of(4), **tenth)
    add("fedavgm", **rounds_of(9))
    add("fedavgm", **rounds_of(9), **tenth)
    add("fisher")
    add("imaml")
    add("maml", inner_learning_rate=study.evaluation.learning_rate)
    for entry in study.methods:  # what sends no weights, as the study has it
        if entry.method in ("answers", "invented"):
            add(entry.method, **entry.settings)
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
    model = study.build_model()
    agents, tasks, *_ = study.family.build(seeds, e)
    told(f"{study.name}: local training of {len(agents)} agents, {len(seeds)} seeds")
    local = train_locally(model, agents, seed=seeds, **study.local.model_dump())
    metric = "accuracy" if model.loss_name == "cross_entropy" else "loss"
    points = []
    settings = grid(study, quick)
    for i, (name, given, paper) in enumerate(settings):
        built = method(name, **given)
        run = Simulation(built, model, agents, local, seed=seeds).run()
        result = adapt(model, run.meta, tasks, steps=[e.headline], learning_rate=e.learning_rate, optimiser=e.optimiser)
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


def ceiling(study: Study) -> dict[str, float | None]:
    """What training on true new tasks reaches, on the half of the new tasks that is reported on; nobody can have it."""
    (entry,) = (m for m in study.methods if m.ceiling)
    model, e, seeds = study.build_model(), study.evaluation, list(study.seeds)
    agents, tasks = study.true_agents(entry.ceiling), study.family.build(seeds, e).tasks
    run = Simulation(entry.build(), model, agents, None, seed=seeds).run()
    result = adapt(model, run.meta, tasks, steps=[e.headline], learning_rate=e.learning_rate, optimiser=e.optimiser)
    values = (result.loss if model.loss_name == "mse" else result.accuracy)[..., 0]
    zero = np.zeros((len(seeds), 1, len(agents)), np.int64)
    point = _point(study, model, agents, method("random"), ("ceiling", {}, False), (zero, zero), values)
    return {"reported": point.reported, "low": point.low, "high": point.high}


def measure(name: str, *, seeds: int = SEEDS, data_dir: str | None = None) -> dict[str, Any]:
    """The frontier of one study as plain values, for the file of numbers."""
    folder = data_dir if name == "mnist" else None
    study = load_study(name, seeds=list(range(seeds)), data_dir=folder)
    points = sweep(study, told=lambda text: print(text, flush=True))
    return {
        "seeds": study.seeds, "tasks": study.evaluation.tasks, "points": [asdict(p) for p in points],
        "ceiling": ceiling(study),
    }  # fmt: skip


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
    kept = {k: v for k, v in settings.items() if k not in ("learning_rate", "training_steps")}
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


LABELS = {
    "meta_backward": "Meta-Backward", "lean": "lean", "fedavg": "FedAvg", "fedsgd": "FedSGD", "average": "average",
    "fedexp": "FedExP", "fedavgm": "FedAvgM", "fisher": "Fisher", "imaml": "iMAML", "fomaml": "FOMAML", "maml": "MAML",
    "answers": "answers", "invented": "invented tasks",
}  # fmt: skip
GROUPS = {
    "Meta-Backward": "#b32510", "lean": "#6b2fb3", "FedAvg and kin": "#139a5c", "one upload": "#1d2026",
    "MAML, iMAML": "#0966f1", "answers": "#b8860b",
}  # fmt: skip
SHAPES = ("diamond", "triangle-up", "circle", "cross", "square", "triangle-down")
GROUP_OF = {"meta_backward": 0, "lean": 1, "average": 3, "fisher": 3, "imaml": 4, "fomaml": 4, "maml": 4, "answers": 5}
WIDTH, HEIGHT, FONT = 390, 330, 10.5  # of a panel and its labels, pixels
PLACES = [(side, dy) for dy in (-7, 13, -19, 25) for side in ("left", "right")]
"""Where a label may stand: which of its ends is at its point, and pixels below the point; the first with room."""
QUICK_TASKS = 40


def frontier_studies(
    *, settings: dict[str, Any], seeds: list[int] | None, quick: bool, data_dir: str | None
) -> list[Study]:
    """Both studies, checked, with the same changes; ten seeds where nobody says otherwise."""
    out = []
    chosen = seeds if seeds is not None else list(range(2 if quick else SEEDS))
    for name in STUDIES:
        folder = data_dir if name == "mnist" else None
        tasks = {"evaluation.tasks": QUICK_TASKS} if quick else {}
        out.append(load_study(name, settings={**tasks, **settings}, seeds=chosen, data_dir=folder, quick=quick))
    return out


def frontier_folder(out: str | None) -> Path:
    """Create the folder: `out`, or the first free of runs/frontier, runs/frontier-2, ..."""
    taken, folder = 1, Path("runs/frontier") if out is None else Path(out)
    while out is None and folder.exists():
        taken += 1
        folder = Path(f"runs/frontier-{taken}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is not empty; choose another --out.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be written to ({error.strerror}); choose another --out.") from error
    return folder


def run_frontier(
    studies: list[Study], folder: Path, *, quick: bool = False, told: Callable[[str], None] = print
) -> tuple[list[Point], list[Target]]:
    """Sweep, choose, report and draw. A row is written as soon as it is known; the frontier when its study is done."""
    points: list[Point] = []
    reached: list[Target] = []
    best: set[int] = set()

    def keep(point: Point) -> None:
        points.append(point)
        write_tables(folder, points, reached, best)

    for study in studies:
        lower, before = study.model.loss == "mse", len(points)
        found = sweep(study, quick=quick, told=told, done=keep)
        front = pareto(found, lower)
        best |= {before + i for i, p in enumerate(found) if p in front}
        reached += targets(found, lower)
        write_tables(folder, points, reached, best)
    svg, png = picture(points, best, {s.name: s for s in studies})
    write_atomically(folder / "quality.svg", svg, force=True)
    write_atomically(folder / "quality.png", png, force=True)
    return points, reached


def said(reached: list[Target]) -> list[str]:
    """The table joules-to-target in lines of text."""
    lines = []
    for name in dict.fromkeys((t.study, t.name, t.quality) for t in reached):
        lines.append(f"{name[0]}, target {name[1]} ({name[2]:.4g} on the tasks it is chosen on):")
        rows = [t for t in reached if (t.study, t.name, t.quality) == name]
        for t in sorted(rows, key=lambda t: t.point.joules if t.point else float("inf")):
            if t.point is None:
                lines.append(f"  {LABELS[t.method]:14} not reached")
                continue
            p = t.point
            bounds = "" if p.low is None or p.high is None else f" [{p.low:.4g}, {p.high:.4g}]"
            lines.append(f"  {LABELS[t.method]:14} {p.joules:9.3g} J  {p.reported:.4g}{bounds}  {p.setting}")
    return lines


def picture(
    points: list[Point], best: set[int], studies: dict[str, Study], ceilings: dict[str, float] | None = None
) -> tuple[bytes, bytes]:
    """Quality against joules, a panel per study: every setting a point, the frontier a line; what costs no joules, and
    the ceiling where it is given, lines across. SVG and PNG."""
    import altair as alt
    import vl_convert

    from fewjoule.reporting.figures import smaller

    charts = []
    groups = list(GROUPS)
    colour = alt.Color("group:N", title=None, scale=alt.Scale(domain=groups, range=list(GROUPS.values())))
    shape = alt.Shape("group:N", title=None, scale=alt.Scale(domain=groups, range=list(SHAPES)))
    for name, study in studies.items():
        mine = [(i, p) for i, p in enumerate(points) if p.study == name and p.reported == p.reported]
        lower = study.model.loss == "mse"
        what = f"{study.evaluation.statistic} {'loss' if lower else 'accuracy'} after {study.evaluation.headline} steps"
        rows = _placed([_row(p, i in best) for i, p in mine if p.joules], lower)
        across = [{"reported": p.reported, "label": f"{LABELS[p.method]}: no joules"} for _, p in mine if not p.joules]
        if ceilings:
            across.append({"reported": ceilings[name], "label": "ceiling: trained on the truth"})
        scale: Any = alt.Scale(type="log", nice=False, padding=12) if lower else alt.Scale(zero=False)
        x = alt.X(
            "joules:Q",
            title="joules of one agent: radio and arithmetic",
            scale=alt.Scale(type="log", nice=False, padding=16),
        )
        y = alt.Y("reported:Q", title=what, scale=scale)
        base = alt.Chart(alt.InlineData(values=rows))
        line = base.transform_filter("datum.frontier").mark_line(
            color="#888", strokeWidth=1.2, interpolate="step-after"
        )
        bars = base.mark_rule(opacity=0.35).encode(
            x=x, y=alt.Y("low:Q", title=what, scale=scale), y2="high:Q", color=colour
        )
        dots = base.mark_point(filled=True, size=55, opacity=0.85).encode(x=x, y=y, color=colour, shape=shape)
        text = [
            base.transform_filter(f"datum.label != '' && datum.place == {i}")
            .mark_text(align=side, dx=7 if side == "left" else -7, dy=dy, fontSize=FONT)  # type: ignore[arg-type]
            .encode(x=x, y=y, text="label:N", color=colour)
            for i, (side, dy) in enumerate(PLACES)
        ]
        free = alt.Chart(alt.InlineData(values=across))
        rules = free.mark_rule(color="#666", strokeDash=[3, 3]).encode(y=y)
        notes = [  # what costs nothing on the left, where joules are few; the ceiling on the right
            free.transform_filter(f"{'' if side == 'left' else '!'}test(/no joules/, datum.label)")
            .mark_text(align=side, dy=-6, fontSize=FONT, color="#666")  # type: ignore[arg-type]
            .encode(x=alt.value(at), y=y, text="label:N")
            for side, at in (("left", 4), ("right", WIDTH - 4))
        ]
        layers = [*([rules] if across else []), line.encode(x=x, y=y), bars, dots, *text, *(notes if across else [])]
        charts.append(alt.layer(*layers).properties(width=WIDTH, height=HEIGHT, title=study.title or name))
    whole = alt.hconcat(*charts, background="white").configure_legend(orient="bottom")
    svg = vl_convert.vegalite_to_svg(whole.configure_axis(gridOpacity=0.4, tickCount=6).to_dict())
    return svg.encode(), smaller(vl_convert.svg_to_png(svg, scale=2))


def _row(p: Point, frontier: bool) -> dict[str, Any]:
    label = ""
    if p.paper:
        label = "Meta-Backward, the paper's"
    elif p.method == "lean":
        label = p.setting.replace("target ", "lean, ")
    elif not p.setting or (p.method in ("fedsgd", "maml", "answers") and "codec" not in p.setting):
        label = LABELS[p.method]
    low, high = (p.reported if p.low is None else p.low), (p.reported if p.high is None else p.high)
    group = list(GROUPS)[GROUP_OF.get(p.method, 2)]
    return {
        "joules": p.joules, "reported": p.reported, "low": low, "high": high, "group": group, "label": label,
        "frontier": frontier,
    }  # fmt: skip


def _placed(rows: list[dict[str, Any]], lower: bool) -> list[dict[str, Any]]:
    """The rows with a place for each label that hides no point and no other label, if there is one."""
    across = np.log([row["joules"] for row in rows])
    up = np.array([[row[k] for k in ("reported", "low", "high")] for row in rows])
    up = np.log(up) if lower else up
    x = (across - across.min()) / max(np.ptp(across), 1e-9) * WIDTH
    y = (up.max() - up[:, 0]) / max(np.ptp(up), 1e-9) * HEIGHT
    taken = [(px - 4, py - 4, px + 4, py + 4) for px, py in zip(x, y, strict=True)]
    out = []
    for row, px, py in zip(rows, x, y, strict=True):
        boxes: list[tuple[int, int, tuple[float, float, float, float]]] = []
        for side, dy in PLACES if row["label"] else ():
            left = px + 7 if side == "left" else px - 7 - 0.55 * FONT * len(row["label"])
            right = left + 0.55 * FONT * len(row["label"])
            box = (left, py + dy - FONT / 2, right, py + dy + FONT / 2)
            hidden = sum(box[0] < t[2] and t[0] < box[2] and box[1] < t[3] and t[1] < box[3] for t in taken)
            boxes.append((hidden + 10 * (left < 0 or right > WIDTH), len(boxes), box))
        place = min(boxes)[1] if boxes else 0
        taken += [boxes[place][2]] if boxes else []
        out.append(row | {"place": place})
    return sorted(out, key=lambda row: bool(row["group"] == "lean"))  # drawn last, over its neighbours


def main() -> None:
    parser = argparse.ArgumentParser(description="Sweep rounds, local steps and bits of every method on both studies.")
    parser.add_argument("--out")
    parser.add_argument("--seeds", type=int, help="how many (10)")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data-dir")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    asked = parser.parse_args()
    try:
        seeds = None if asked.seeds is None else list(range(asked.seeds))
        studies = frontier_studies(
            settings=named_values(asked.set), seeds=seeds, quick=asked.quick, data_dir=asked.data_dir
        )
        folder = frontier_folder(asked.out)
        use_compile_cache()
        _, reached = run_frontier(studies, folder, quick=asked.quick, told=lambda text: print(text, flush=True))
    except InputError as error:
        sys.exit(f"frontier: {error}")
    print("\n".join(said(reached)))
    print(f"tables and picture: {folder}")


if __name__ == "__main__":
    main()
