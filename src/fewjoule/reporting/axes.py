"""What all charts share: the room they have, logarithmic axes, and names as colours or shapes with their legends."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import altair as alt

from fewjoule.reporting.colours import FAMILIES, variable
from fewjoule.reporting.datasets import Rows

LAYOUTS = {"narrow": 330, "middle": 660, "wide": 1040}
PAPER_LAYOUT = "middle"


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

    def cell(self, columns: int, margin: int = 62, gap: int = 24) -> int:
        """Width of one of several panels side by side."""
        return math.floor((self.width - margin - gap * (columns - 1)) / columns)


def present(rows: Rows, field: str, known: Iterable[str] = ()) -> list[str]:
    """The values of a field that occur, in the order of `known` (by default as they come)."""
    found = dict.fromkeys(row[field] for row in rows)
    return [name for name in known or found if name in found]


def named(channel: Any, field: str, ranges: Mapping[str, Any], **about: Any) -> Any:
    """An encoding (`alt.Color`, `alt.Shape`, ...) that gives each name its colour, shape or dash."""
    scale = alt.Scale(domain=list(ranges), range=list(ranges.values()))
    return channel(f"{field}:N", scale=scale, **{"title": None, **about})


def tooltips(titles: Mapping[str, str]) -> list[alt.Tooltip]:
    """Fields with their types (`label:N`), each under its title."""
    return [alt.Tooltip(field, title=title) for field, title in titles.items()]


def family_colours(families: Iterable[str]) -> dict[str, str]:
    return {name: variable(FAMILIES[name].colour) for name in families}


def legend(layout: Layout, columns: int = 3, symbol: str | None = None, **about: Any) -> alt.Legend:
    """Above the chart; with `symbol`, a legend of shapes alone, all in that colour."""
    about = {"orient": "top", "symbolOpacity": 1, **about}
    if symbol is not None:
        about |= {"symbolFillColor": symbol, "symbolStrokeColor": symbol}
    return alt.Legend(columns=min(columns, 2) if layout.narrow else columns * 2, **about)


def log(channel: Any, field: str, title: str, unit: str | None = None, **scale: Any) -> Any:
    """An encoding (`alt.X` or `alt.Y`) on a logarithmic scale."""
    axis = log_axis("x" if channel is alt.X else "y", unit)
    return channel(f"{field}:Q", title=title, axis=axis, scale=alt.Scale(type="log", **scale))


def log_axis(scale: str, unit: str | None = None) -> alt.Axis:
    """A logarithmic axis: powers of ten are labelled, 2 and 5 too below two decades, every tick below one."""
    decades = f"abs(log(domain('{scale}')[1] / domain('{scale}')[0])) / LN10"
    lead = "round(datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9)))"
    if unit is None:
        text = "(datum.value >= 1e-3 && datum.value < 1e4 ? format(datum.value, '~r') : format(datum.value, '.0e'))"
    elif unit == "s":  # nobody says kiloseconds
        plain = "(datum.value < 1 ? format(datum.value, '~s') : format(datum.value, ',')) + 's'"
        text = f"replace({plain}, /([a-zµ]?)s$/, ' $1s')"
    else:
        text = f"replace(format(datum.value, '~s'), /([a-zµ]?)$/i, ' $1{unit}')"
    shown = f"({decades} < 1 || {lead} == 1 || ({decades} < 2 && ({lead} == 2 || {lead} == 5)))"
    return alt.Axis(
        labelExpr=f"{shown} ? {text} : ''",
        labelOverlap="greedy",
        labelSeparation=4,
        gridOpacity=alt.condition(f"{lead} == 1", alt.value(1), alt.value(0.35)),
    )
