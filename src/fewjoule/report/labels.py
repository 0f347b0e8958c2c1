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


@dataclass(frozen=True)
class Room:
    """The plot in pixels, the padding of its scales, and the smallest and largest error on the upright scale."""

    width: float
    height: float
    padding: float
    errors: tuple[float, float]


def labels(points: alt.Chart, room: Room, opacity: Any) -> tuple[alt.Chart, alt.Chart, alt.Chart]:
    """Leaders, halos and texts for points with `joules`, `error` (both on logarithmic scales) and `label`."""
    pad, low, high = room.padding, *(math.log(error) for error in room.errors)
    across = f"(datum.lx - datum.lx0) / max(datum.lx1 - datum.lx0, 1e-9) * {room.width - 2 * pad} + {pad}"
    down = f"({high} - datum.ly) / {max(high - low, 1e-9)} * {room.height - 2 * pad} + {pad}"
    placed = (
        points.transform_calculate(lx="log(datum.joules)", ly="log(datum.error)")
        .transform_joinaggregate(lx0="min(lx)", lx1="max(lx)")
        .transform_calculate(px=across, py=down)
        .transform_window(before="lag(px)", sort=[{"field": "px"}])
        .transform_calculate(apart=f"isValid(datum.before) && datum.px - datum.before < {REACH} ? 0 : 1")
        .transform_window(cluster="sum(apart)", sort=[{"field": "px"}], frame=[None, 0])
        .transform_window(row="row_number()", groupby=["cluster"], sort=[{"field": "py"}, {"field": "label"}])
        .transform_calculate(head=f"datum.py - {LINE} * datum.row")
        .transform_window(
            lowest="max(head)", groupby=["cluster"], sort=[{"field": "py"}, {"field": "label"}], frame=[None, 0]
        )
        .transform_calculate(shift=f"datum.lowest + {LINE} * datum.row - datum.py")
        .transform_joinaggregate(lift="mean(shift)", groupby=["cluster"])
        .transform_calculate(at="datum.py + datum.shift - datum.lift")
    )
    x, y = alt.value(alt.ExprRef("datum.px")), alt.value(alt.ExprRef("datum.py"))
    leaders = placed.mark_rule(strokeWidth=0.8, color=variable("soft")).encode(
        x=x, y=y, x2=alt.value(alt.ExprRef("datum.px + 10")), y2=alt.value(alt.ExprRef("datum.at")), opacity=opacity
    )
    weight = alt.ExprRef("datum.best ? 'bold' : 'normal'")

    def text(**style: Any) -> alt.Chart:
        return placed.mark_text(align="left", baseline="middle", dx=12, fontSize=11, fontWeight=weight, **style).encode(
            x=x, y=alt.value(alt.ExprRef("datum.at")), text="label:N", opacity=opacity
        )

    halo = text(color=variable("ground"), stroke=variable("ground"), strokeWidth=4, strokeJoin="round")
    return leaders, halo, text(color=variable("ink"))
