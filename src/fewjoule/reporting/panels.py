"""Small multiples: one panel per family of methods, each with its own key above it.

In a panel the family has one colour and each of its methods a dash of its own; two thin lines, the average and
Meta-Backward, return in every panel, so that every method is seen beside them.
"""

from typing import Any

import altair as alt

from fewjoule.reporting.axes import Layout, family_colours, log, named, present, tooltips
from fewjoule.reporting.colours import FAMILIES, variable
from fewjoule.reporting.datasets import Rows
from fewjoule.reporting.run_folder import Summary

DASHES = [[1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [14, 4], [1, 4], [5, 2, 1, 2, 1, 2]]
KEY_LINE = 15


def cdf(summary: Summary, data: dict[str, Rows], layout: Layout) -> alt.TopLevelMixin:
    """Share of new tasks at or below a loss (or an accuracy), one panel per family."""
    x = _number(alt.X, "x", f"{summary.metric} after {summary.headline_steps} fine-tuning steps", summary)
    share = alt.Y("y:Q", title="share of new tasks", scale=alt.Scale(domain=[0, 1]), axis=_plain_axis())
    return _panels("cdf", x, share, data, layout, order="y:Q")


def steps(summary: Summary, data: dict[str, Rows], layout: Layout) -> alt.TopLevelMixin:
    """Median loss (or accuracy) against the number of fine-tuning steps, one panel per family."""
    evenly = alt.Scale(type="point")
    x = alt.X("x:O", title="fine-tuning steps", scale=evenly, axis=alt.Axis(labelAngle=0, grid=True))
    y = _number(alt.Y, "y", f"{summary.statistic} {summary.metric}", summary)
    return _panels("steps", x, y, data, layout, point={"size": 28, "filled": True})


def spread(summary: Summary, data: dict[str, Rows], layout: Layout) -> alt.TopLevelMixin:
    """Distance of the farthest agent from the agents' mean against rounds, one panel per family."""
    x = log(alt.X, "x", "round", nice=False, padding=4)
    return _panels("spread", x, log(alt.Y, "y", "farthest agent", nice=False, padding=4), data, layout)


def _number(channel: Any, field: str, title: str, summary: Summary) -> Any:
    """The metric: losses on a logarithmic axis, accuracies on a plain one."""
    if summary.metric == "loss":
        return log(channel, field, title, nice=False, padding=4)
    return channel(f"{field}:Q", title=title, scale=alt.Scale(zero=False), axis=_plain_axis())


def _plain_axis() -> alt.Axis:
    return alt.Axis(tickCount=5, gridOpacity=0.6)


def _panels(
    name: str, x: Any, y: Any, data: dict[str, Rows], layout: Layout, *, order: str = "x:Q", point: Any = False
) -> alt.TopLevelMixin:
    """Facets of a dataset whose rows are those of datasets._panels."""
    families = present(data[name], "panel", FAMILIES)
    columns = min(layout.columns, len(families))
    cell = layout.cell(columns, margin=60, gap=26)
    colour = named(alt.Color, "panel", family_colours(families), legend=None)
    dash = alt.StrokeDash("dash:O", legend=None, scale=alt.Scale(domain=list(range(len(DASHES))), range=DASHES))
    base = alt.Chart(alt.NamedData(name))
    path = {"x": x, "y": y, "detail": "label:N", "order": alt.Order(order)}

    def rows(role: str) -> alt.Chart:
        return base.transform_filter(f"datum.role == '{role}'")

    thin = named(alt.Color, "of", family_colours(["Meta-Backward", "without rounds"]), legend=None)
    references = rows("reference").mark_line(strokeWidth=1, opacity=0.55).encode(**path, color=thin)
    tooltip = tooltips({"label:N": "method", "x:Q": x["title"], "y:Q": y["title"]})
    lines = rows("line").mark_line(strokeWidth=2, point=point)
    lines = lines.encode(**path, color=colour, strokeDash=dash, tooltip=tooltip)
    height = alt.value(alt.ExprRef(f"(datum.dash - datum.keys) * {KEY_LINE} + 2"))
    samples = rows("key").mark_rule(strokeWidth=2, x=2, x2=34).encode(y=height, color=colour, strokeDash=dash)
    style: dict[str, Any] = {"align": "left", "baseline": "middle", "fontSize": 11, "color": variable("ink")}
    texts = rows("key").mark_text(x=40, limit=cell - 42, **style).encode(y=height, text="label:N")
    header = alt.Header(title=None, labelPadding=4)
    return (
        alt.layer(references, lines, samples, texts)
        .resolve_scale(color="independent")
        .properties(width=cell, height=min(cell, 190))
        .facet(facet=alt.Facet("panel:N", sort=families, header=header), columns=columns)
        .resolve_axis(x="independent")
    )
