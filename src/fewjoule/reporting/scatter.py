"""Quality against joules: every method a point with its label, the frontier, and what costs nothing.

Labels are moved apart so that none covers another, with leaders from each point to its label. All of it is Vega-Lite
transforms, so that figures and page place labels alike, also while a slider moves the points. Points whose labels could
meet form a cluster. In a cluster, from the top down, a label stands at its point or one line below the label above it,
whichever is lower: with y_i the points' heights and h the height of a line, label i is at
max over j <= i of (y_j + (i - j) h) = i h + max over j <= i of (y_j - j h), a running maximum. Then the whole cluster
moves up by the mean of the shifts, so that the labels stay around their points.
"""

import math
from typing import Any

import altair as alt

from fewjoule.reporting.axes import Layout, family_colours, legend, log, named, present, tooltips
from fewjoule.reporting.colours import FAMILIES, variable
from fewjoule.reporting.datasets import Rows
from fewjoule.reporting.facts import error_name
from fewjoule.reporting.run_folder import Summary

PADDING = 16
LINE = 14
REACH = 105
"""Pixels to the right of a point within which another point's label could be met."""

HALO = {"color": variable("ground"), "stroke": variable("ground"), "strokeWidth": 6, "strokeJoin": "round"}
"""The same text under a text, wide and in the colour of the ground, so that no line strikes it through."""


def quality_against_joules(summary: Summary, data: dict[str, Rows], layout: Layout) -> alt.TopLevelMixin:
    """Every method as a labelled point; the frontier as steps; methods that cost nothing as lines across."""
    families = present(data["points"] + data["free"], "family", FAMILIES)
    errors = [row[k] for row in data["points"] or data["free"] for k in ("low", "high", "error") if k in row]
    low, high = min(errors), max(errors)
    right, height = (150, 360) if layout.narrow else (180, 430)  # labels stand to the right of their points
    width = layout.width - right
    title = f"{summary.statistic} {error_name(summary)} after {summary.headline_steps} steps"
    scale: dict[str, Any] = {"nice": False, "padding": PADDING}
    x = log(alt.X, "joules", "joules of the training, all agents, without pretraining", "J", **scale)
    y = log(alt.Y, "error", title, **scale, domain=[low, high])
    colour = named(alt.Color, "family", family_colours(families), legend=legend(layout))
    shape = named(alt.Shape, "family", {name: FAMILIES[name].shape for name in families})
    pick = alt.selection_point(name="pick", fields=["family"], bind="legend")
    faint = alt.condition(pick, alt.value(1), alt.value(0.15))
    quality = f"{summary.statistic} {summary.metric}"
    shown = tooltips({"label:N": "method", "quality:N": quality, "spent:N": "joules"})
    stairs: dict[str, Any] = {"interpolate": "step-after", "strokeWidth": 1.5, "strokeDash": [5, 4]}
    frontier = alt.Chart(alt.NamedData("frontier")).mark_line(**stairs, color=variable("soft")).encode(x=x, y=y)
    points = alt.Chart(alt.NamedData("points"))
    marks = points.mark_point(filled=True, size=110, opacity=1)
    marks = marks.encode(x=x, y=y, color=colour, shape=shape, opacity=faint, tooltip=shown).add_params(pick)
    leaders, halos, texts = _labels(_placed(points, width, height, low, high), 110 if layout.narrow else 160, faint)
    layers: list[Any] = [frontier, leaders, halos, marks, texts]  # a halo must not hide another method's point
    if any("low" in row for row in data["points"]):
        bars = points.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.5, opacity=0.5)
        layers.insert(1, bars.encode(x=x, color=colour, y=alt.Y("low:Q", title=title), y2=alt.Y2("high:Q")))
    if data["free"]:
        free = alt.Chart(alt.NamedData("free"))
        inside = f"datum.error >= {low} && datum.error <= {high}"
        across = free.transform_filter(inside).mark_rule(strokeDash=[2, 3])
        layers.insert(0, across.encode(y=y, color=colour, tooltip=shown))  # under the halos, so that no label is struck
        note = free.transform_calculate(text="datum.label + ' (0 J): ' + datum.drawn")
        at = _pixels(f"clamp(scale('y', datum.error) - 7, -6, {height - 8})")
        layers += _haloed(note, "soft", {"y": at, "text": "text:N"}, x=6)
    return alt.layer(*layers).properties(width=width, height=height)


def _placed(points: alt.Chart, width: int, height: int, lowest: float, highest: float) -> alt.Chart:
    """Points with `joules` and `error` on logarithmic scales, each with its pixels `px`, `py` and its label's `at`."""
    low, high = math.log(lowest), math.log(highest)
    across = f"(datum.lx - datum.lx0) / max(datum.lx1 - datum.lx0, 1e-9) * {width - 2 * PADDING} + {PADDING}"
    down = f"({high} - datum.ly) / {max(high - low, 1e-9)} * {height - 2 * PADDING} + {PADDING}"

    def running(found: alt.Chart, sort: list[str], groups: Any = alt.Undefined, **values: Any) -> alt.Chart:
        """A value over the rows up to this one."""
        by: list[Any] = [alt.SortField(field) for field in sort]
        return found.transform_window(sort=by, frame=[None, 0], groupby=groups, **values)

    found = points.transform_calculate(lx="log(datum.joules)", ly="log(datum.error)")
    found = found.transform_joinaggregate(lx0="min(lx)", lx1="max(lx)").transform_calculate(px=across, py=down)
    found = running(found, ["px"], before="lag(px)")
    found = found.transform_calculate(apart=f"isValid(datum.before) && datum.px - datum.before < {REACH} ? 0 : 1")
    found = running(found, ["px"], cluster="sum(apart)")
    found = running(found, ["py", "label"], ["cluster"], row="row_number()")
    found = found.transform_calculate(head=f"datum.py - {LINE} * datum.row")
    found = running(found, ["py", "label"], ["cluster"], lowest="max(head)")
    found = found.transform_calculate(shift=f"datum.lowest + {LINE} * datum.row - datum.py")
    found = found.transform_joinaggregate(lift="mean(shift)", groupby=["cluster"])
    return found.transform_calculate(at="datum.py + datum.shift - datum.lift")


def _labels(placed: alt.Chart, longest: int, opacity: Any) -> list[alt.Chart]:
    """Leaders, halos and texts."""
    x, y, at = _pixels("datum.px"), _pixels("datum.py"), _pixels("datum.at")
    leaders = placed.mark_rule(strokeWidth=0.8, color=variable("soft"))
    leaders = leaders.encode(x=x, y=y, x2=_pixels("datum.px + 10"), y2=at, opacity=opacity)
    style = {"baseline": "middle", "dx": 12, "fontWeight": alt.ExprRef("datum.best ? 'bold' : 'normal'")}
    place = {"x": x, "y": at, "text": "label:N", "opacity": opacity}
    return [leaders, *_haloed(placed, "ink", place, limit=longest, **style)]


def _haloed(chart: alt.Chart, colour: str, place: dict[str, Any], **style: Any) -> list[alt.Chart]:
    """A text above its halo."""
    texts = (
        chart.mark_text(align="left", fontSize=11, **style, **each) for each in (HALO, {"color": variable(colour)})
    )
    return [text.encode(**place) for text in texts]


def _pixels(expression: str) -> Any:
    """A place in the plot that an expression gives."""
    return alt.value(alt.ExprRef(expression))
