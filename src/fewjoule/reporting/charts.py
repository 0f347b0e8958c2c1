"""The other pictures of a report: distribution, shares of joules, steps, and the diagnostics.

Each is a function of the width in pixels, so that the same one draws for a phone and for a desk, and is there only
where the run has its numbers. The words around them are in assets/charts.html.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fewjoule.energy.ledger import TRAINING
from fewjoule.reporting.cells import Array
from fewjoule.reporting.colours import FAMILIES, variable
from fewjoule.reporting.facts import Facts, finished
from fewjoule.reporting.run_folder import RunFolder, Summary
from fewjoule.reporting.svg import (
    SHAPES,
    Place,
    axis_x,
    axis_y,
    element,
    in_column,
    label_of,
    line_path,
    number_tick,
    picture,
    placed,
    room_of,
    scale_of,
    text,
)
from fewjoule.reporting.wording import drawable, joules_text

LAYOUTS = {"narrow": 350, "wide": 540}
ROW = 18
ROUNDS_SHOWN = 60
AGENT_COLOURS = ("imaml", "fedavg", "maml", "other", "adaptation", "pretraining")
DASHES = (None, "7 3", "2 2", "9 3 2 3", "14 4", "1 4")

Points = list[tuple[float, float]]


class Line(NamedTuple):
    """A line of a chart with its label at the end."""

    label: str
    colour: str
    dash: str | None
    points: Points


def distribution(summary: Summary, facts: list[Facts], width: int, alt_text: str) -> str:
    """Per method the middle 90 % of the new tasks (thin), the middle half (thick) and the median."""
    shown = [(f, q) for f in finished(facts) if (q := summary.numbers(f.name, summary.headline_steps)) is not None]
    log = summary.metric == "loss"
    cells = [[_positive(v, log) for v in (q.q05, q.q25, q.median, q.q75, q.q95)] for _, q in shown]
    top, left = 8, _names_width(width)
    bottom = top + ROW * len(shown)
    x = scale_of([v for row in cells for v in row if v is not None], left + 6, width - 12, log=log, room=0.02)
    said = number_tick if log else lambda value: f"{100 * value:.3g} %"
    title = f"{summary.metric} after {summary.headline_steps} steps, over {summary.tasks} new tasks"
    parts = [axis_x(x, top, bottom, said, title)]
    for i, ((f, _), row) in enumerate(zip(shown, cells, strict=True)):
        middle, colour = top + ROW * (i + 0.5), variable(FAMILIES[f.family].colour)
        parts.append(_name(f, left, middle, width))
        ends = [x(value) if value is not None else float(width - 4) for value in row]
        parts.append(element("line", x1=ends[0], x2=ends[4], y1=middle, y2=middle, stroke=colour, stroke_width=1.2))
        parts.append(element("line", x1=ends[1], x2=ends[3], y1=middle, y2=middle, stroke=colour, stroke_width=7))
        mark = {"stroke": variable("ground"), "stroke_width": 2.5}
        parts.append(element("line", x1=ends[2], x2=ends[2], y1=middle - 5, y2=middle + 5, **mark))
    return picture(width, bottom + 36, alt_text, *parts)


def shares(summary: Summary, facts: list[Facts], width: int, alt_text: str) -> str:
    """Per method how its joules divide between computation, uplink and downlink, and the sum in figures.

    page.js changes the bars and the sums with the link.
    """
    top, left, right = 24, _names_width(width), width - 66
    legend = sum(26 + room_of(phase) for phase in TRAINING)
    parts, at = [], float(min(left + 6, width - legend))
    for phase in TRAINING:
        parts.append(element("rect", x=at, y=6, width=10, height=10, fill=variable(phase)))
        parts.append(text(at + 14, 15, phase, fill="soft"))
        at += 26 + room_of(phase)
    for i, f in enumerate(facts):
        middle, start, whole = top + ROW * (i + 0.5), float(left + 6), f.joules()
        parts.append(_name(f, left, middle, width))
        for phase in TRAINING:
            wide = (right - left - 6) * f.joules([phase]) / whole if whole else 0.0
            bar = {"height": ROW - 5, "fill": variable(phase), "data_method": f.name, "data_bar": phase}
            parts.append(element("rect", x=start, y=middle - ROW / 2 + 2, width=wide, **bar))
            start += wide
        total: dict[str, Any] = {"text_anchor": "end", "data_method": f.name, "data_part": "total"}
        parts.append(text(width - 2, middle + 4, joules_text(whole), **total))
    return picture(width, top + ROW * len(facts) + 6, alt_text, *parts, data_chart="energy")


def steps(summary: Summary, facts: list[Facts], width: int, alt_text: str) -> str:
    """Quality against the number of fine-tuning steps, a line per method with its name at the end."""
    found = []
    for f in finished(facts):
        scores = [(i, summary.score(f.name, count)) for i, count in enumerate(summary.steps)]
        points = [(float(i), score) for i, score in scores if score is not None and (score > 0 or not _log(summary))]
        found.append(_line(f, facts, points))
    title = f"{summary.statistic} {summary.metric}"
    names = [str(count) for count in summary.steps]
    return _lines(found, width, alt_text, title, "fine-tuning steps", names=names, log=_log(summary))


def spread(folder: RunFolder, facts: list[Facts], width: int, alt_text: str) -> str:
    """Distance of the farthest agent from the agents' mean, by round."""
    found = [_line(f, facts, _trace(folder, f.name, "spread")) for f in facts if f.name in folder.trace]
    return _lines([each for each in found if each.points], width, alt_text, "farthest agent's distance", "round")


def radius(folder: RunFolder, facts: list[Facts], width: int, alt_text: str) -> str:
    """Meta-Backward only: the ball's radius, the farthest agent and the server's step."""
    wording = {"radius": "radius", "spread": "farthest agent", "step": "server's step"}
    of = [f for f in facts if f.name in folder.trace and _trace(folder, f.name, "radius")]
    found = [
        Line(words if f is of[0] else f"{words} ({f.label})", variable(colour), DASHES[i % len(DASHES)], points)
        for i, f in enumerate(of)
        for (column, words), colour in zip(wording.items(), ("meta-backward", "no-rounds", "imaml"), strict=True)
        if (points := _trace(folder, f.name, column))
    ]
    return _lines(found, width, alt_text, "distance between models", "round")


def paths(folder: RunFolder, facts: list[Facts], width: int, alt_text: str) -> str:
    """The agents' ways through the plane of the first two principal components, one panel per method."""
    known = {f.name: f for f in facts}
    ways = {name: each for name, each in folder.paths.items() if name in known and each}
    every = np.concatenate([points[:, 1:] for each in ways.values() for points in each.values()])
    agents = [agent for agent in dict.fromkeys(a for each in ways.values() for a in each) if agent]
    hues = {agent: variable(AGENT_COLOURS[i % len(AGENT_COLOURS)]) for i, agent in enumerate(agents)}
    hues[""] = variable("ink")
    columns = min(len(ways), 2 if width < 500 else 3)
    cell, parts, key = width / columns, [], 0.0
    for agent, colour in list(hues.items())[-7:]:
        words = drawable(agent)[:14] or "server"
        if key + 20 + room_of(words) < width:
            parts.append(element("path", d=SHAPES["circle"], fill=colour, transform=f"translate({key + 6:.1f},10)"))
            parts.append(text(key + 14, 14, words, fill="soft"))
        key += 24 + room_of(words)
    for i, (name, each) in enumerate(ways.items()):
        left, top = cell * (i % columns), 24 + (cell + 18) * (i // columns)
        parts.append(text(left + 4, top + 12, known[name].label))
        x = scale_of(every[:, 0], left + 6, left + cell - 8, log=False)
        y = scale_of(every[:, 1], top + cell + 8, top + 22, log=False)
        for agent, points in each.items():
            way = [(x(float(a)), y(float(b))) for _, a, b in _thinned(points, before=1)]
            hue = hues[agent]
            parts.append(element("path", d=line_path(way), fill="none", stroke=hue, stroke_width=1.5))
            for shape, (a, b) in (("circle", way[0]), ("cross", way[-1])):
                place = f"translate({a:.1f},{b:.1f}) scale(.7)"
                parts.append(element("path", d=SHAPES[shape], fill=hue, transform=place))
    rows = math.ceil(len(ways) / columns)
    return picture(width, 24 + rows * (cell + 18), alt_text, *parts)


def charts(folder: RunFolder, facts: list[Facts]) -> dict[str, Callable[[int, str], str]]:
    """Every chart for which the run has numbers: functions of the width and the words that stand for the picture."""
    summary = folder.summary
    balls = any(_trace(folder, f.name, "radius") for f in facts if f.name in folder.trace)
    moved = any(_trace(folder, f.name, "spread") for f in facts if f.name in folder.trace)
    found: dict[str, tuple[bool, Callable[[int, str], str]]] = {
        "distribution": (bool(finished(facts)), lambda width, words: distribution(summary, facts, width, words)),
        "energy": (True, lambda width, words: shares(summary, facts, width, words)),
        "steps": (bool(finished(facts)), lambda width, words: steps(summary, facts, width, words)),
        "spread": (moved, lambda width, words: spread(folder, facts, width, words)),
        "radius": (balls, lambda width, words: radius(folder, facts, width, words)),
        "paths": (any(folder.paths.values()), lambda width, words: paths(folder, facts, width, words)),
    }
    return {name: draw for name, (there, draw) in found.items() if there}


def _lines(
    lines: Sequence[Line], width: int, alt_text: str, title: str, across: str, *, names: list[str] | None = None,
    log: bool = True,
) -> str:  # fmt: skip
    """Lines with their names at the right; with `names` the places across are 0, 1, ... and called so."""
    left, top, height = 44, 26, 300
    most = 16 if width < 500 else 24
    right = width - round(room_of("x" * min(most, max(len(line.label) for line in lines)))) - 14
    values = [y for line in lines for _, y in line.points]
    y = scale_of(values, height - 38, top, log=log)
    said = number_tick if log else lambda value: f"{100 * value:.3g} %"
    x = scale_of([at for line in lines for at, _ in line.points], left, right, log=names is None, room=0.01)
    parts = [axis_y(y, left, right, said, title)]
    if names is None:
        parts.append(axis_x(x, top, height - 38, number_tick, across))
    else:
        parts += [text(x(i), height - 24, name, fill="soft", text_anchor="middle") for i, name in enumerate(names)]
        parts.append(text(right, height - 8, across, fill="soft", text_anchor="end"))
    ends = []
    for line in lines:
        points = [(x(at), y(value)) for at, value in line.points]
        style = {"fill": "none", "stroke": line.colour, "stroke_width": 1.7, "stroke_dasharray": line.dash}
        parts.append(element("path", d=line_path(points), **style))
        ends.append((*points[-1], line.label if len(line.label) <= most else line.label[: most - 1] + "…"))
    places = placed(ends, math.inf, top - 8, height - 20)
    if len({at for at, _, _ in ends}) == 1:
        column = in_column([height_ for _, height_, _ in ends], top - 8, height - 20)
        places = [Place(ends[0][0] + 10, down, left=False) for down in column]
    for (at, height_, words), place in zip(ends, places, strict=True):
        parts.append(label_of(at, height_, place, words))
    return picture(width, height, alt_text, *parts)


def _line(f: Facts, facts: list[Facts], points: Points) -> Line:
    family = [other.name for other in facts if other.family == f.family]
    dash = DASHES[family.index(f.name) % len(DASHES)]
    return Line(f.short, variable(FAMILIES[f.family].colour), dash, points)


def _log(summary: Summary) -> bool:
    return summary.metric == "loss"


def _positive(value: float | None, log: bool) -> float | None:
    return None if value is None else max(value, 1e-9) if log else value


def _names_width(width: int) -> int:
    return 118 if width < 500 else 176


def _name(f: Facts, left: float, middle: float, width: int) -> str:
    most = 18 if width < 500 else 27
    words = f.short if len(f.short) <= most else f.short[: most - 1] + "…"
    return text(left, middle + 4, words, text_anchor="end")


def _trace(folder: RunFolder, name: str, column: str) -> Points:
    rows = np.stack([folder.trace[name]["round"], folder.trace[name][column]], axis=1)
    return [(float(at), float(value)) for at, value in _thinned(rows[np.isfinite(rows[:, 1]) & (rows[:, 1] > 0)])]


def _thinned(rows: Array, before: int = 0) -> Array:
    """Some of many rounds, evenly on the logarithmic axis they are drawn on, and all rows `before` the first round."""
    if len(rows) <= ROUNDS_SHOWN:
        return rows
    rounds = np.unique(np.geomspace(1, len(rows) - before, ROUNDS_SHOWN).round().astype(int))
    return rows[[*range(before), *(rounds + before - 1)]]


def captions(summary: Summary) -> dict[str, dict[str, Any]]:
    """Title and caption of each chart."""
    better = "left" if summary.metric == "loss" else "right"
    return {
        "distribution": {
            "title": "How it spreads over new tasks",
            "caption": f"Thin: the middle 90 % of {summary.tasks} new tasks; thick: the middle half; gap: the median. "
            f"Further {better} is better.",
        },
        "energy": {
            "title": "Where the joules go",
            "caption": "Shares of each method’s joules, and their sum. Pretraining and the server are in the table.",
        },
        "steps": {
            "title": "How many steps it takes",
            "caption": f"{summary.statistic.capitalize()} {summary.metric} over the new tasks after each number of "
            "fine-tuning steps (measured).",
        },
        "spread": {
            "title": "How far apart the agents are",
            "caption": "Distance of the farthest agent’s model from the agents’ mean after each round (median over "
            "seeds).",
        },
        "radius": {
            "title": "Meta-Backward’s ball",
            "caption": "Radius of the projection’s ball, distance of the farthest agent, step of the server (medians "
            "over seeds).",
        },
        "paths": {
            "title": "The agents’ paths",
            "caption": "From each agent’s own model (circle) to its last (cross), in the plane of the first two "
            "principal components; first seed.",
        },
    }
