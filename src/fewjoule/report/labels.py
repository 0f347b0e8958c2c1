"""Labels beside points, moved apart so that none covers another, and leaders from each point to its label.

All of it is Vega-Lite transforms, so that figures and page place labels alike, also while a slider moves the points.
Points whose labels could meet form a cluster. In a cluster, from the top down, a label stands at its point or one line
below the label above it, whichever is lower: with y_i the points' heights and h the height of a line, label i is at
max over j <= i of (y_j + (i - j) h) = i h + max over j <= i of (y_j - j h), a running maximum. Then the whole cluster
moves up by the mean of the shifts, so that the labels stay around their points.
"""

import math
from dataclasses import dataclass
from typing import Any

import altair as alt

from fewjoule.report.colours import variable

LINE = 14
REACH = 105
"""Pixels to the right of a point within which another point's label could be met."""

HALO = {"color": variable("ground"), "stroke": variable("ground"), "strokeWidth": 6, "strokeJoin": "round"}
"""The same text under a text, wide and in the colour of the ground, so that no line strikes it through."""


@dataclass(frozen=True)
class Room:
    """The plot in pixels, the padding of its scales, the smallest and largest error, and the longest label."""

    width: float
    height: float
    padding: float
    errors: tuple[float, float]
    longest: float


def labels(points: alt.Chart, room: Room, opacity: Any) -> tuple[alt.Chart, alt.Chart, alt.Chart]:
    """Leaders, halos and texts for points with `joules`, `error` (both on logarithmic scales) and `label`."""
    pad, low, high = room.padding, *(math.log(error) for error in room.errors)
    across = f"(datum.lx - datum.lx0) / max(datum.lx1 - datum.lx0, 1e-9) * {room.width - 2 * pad} + {pad}"
    down = f"({high} - datum.ly) / {max(high - low, 1e-9)} * {room.height - 2 * pad} + {pad}"
    downwards = [{"field": "py"}, {"field": "label"}]
    placed = points.properties(
        transform=[
            _calculate("lx", "log(datum.joules)"),
            _calculate("ly", "log(datum.error)"),
            _join([("min", "lx", "lx0"), ("max", "lx", "lx1")]),
            _calculate("px", across),
            _calculate("py", down),
            _window("lag", "px", "before", [{"field": "px"}]),
            _calculate("apart", f"isValid(datum.before) && datum.px - datum.before < {REACH} ? 0 : 1"),
            _window("sum", "apart", "cluster", [{"field": "px"}]),
            _window("row_number", None, "row", downwards, "cluster"),
            _calculate("head", f"datum.py - {LINE} * datum.row"),
            _window("max", "head", "lowest", downwards, "cluster"),
            _calculate("shift", f"datum.lowest + {LINE} * datum.row - datum.py"),
            _join([("mean", "shift", "lift")], "cluster"),
            _calculate("at", "datum.py + datum.shift - datum.lift"),
        ]
    )
    x, y = alt.value(alt.ExprRef("datum.px")), alt.value(alt.ExprRef("datum.py"))
    leaders = placed.mark_rule(strokeWidth=0.8, color=variable("soft")).encode(
        x=x, y=y, x2=alt.value(alt.ExprRef("datum.px + 10")), y2=alt.value(alt.ExprRef("datum.at")), opacity=opacity
    )
    weight = alt.ExprRef("datum.best ? 'bold' : 'normal'")

    def text(**style: Any) -> alt.Chart:
        mark = placed.mark_text(
            align="left", baseline="middle", dx=12, fontSize=11, fontWeight=weight, limit=room.longest, **style
        )
        return mark.encode(x=x, y=alt.value(alt.ExprRef("datum.at")), text="label:N", opacity=opacity)

    return leaders, text(**HALO), text(color=variable("ink"))


def _calculate(name: str, expression: str) -> dict[str, Any]:
    return {"calculate": expression, "as": name}


def _join(fields: list[tuple[str, str, str]], group: str | None = None) -> dict[str, Any]:
    found = {"joinaggregate": [{"op": op, "field": field, "as": name} for op, field, name in fields]}
    return found | ({"groupby": [group]} if group else {})


def _window(
    op: str, field: str | None, name: str, sort: list[dict[str, str]], group: str | None = None
) -> dict[str, Any]:
    """A running value over the rows up to this one."""
    what = {"op": op, "as": name} | ({"field": field} if field else {})
    found: dict[str, Any] = {"window": [what], "sort": sort, "frame": [None, 0]}
    return found | ({"groupby": [group]} if group else {})
