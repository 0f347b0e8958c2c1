"""The charts of a report. One description (Vega-Altair) gives the SVG, the PNG and the chart of the page.

A description names its datasets and writes colours as variables; it holds no numbers of the run. `layout.width` is all
the room there is, in pixels, so that the same function draws for a phone and for a desk. The words around the charts
are in assets/charts.toml.
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import altair as alt

from fewjoule.energy.ledger import PHASES
from fewjoule.reporting.axes import Layout, legend, log, named, present
from fewjoule.reporting.colours import variable
from fewjoule.reporting.datasets import Rows
from fewjoule.reporting.facts import Facts, error_name, finished
from fewjoule.reporting.panels import cdf, spread, steps
from fewjoule.reporting.run_folder import Summary
from fewjoule.reporting.scatter import quality_against_joules
from fewjoule.reporting.wording import asset, templates

KIND_SHAPES = {"measured": "circle", "modelled": "square", "analytic": "triangle-up"}
AGENT_COLOURS = ("imaml", "fedavg", "maml", "other", "adaptation", "pretraining")
RADIUS_STYLES = (("meta-backward", [1, 0]), ("no-rounds", [6, 3]), ("imaml", [2, 2]))


@dataclass(frozen=True)
class Chart:
    """A chart of the report: `draw` makes the description; `caption` and `alt_text` say what it shows."""

    name: str
    title: str
    caption: str
    alt_text: str
    draw: Callable[[Layout], alt.TopLevelMixin]
    datasets: tuple[str, ...]


def charts(summary: Summary, facts: list[Facts], data: dict[str, Rows]) -> list[Chart]:
    """Every chart for which the run has numbers, in the order of the page."""
    environment, scored, found = templates(autoescape=False), finished(facts), []
    values = {"summary": summary, "facts": facts, "scored": scored, "error": error_name(summary)}
    values["ranking"] = [f"{f.label} {f.quality_text}" for f in scored]
    for name, texts in tomllib.loads(asset("charts.toml")).items():
        needed = ("points", "frontier", "free") if name == "quality" else (name,)
        if any(data[each] for each in needed):
            words = {key: environment.from_string(text).render(values) for key, text in texts.items()}
            found.append(Chart(name=name, **words, draw=partial(DRAW[name], summary, data), datasets=needed))
    return found


def amounts(
    summary: Summary, data: dict[str, Rows], layout: Layout, *, name: str, title: str, unit: str
) -> alt.TopLevelMixin:
    """One row per method, one mark per phase on a logarithmic axis: colour is the phase, shape the kind."""
    phases = {phase: variable(phase) for phase in present(data[name], "phase", PHASES)}
    kinds = {kind: KIND_SHAPES[kind] for kind in present(data[name], "kind", KIND_SHAPES)}
    labels, soft = present(data[name], "label"), variable("soft")
    limit, beside, below = (112, 130, "bottom") if layout.narrow else (165, 185, "top")
    axis = alt.Axis(grid=True, ticks=False, domain=False, labelLimit=limit, labelFontSize=11)
    marks = (
        alt.Chart(alt.NamedData(name))
        .mark_point(filled=True, size=85, opacity=0.95)
        .encode(
            x=log(alt.X, "value", title, unit, padding=10),
            y=alt.Y("label:N", sort=labels, title=None, scale=alt.Scale(domain=labels), axis=axis),
            color=named(alt.Color, "phase", phases, title="phase", legend=legend(layout)),
            shape=named(alt.Shape, "kind", kinds, title="known as", legend=legend(layout, symbol=soft, orient=below)),
            tooltip=["label:N", "phase:N", "text:N", "kind:N", "source:N"],
        )
    )
    return alt.layer(marks).properties(width=layout.width - beside, height=alt.Step(23))


def radius(summary: Summary, data: dict[str, Rows], layout: Layout) -> alt.TopLevelMixin:
    """Meta-Backward only: the ball's radius beside the farthest agent and the server's step."""
    labels, what = present(data["radius"], "label"), present(data["radius"], "what")
    styles = dict(zip(what, RADIUS_STYLES, strict=False))
    colours = {name: variable(colour) for name, (colour, _) in styles.items()}
    dashes = {name: dash for name, (_, dash) in styles.items()}
    lines = legend(layout, symbolSize=500, symbolStrokeWidth=2)
    columns = min(layout.columns, len(labels))
    return (
        alt.Chart(alt.NamedData("radius"))
        .mark_line(strokeWidth=2)
        .encode(
            x=log(alt.X, "x", "round", nice=False),
            y=log(alt.Y, "y", "distance between models", nice=False),
            color=named(alt.Color, "what", colours, legend=lines),
            strokeDash=named(alt.StrokeDash, "what", dashes),
        )
        .properties(width=layout.cell(columns), height=220)
        .facet(facet=alt.Facet("label:N", title=None, sort=labels), columns=columns)
        .resolve_axis(x="independent")
    )


def paths(summary: Summary, data: dict[str, Rows], layout: Layout) -> alt.TopLevelMixin:
    """The agents' way through the plane of the first two principal components, one panel per method."""
    rows = data["paths"]
    labels, agents = present(rows, "label"), [agent for agent in present(rows, "agent") if agent != "server"]
    hues = {agent: variable(AGENT_COLOURS[i % len(AGENT_COLOURS)]) for i, agent in enumerate(agents)}
    columns = 1 if layout.narrow else min(3, len(labels))
    width = layout.cell(columns)
    plane: dict[str, Any] = {"scale": alt.Scale(zero=False, padding=12), "axis": alt.Axis(tickCount=4, grid=False)}
    place = {
        "x": alt.X("x:Q", title="first principal component", **plane),
        "y": alt.Y("y:Q", title="second principal component", **plane),
        "color": named(alt.Color, "agent", hues | {"server": variable("ink")}, legend=legend(layout, 4)),
    }
    base = alt.Chart(alt.NamedData("paths"))
    lines = base.mark_line(strokeWidth=1.6, opacity=0.85).encode(**place, order="round:Q")
    ends = legend(layout, 2, symbol=variable("soft"))
    marks = base.transform_filter("datum.end != ''").mark_point(filled=True, size=60, opacity=1)
    shape = named(alt.Shape, "end", {"start": "circle", "end": "cross"}, legend=ends)
    marks = marks.encode(**place, shape=shape, tooltip=["label:N", "agent:N", "round:N"])
    return (
        alt.layer(lines, marks)
        .properties(width=width, height=_height(rows, width))
        .facet(facet=alt.Facet("label:N", title=None, sort=labels), columns=columns)
    )


def _height(rows: Rows, width: int) -> int:
    """One unit is as long upwards as sideways, within reason."""
    across, up = (max(r[k] for r in rows) - min(r[k] for r in rows) for k in ("x", "y"))
    return round(min(max(width * up / across, 0.75 * width), 1.3 * width)) if across > 0 else width


DRAW: dict[str, Callable[[Summary, dict[str, Rows], Layout], alt.TopLevelMixin]] = {
    "quality": quality_against_joules,
    "cdf": cdf,
    "energy": partial(amounts, name="energy", title="joules (log)", unit="J"),
    "time": partial(amounts, name="time", title="seconds (log)", unit="s"),
    "steps": steps,
    "spread": spread,
    "radius": radius,
    "paths": paths,
}
