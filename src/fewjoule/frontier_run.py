"""`fewjoule run frontier`: sweep both studies, write the tables, the picture and a page of text.

The folder has frontier.csv and targets.csv (see `fewjoule.frontier`), quality.svg and quality.png.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fewjoule.errors import InputError
from fewjoule.frontier import SEEDS, STUDIES, Point, Target, pareto, sweep, targets, write_tables
from fewjoule.study import Study, load_study
from fewjoule.writing import write_atomically

LABELS = {
    "meta_backward": "Meta-Backward", "lean": "lean", "fedavg": "FedAvg", "fedsgd": "FedSGD", "average": "average",
    "fedexp": "FedExP", "fedavgm": "FedAvgM", "fisher": "Fisher", "imaml": "iMAML", "fomaml": "FOMAML", "maml": "MAML",
}  # fmt: skip
GROUPS = {
    "Meta-Backward": "#b32510", "lean": "#6b2fb3", "FedAvg and kin": "#139a5c", "one upload": "#1d2026",
    "MAML, iMAML": "#0966f1",
}  # fmt: skip
SHAPES = ("diamond", "triangle-up", "circle", "cross", "square")
GROUP_OF = {"meta_backward": 0, "lean": 1, "average": 3, "fisher": 3, "imaml": 4, "fomaml": 4, "maml": 4}
WIDTH, HEIGHT, FONT = 390, 330, 10.5  # of a panel and its labels, pixels
PLACES = [(side, dy) for dy in (-7, 13, -19, 25) for side in ("left", "right")]
"""Where a label may stand: which of its ends is at its point, and pixels below the point; the first with room."""
QUICK_TASKS = 40


def frontier_studies(
    *, overrides: list[str], seeds: list[int] | None, quick: bool, data_dir: str | None
) -> list[Study]:
    """Both studies, checked, with the same changes; ten seeds where nobody says otherwise."""
    out = []
    chosen = seeds if seeds is not None else list(range(2 if quick else SEEDS))
    for name in STUDIES:
        folder = data_dir if name == "mnist" else None
        tasks = [f"evaluation.tasks={QUICK_TASKS}"] if quick else []
        out.append(load_study(name, overrides=[*tasks, *overrides], seeds=chosen, data_dir=folder, quick=quick))
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


def picture(points: list[Point], best: set[int], studies: dict[str, Study]) -> tuple[bytes, bytes]:
    """Quality against joules, a panel per study: every setting a point, the frontier a line. SVG and PNG."""
    import altair as alt
    import vl_convert

    from fewjoule.report.figures import smaller

    charts = []
    groups = list(GROUPS)
    colour = alt.Color("group:N", title=None, scale=alt.Scale(domain=groups, range=list(GROUPS.values())))
    shape = alt.Shape("group:N", title=None, scale=alt.Scale(domain=groups, range=list(SHAPES)))
    for name, study in studies.items():
        mine = [(i, p) for i, p in enumerate(points) if p.study == name and p.reported == p.reported]
        lower = study.model.loss == "mse"
        what = f"{study.evaluation.statistic} {'loss' if lower else 'accuracy'} after {study.evaluation.headline} steps"
        rows = _placed([_row(p, i in best) for i, p in mine], lower)
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
        charts.append(
            alt.layer(line.encode(x=x, y=y), bars, dots, *text).properties(
                width=WIDTH, height=HEIGHT, title=study.title or name
            )
        )
    whole = alt.hconcat(*charts, background="white").configure_legend(orient="bottom")
    svg = vl_convert.vegalite_to_svg(whole.configure_axis(gridOpacity=0.4, tickCount=6).to_dict())
    return svg.encode(), smaller(vl_convert.svg_to_png(svg, scale=2))


def _row(p: Point, frontier: bool) -> dict[str, Any]:
    label = ""
    if p.paper:
        label = "Meta-Backward, the paper's"
    elif p.method == "lean":
        label = p.setting.replace("target ", "lean, ")
    elif not p.setting or (p.method in ("fedsgd", "maml") and "codec" not in p.setting):
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
