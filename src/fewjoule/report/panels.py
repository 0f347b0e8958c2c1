"""Small multiples: one panel per family of methods, each with its own key above it.

In a panel the family has one colour and each of its methods a dash of its own; two thin lines, the average and
Meta-Backward, return in every panel, so that every method is seen beside them.
"""

import math
from dataclasses import dataclass
from typing import Any

import altair as alt

from fewjoule.report.colours import FAMILY_VARIABLES, variable
from fewjoule.report.datasets import Rows

DASHES = [[1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [14, 4], [1, 4], [5, 2, 1, 2, 1, 2]]
KEY_LINE = 15


@dataclass(frozen=True)
class Axis:
    """One axis of all panels; `values` places these numbers at equal distances instead."""

    title: str
    log: bool = False
    domain: tuple[float, float] | None = None
    values: tuple[float, ...] = ()


def log_axis(scale: str, unit: str | None = None) -> alt.Axis:
    """A logarithmic axis: powers of ten are labelled, 2 and 5 too below two decades, every tick below one."""
    decades = f"abs(log(domain('{scale}')[1] / domain('{scale}')[0])) / LN10"
    lead = "round(datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9)))"
    plain = "(datum.value >= 1e-3 && datum.value < 1e4 ? format(datum.value, '~r') : format(datum.value, '.0e'))"
    if unit == "s":  # nobody says kiloseconds
        plain = "(datum.value < 1 ? format(datum.value, '~s') : format(datum.value, ',')) + 's'"
        plain = f"replace({plain}, /([a-zµ]?)s$/, ' $1s')"
    text = plain if unit in (None, "s") else f"replace(format(datum.value, '~s'), /([a-zµ]?)$/i, ' $1{unit}')"
    shown = f"({decades} < 1 || {lead} == 1 || ({decades} < 2 && ({lead} == 2 || {lead} == 5)))"
    return alt.Axis(
        labelExpr=f"{shown} ? {text} : ''",
        labelOverlap="greedy",
        labelSeparation=4,
        gridOpacity=alt.condition(f"{lead} == 1", alt.value(1), alt.value(0.35)),
    )


def panels(
    dataset: str, x: Axis, y: Axis, rows: Rows, width: int, columns: int, *, points: bool = False
) -> alt.TopLevelMixin:
    """Facets of `dataset`, rows of datasets._panels."""
    families = [name for name in FAMILY_VARIABLES if any(row["panel"] == name for row in rows)]
    columns = min(columns, len(families))
    cell = math.floor((width - 60 - 26 * (columns - 1)) / columns)
    colours = [variable(FAMILY_VARIABLES[name]) for name in families]
    base = alt.Chart(alt.NamedData(dataset))
    across, up = _encoding(alt.X, "x", x), _encoding(alt.Y, "y", y)
    colour = alt.Color("panel:N", legend=None, scale=alt.Scale(domain=families, range=colours))
    dash = alt.StrokeDash("dash:O", legend=None, scale=alt.Scale(domain=list(range(len(DASHES))), range=DASHES))
    thin = {
        "of": alt.Color(
            "of:N",
            legend=None,
            scale=alt.Scale(
                domain=["Meta-Backward", "without rounds"], range=[variable("meta-backward"), variable("no-rounds")]
            ),
        )
    }
    order = alt.Order("x:Q")
    if dataset == "cdf":
        order = alt.Order("y:Q")
    references = (
        base.transform_filter("datum.role == 'reference'")
        .mark_line(strokeWidth=1, opacity=0.55)
        .encode(x=across, y=up, color=thin["of"], detail="label:N", order=order)
    )
    tooltip = [
        alt.Tooltip("label:N", title="method"),
        alt.Tooltip("x:Q", title=x.title),
        alt.Tooltip("y:Q", title=y.title),
    ]
    lines = (
        base.transform_filter("datum.role == 'line'")
        .mark_line(strokeWidth=2, point={"size": 28, "filled": True} if points else False)
        .encode(x=across, y=up, color=colour, strokeDash=dash, detail="label:N", order=order, tooltip=tooltip)
    )
    key = base.transform_filter("datum.role == 'key'")
    height = f"(datum.dash - datum.keys) * {KEY_LINE} + 2"
    samples = key.mark_rule(strokeWidth=2, x=2, x2=34).encode(
        y=alt.value(alt.ExprRef(height)), color=colour, strokeDash=dash
    )
    texts = key.mark_text(
        align="left", baseline="middle", x=40, limit=cell - 42, fontSize=11, color=variable("ink")
    ).encode(y=alt.value(alt.ExprRef(height)), text="label:N")
    layers: list[Any] = [references, lines, samples, texts]
    return (
        alt.layer(*layers)
        .resolve_scale(color="independent")
        .properties(width=cell, height=min(cell, 190))
        .facet(
            facet=alt.Facet("panel:N", sort=families, header=alt.Header(title=None, labelPadding=4)), columns=columns
        )
        .resolve_axis(x="independent")
    )


def _encoding(channel: Any, field: str, axis: Axis) -> Any:
    if axis.values:
        return channel(
            f"{field}:O", title=axis.title, scale=alt.Scale(type="point"), axis=alt.Axis(labelAngle=0, grid=True)
        )
    if axis.log:
        return channel(
            f"{field}:Q", title=axis.title, scale=alt.Scale(type="log", nice=False, padding=4), axis=log_axis(field)
        )
    scale = alt.Scale(zero=False) if axis.domain is None else alt.Scale(domain=list(axis.domain))
    return channel(f"{field}:Q", title=axis.title, scale=scale, axis=alt.Axis(tickCount=5, gridOpacity=0.6))
