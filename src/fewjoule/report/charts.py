"""The chart descriptions (Vega-Altair). One description gives the SVG, the PNG and the chart of the page.

A description names its datasets and writes colours as variables; it holds no numbers of the run. `layout.width` is all
the room there is, in pixels, so that the same function draws for a phone and for a desk.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import altair as alt

from fewjoule.report.colours import FAMILY_SHAPES, FAMILY_VARIABLES, PHASE_VARIABLES, variable
from fewjoule.report.datasets import Rows
from fewjoule.report.folder import Summary
from fewjoule.report.labels import HALO, Room, labels
from fewjoule.report.panels import Axis, log_axis, panels

LAYOUTS = {"narrow": 330, "middle": 660, "wide": 1040}
PAPER_LAYOUT = "middle"
KIND_SHAPES = {"measured": "circle", "modelled": "square", "analytic": "triangle-up"}
PADDING = 16
AGENT_DASHES = [[1, 0], [6, 3], [2, 2], [9, 3, 2, 3], [12, 4], [1, 4]]


@dataclass(frozen=True)
class Layout:
    """Room for a chart: its whole width in pixels."""

    width: int

    @property
    def narrow(self) -> bool:
        return self.width < 500

    @property
    def columns(self) -> int:
        return 1 if self.narrow else 2 if self.width < 900 else 3


@dataclass(frozen=True)
class Chart:
    """A chart of the report: `draw` makes the description; `caption` and `alt_text` say what it shows."""

    name: str
    title: str
    caption: str
    alt_text: str
    draw: Callable[[Layout], alt.TopLevelMixin]
    datasets: tuple[str, ...] = field(default=())


def quality_against_joules(summary: Summary, data: dict[str, Rows], layout: Layout) -> alt.TopLevelMixin:
    """Every method as a labelled point; the frontier as steps; methods that cost nothing as lines across."""
    families = _present(data, ("points", "free"), "family", FAMILY_VARIABLES)
    colour = alt.Color("family:N", title=None, scale=_scale(families, FAMILY_VARIABLES), legend=_legend(layout, 3))
    shape = alt.Shape(
        "family:N", title=None, scale=alt.Scale(domain=families, range=[FAMILY_SHAPES[f] for f in families])
    )
    height = 360 if layout.narrow else 430
    width = layout.width - (150 if layout.narrow else 180)  # labels stand to the right of their points
    errors = [row[k] for row in data["points"] or data["free"] for k in ("low", "high", "error") if k in row]
    room = Room(width, height, PADDING, (min(errors), max(errors)), 110 if layout.narrow else 160)
    x = alt.X(
        "joules:Q",
        title="joules of the training, all agents, without pretraining",
        axis=log_axis("x", "J"),
        scale=alt.Scale(type="log", nice=False, padding=PADDING),
    )
    y = alt.Y(
        "error:Q",
        title=_error_title(summary),
        axis=log_axis("y"),
        scale=alt.Scale(type="log", nice=False, padding=PADDING, domain=list(room.errors)),
    )
    pick = alt.selection_point(name="pick", fields=["family"], bind="legend")
    faint = alt.condition(pick, alt.value(1), alt.value(0.15))
    tooltip = [
        alt.Tooltip("label:N", title="method"),
        alt.Tooltip("quality:N", title=f"{summary.statistic} {summary.metric}"),
        alt.Tooltip("spent:N", title="joules"),
    ]
    frontier = (
        alt.Chart(alt.NamedData("frontier"))
        .mark_line(interpolate="step-after", strokeWidth=1.5, strokeDash=[5, 4], color=variable("soft"))
        .encode(x=x, y=y)
    )
    points = alt.Chart(alt.NamedData("points"))
    marks = (
        points.mark_point(filled=True, size=110, opacity=1)
        .encode(x=x, y=y, color=colour, shape=shape, opacity=faint, tooltip=tooltip)
        .add_params(pick)
    )
    leaders, *texts = labels(points, room, faint)
    layers: list[Any] = [frontier, leaders, marks, *texts]
    if any("low" in row for row in data["points"]):
        bars = points.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.5, opacity=0.5)
        ends = {"y": alt.Y("low:Q", title=_error_title(summary)), "y2": alt.Y2("high:Q")}
        layers.insert(1, bars.encode(x=x, color=colour, **ends))
    if data["free"]:
        free = alt.Chart(alt.NamedData("free"))
        inside = f"datum.error >= {room.errors[0]} && datum.error <= {room.errors[1]}"
        across = free.transform_filter(inside).mark_rule(strokeDash=[2, 3])
        layers.append(across.encode(y=y, color=colour, tooltip=tooltip))
        note = free.transform_calculate(text="datum.label + ' (0 J): ' + datum.quality")
        at = alt.value(alt.ExprRef("max(8, scale('y', datum.error) - 7)"))
        for style in (HALO, {"color": variable("soft")}):
            layers.append(note.mark_text(align="left", fontSize=11, x=6, **style).encode(y=at, text="text:N"))
    return alt.layer(*layers).properties(width=width, height=height)


def amounts(
    name: str, title: str, unit: str, data: dict[str, Rows], layout: Layout, order: list[str]
) -> alt.TopLevelMixin:
    """One row per method, one mark per phase on a logarithmic axis: colour is the phase, shape the kind."""
    phases = _present(data, (name,), "phase", PHASE_VARIABLES)
    kinds = _present(data, (name,), "kind", KIND_SHAPES)
    shown = {row["label"] for row in data[name]}
    rows = [label for label in order if label in shown]
    base = alt.Chart(alt.NamedData(name))
    y = alt.Y(
        "label:N",
        sort=rows,
        title=None,
        scale=alt.Scale(domain=rows),
        axis=alt.Axis(grid=True, ticks=False, domain=False, labelLimit=112 if layout.narrow else 165, labelFontSize=11),
    )
    x = alt.X("value:Q", title=title, axis=log_axis("x", unit), scale=alt.Scale(type="log", padding=10))
    marks = base.mark_point(filled=True, size=85, opacity=0.95).encode(
        x=x,
        y=y,
        color=alt.Color("phase:N", title="phase", scale=_scale(phases, PHASE_VARIABLES), legend=_legend(layout, 3)),
        shape=alt.Shape(
            "kind:N",
            title="known as",
            scale=alt.Scale(domain=kinds, range=[KIND_SHAPES[k] for k in kinds]),
            legend=_legend(layout, 3, symbol=variable("soft"), orient="bottom" if layout.narrow else "top"),
        ),
        tooltip=[alt.Tooltip(f"{f}:N") for f in ("label", "phase", "text", "kind", "source")],
    )
    return alt.layer(marks).properties(width=layout.width - (130 if layout.narrow else 185), height=alt.Step(23))


def cdf(summary: Summary, data: dict[str, Rows], layout: Layout) -> alt.TopLevelMixin:
    """Share of new tasks at or below a loss (or an accuracy), one panel per family."""
    what = f"{summary.metric} after {summary.headline_steps} fine-tuning steps"
    x = Axis(what, log=summary.metric == "loss")
    return panels("cdf", x, Axis("share of new tasks", domain=(0, 1)), data["cdf"], layout.width, layout.columns)


def steps(summary: Summary, data: dict[str, Rows], layout: Layout) -> alt.TopLevelMixin:
    """Median loss (or accuracy) against the number of fine-tuning steps, one panel per family."""
    y = Axis(f"{summary.statistic} {summary.metric}", log=summary.metric == "loss")
    x = Axis("fine-tuning steps", values=tuple(float(s) for s in summary.steps))
    return panels("steps", x, y, data["steps"], layout.width, layout.columns, points=True)


def spread(data: dict[str, Rows], layout: Layout) -> alt.TopLevelMixin:
    """Distance of the farthest agent from the agents' mean against rounds, one panel per family."""
    x, y = Axis("round", log=True), Axis("farthest agent", log=True)
    return panels("spread", x, y, data["spread"], layout.width, layout.columns)


def radius(data: dict[str, Rows], layout: Layout) -> alt.TopLevelMixin:
    """Meta-Backward only: the ball's radius beside the farthest agent and the server's step."""
    labels = list(dict.fromkeys(row["label"] for row in data["radius"]))
    what = list(dict.fromkeys(row["what"] for row in data["radius"]))
    colours = [variable(c) for c in ("meta-backward", "no-rounds", "imaml")][: len(what)]
    columns = min(layout.columns, len(labels))
    return (
        alt.Chart(alt.NamedData("radius"))
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("x:Q", title="round", axis=log_axis("x"), scale=alt.Scale(type="log", nice=False)),
            y=alt.Y(
                "y:Q", title="distance between models", axis=log_axis("y"), scale=alt.Scale(type="log", nice=False)
            ),
            color=alt.Color(
                "what:N", title=None, scale=alt.Scale(domain=what, range=colours), legend=_legend(layout, 3, lines=True)
            ),
            strokeDash=alt.StrokeDash(
                "what:N", title=None, scale=alt.Scale(domain=what, range=AGENT_DASHES[: len(what)])
            ),
        )
        .properties(width=_cell(layout, columns), height=220)
        .facet(facet=alt.Facet("label:N", title=None, sort=labels), columns=columns)
        .resolve_axis(x="independent")
    )


def paths(data: dict[str, Rows], layout: Layout) -> alt.TopLevelMixin:
    """The agents' way through the plane of the first two principal components, one panel per method."""
    labels = list(dict.fromkeys(row["label"] for row in data["paths"]))
    agents = [a for a in dict.fromkeys(row["agent"] for row in data["paths"]) if a != "server"]
    names = [*agents, "server"]
    colours = [variable(c) for c in ("imaml", "fedavg", "maml", "other", "adaptation", "pretraining")]
    columns = 1 if layout.narrow else min(3, len(labels))
    width = _cell(layout, columns)
    base = alt.Chart(alt.NamedData("paths"))
    x = alt.X(
        "x:Q",
        title="first principal component",
        scale=alt.Scale(zero=False, padding=12),
        axis=alt.Axis(tickCount=4, grid=False),
    )
    y = alt.Y(
        "y:Q",
        title="second principal component",
        scale=alt.Scale(zero=False, padding=12),
        axis=alt.Axis(tickCount=4, grid=False),
    )
    hues = [*(colours[i % len(colours)] for i in range(len(agents))), variable("ink")]
    colour = alt.Color("agent:N", title=None, legend=_legend(layout, 4), scale=alt.Scale(domain=names, range=hues))
    lines = base.mark_line(strokeWidth=1.6, opacity=0.85).encode(x=x, y=y, color=colour, order="round:Q")
    ends = alt.Shape(
        "end:N",
        title=None,
        scale=alt.Scale(domain=["start", "end"], range=["circle", "cross"]),
        legend=_legend(layout, 2, symbol=variable("soft")),
    )
    marks = (
        base.transform_filter("datum.end != ''")
        .mark_point(filled=True, size=60, opacity=1)
        .encode(
            x=x, y=y, color=colour, shape=ends, tooltip=[alt.Tooltip(f"{f}:N") for f in ("label", "agent", "round")]
        )
    )
    return (
        alt.layer(lines, marks)
        .properties(width=width, height=_height(data["paths"], width))
        .facet(facet=alt.Facet("label:N", title=None, sort=labels), columns=columns)
    )


def _height(rows: Rows, width: int) -> int:
    """One unit is as long upwards as sideways, within reason."""
    across, up = (max(r[k] for r in rows) - min(r[k] for r in rows) for k in ("x", "y"))
    return round(min(max(width * up / across, 0.75 * width), 1.3 * width)) if across > 0 else width


def _cell(layout: Layout, columns: int) -> int:
    return math.floor((layout.width - 62 - 24 * (columns - 1)) / columns)


def _present(data: dict[str, Rows], names: tuple[str, ...], field: str, known: dict[str, str]) -> list[str]:
    found = {row[field] for name in names for row in data[name]}
    return [name for name in known if name in found]


def _scale(names: list[str], variables: dict[str, str]) -> alt.Scale:
    return alt.Scale(domain=names, range=[variable(variables[name]) for name in names])


def _legend(
    layout: Layout, columns: int, symbol: str | None = None, orient: str = "top", lines: bool = False
) -> alt.Legend:
    about: dict[str, Any] = {
        "orient": orient,
        "columns": min(columns, 2) if layout.narrow else columns * 2,
        "symbolOpacity": 1,
    }
    if lines:
        about |= {"symbolSize": 500, "symbolStrokeWidth": 2}
    if symbol is not None:
        about |= {"symbolFillColor": symbol, "symbolStrokeColor": symbol}
    return alt.Legend(**about)


def _error_title(summary: Summary) -> str:
    what = "loss" if summary.metric == "loss" else "error (1 - accuracy)"
    return f"{summary.statistic} {what} after {summary.headline_steps} steps"
