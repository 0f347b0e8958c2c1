"""README's picture: six ways to a shared model on the sinusoids, by joules and loss; large type, light and dark.

The points are those of `bench/frontier.py`; `bench/measure.py` draws docs/hero-light.svg and docs/hero-dark.svg.
"""

from typing import Any

import altair as alt
import vl_convert

from bench.frontier import Point

THEMES = {"light": ("#1f2328", "#d8dee4", "#c2410c", "#0969da"), "dark": ("#e6edf3", "#30363d", "#ff9d6c", "#79b8ff")}
"""Text, grid, the paper's method, the others; the background is transparent."""
SHOWN = {  # method and how its settings begin: label, and where the label stands from its point
    ("meta_backward", ""): ("Meta-Backward (the paper)", "center", 26),
    ("imaml", ""): ("iMAML", "center", -16),
    ("maml", ""): ("MAML", "center", 26),
    ("average", ""): ("plain average", "center", -18),
    ("lean", "target better"): ("lean: few rounds, few bits", "center", 26),
    ("answers", ""): ("answers, not weights", "left", -18),
}


def picture(points: list[Point], theme: str) -> bytes:
    """The SVG of one theme."""
    text, grid, paper, other = THEMES[theme]
    rows = []
    for (method, setting), (label, align, dy) in SHOWN.items():
        found = [p for p in points if p.method == method and p.setting.startswith(setting)]
        p = next((p for p in found if p.paper), found[0])
        colour = paper if p.paper else other
        rows.append(
            {"joules": p.joules, "loss": p.reported, "label": label, "align": align, "dy": dy, "colour": colour}
        )
    x = alt.X(
        "joules:Q", title="joules of one agent", scale=_log(0.012, 30000), axis=_axis([0.1, 1, 10, 100, 1000, 1e4])
    )
    y = alt.Y("loss:Q", title="error on new tasks", scale=_log(0.011, 0.9), axis=_axis([0.02, 0.05, 0.1, 0.2, 0.5]))
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, y=y, color=alt.Color("colour:N", scale=None))
    marks: list[Any] = [base.mark_circle(size=170, opacity=1)]
    for align, dy in dict.fromkeys((row["align"], row["dy"]) for row in rows):
        here = f"datum.align == '{align}' && datum.dy == {dy}"
        marks.append(base.transform_filter(here).mark_text(align=align, dy=dy, fontSize=18).encode(text="label:N"))
    chart = alt.layer(*marks).properties(width=470, height=320, background="transparent")
    chart = chart.configure_axis(
        labelColor=text, titleColor=text, gridColor=grid, domainColor=grid, tickColor=grid, labelFontSize=16,
        titleFontSize=18, titleFontWeight="normal",
    )  # fmt: skip
    return vl_convert.vegalite_to_svg(chart.configure_view(stroke=None).to_dict()).encode()


def _log(low: float, high: float) -> Any:
    return alt.Scale(type="log", domain=[low, high])


def _axis(values: list[float]) -> Any:
    return alt.Axis(values=values, format="~g", labelOverlap=False)
