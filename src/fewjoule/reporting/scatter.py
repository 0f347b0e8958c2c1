"""Quality against joules: every method a labelled point, the frontier as steps.

Heights are of the run and stay; what depends on the link (places across, joules, frontier) is in the group `moving`,
which page.js draws again by the same rules for another link. What costs nothing stands in a column of its own, since a
logarithmic axis has no 0.
"""

from collections.abc import Sequence
from typing import Any

from fewjoule.reporting.colours import FAMILIES, variable
from fewjoule.reporting.facts import Facts, error_of, finished, on_frontier
from fewjoule.reporting.run_folder import Summary
from fewjoule.reporting.svg import (
    SHAPES,
    Scale,
    axis_x,
    axis_y,
    element,
    joules_tick,
    label_of,
    line_path,
    number_tick,
    picture,
    placed,
    scale_of,
    text,
)
from fewjoule.reporting.wording import joules_text

LAYOUTS = {"narrow": (350, 330), "wide": (740, 430)}
LEFT, TOP, RIGHT, BOTTOM = 44, 26, 10, 38
"""Margins around the plot, in pixels."""
FREE = 26
"""Pixels from the left edge of the plot to the column of what costs nothing, and again to the axis."""
BEYOND = 1.6
"""How far an interval may reach beyond the best and the worst point, as a factor; longer ones are cut."""
LABEL = {"narrow": 20, "wide": 34}
"""Characters of a label."""


def scatter(summary: Summary, facts: list[Facts], layout: str, alt_text: str) -> str:
    """The whole picture on the run's link."""
    width, height = LAYOUTS[layout]
    shown, best = finished(facts), set(on_frontier(facts))
    at = heights(summary, facts, layout)
    across = scale_of([f.joules() for f in shown], *_ends(width, any(not f.joules() for f in shown)))
    y = _scale(summary, facts, layout)
    said = number_tick if summary.metric == "loss" else lambda error: f"{100 * (1 - error):.3g} %"
    title = f"{summary.statistic} {summary.metric} after {summary.headline_steps} steps"
    fixed = axis_y(y, LEFT, width - RIGHT, said, title)
    for f in shown:
        if f.is_control and f.summary.method != "random":
            ends = {"x1": LEFT + FREE, "x2": width - RIGHT, "y1": at[f.name][0], "y2": at[f.name][0]}
            fixed += element("line", **ends, stroke=variable("soft"), stroke_dasharray="1 4", class_="control")
    bottom = height - BOTTOM
    moving = [axis_x(across, TOP, bottom, joules_tick, "joules per run, all agents, without pretraining")]
    if any(not f.joules() for f in shown):
        moving.append(text(LEFT + FREE, bottom + 14, "0 J", fill="soft", text_anchor="middle"))
    places = {f.name: (across(f.joules()) if f.joules() else float(LEFT + FREE), at[f.name][0]) for f in shown}
    steps = [places[name] for name in on_frontier(facts) if places[name][0] > LEFT + FREE]
    moving.append(_stairs(steps))
    for f in shown:
        x, (_, low, high) = places[f.name][0], at[f.name]
        if low is not None:
            bar = {"stroke": _colour(f), "stroke_width": 1.5, "opacity": 0.5}
            moving.append(element("line", x1=x, x2=x, y1=low, y2=high, **bar))
    for f in shown:
        moving.append(_marker(f, *places[f.name]))
    labels = [(*places[f.name], _label(f, layout)) for f in shown]
    spots = placed(labels, width - 2, TOP - 8, bottom, LEFT)
    for f, (x, height_, words), place in zip(shown, labels, spots, strict=True):
        bold = "bold" if f.name in best else None
        moving.append(label_of(x, height_, place, words, font_weight=bold, data_label=f.name))
    kept = {"data_chart": "quality", "data_layout": layout}
    parts = (element("g", fixed), element("g", *moving, class_="moving"))
    return picture(width, height, alt_text, *parts, **kept)


def of_page(summary: Summary, facts: list[Facts]) -> dict[str, Any]:
    """What page.js needs to draw the group `moving` again: margins, heights, shapes."""
    return {
        "layouts": {
            name: {
                "width": width,
                "height": height,
                "at": heights(summary, facts, name),
                "labels": {f.name: _label(f, name) for f in finished(facts)},
            }
            for name, (width, height) in LAYOUTS.items()
        },
        "margins": {"left": LEFT, "top": TOP, "right": RIGHT, "bottom": BOTTOM, "free": FREE},
        "looks": {f.name: [_colour(f), SHAPES[FAMILIES[f.family].shape]] for f in finished(facts)},
    }


def heights(summary: Summary, facts: list[Facts], layout: str) -> dict[str, tuple[float, float | None, float | None]]:
    """The place down of every method that finished, and of the ends of its interval, to a tenth of a pixel."""
    y, found = _scale(summary, facts, layout), {}
    for f in finished(facts):
        ends = sorted(error_of(summary, end) for end in (f.low, f.high) if end is not None)
        low, high = (round(y(min(max(end, y.low), y.high)), 1) for end in ends) if len(ends) == 2 else (None, None)
        found[f.name] = (round(y(f.error), 1) if f.error is not None else 0.0, low, high)
    return found


def _scale(summary: Summary, facts: Sequence[Facts], layout: str) -> Scale:
    """Errors on a logarithmic axis; a loss falls downwards, an accuracy rises upwards."""
    errors = [f.error for f in facts if f.error is not None]
    ends = [error_of(summary, end) for f in facts for end in (f.low, f.high) if end is not None]
    near = [min(max(end, min(errors) / BEYOND), max(errors) * BEYOND) for end in ends]
    top, bottom = TOP, LAYOUTS[layout][1] - BOTTOM
    start, end = (bottom, top) if summary.metric == "loss" else (top, bottom)
    return scale_of([*errors, *near], start, end)


def _ends(width: int, free: bool) -> tuple[float, float]:
    return LEFT + (2 * FREE if free else 0), width - RIGHT


def _stairs(places: list[tuple[float, float]]) -> str:
    """From each method of the frontier across to the next, then down or up to it."""
    points = [corner for i, (x, y) in enumerate(places) for corner in ([(x, places[i - 1][1])] * (i > 0) + [(x, y)])]
    style = {"fill": "none", "stroke": variable("soft"), "stroke_width": 1.3, "stroke_dasharray": "5 4"}
    return element("path", d=line_path(points), **style, class_="frontier") if points else ""


def _marker(f: Facts, x: float, y: float) -> str:
    said = element("title", f"{_plain(f.label)}: {f.quality_text} for {joules_text(f.joules())}")
    shape = element("path", said, d=SHAPES[FAMILIES[f.family].shape], fill=_colour(f))
    return element("g", shape, class_="point", data_method=f.name, transform=f"translate({x:.1f},{y:.1f})")


def _plain(words: str) -> str:
    return words.replace("&", "&amp;").replace("<", "&lt;")


def _colour(f: Facts) -> str:
    return variable(FAMILIES[f.family].colour)


def _label(f: Facts, layout: str) -> str:
    return f.short if len(f.short) <= LABEL[layout] else f.short[: LABEL[layout] - 1] + "…"
