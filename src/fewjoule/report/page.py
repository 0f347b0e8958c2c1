"""One self-contained HTML page: tables and sentences as text, charts as descriptions, Vega inlined, no network."""

import json
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from fewjoule.report.axes import LAYOUTS
from fewjoule.report.charts import Chart
from fewjoule.report.colours import DARK, LIGHT, as_css
from fewjoule.report.datasets import Rows, link_of_page
from fewjoule.report.facts import Facts, finished
from fewjoule.report.figures import Compiled
from fewjoule.report.run_folder import RunFolder, Summary
from fewjoule.report.sentences import answer, notes
from fewjoule.report.tables import main_table, numbers_table, sources_table, traffic_table
from fewjoule.report.wording import counted, listing

SLIDERS = (
    # field, label, lowest and highest power of ten
    ("bandwidth_hz", "bandwidth of one agent", 2, 8),
    ("power_watts", "radiated power", -3, 2),
    ("noise_watts_per_hz", "noise density", -21, -2),
)


def render(
    folder: RunFolder, facts: list[Facts], datasets: dict[str, Rows], charts: list[Chart], compiled: Compiled, vega: str
) -> str:
    """The page; `vega` is the JavaScript that puts `vegaEmbed` on the window."""
    summary = folder.summary
    data = {
        **link_of_page(facts, summary),
        "layouts": LAYOUTS,
        "charts": {chart.name: compiled[chart.name] for chart in charts},
        "uses": {chart.name: chart.datasets for chart in charts},
        "datasets": {name: _columns(rows) for name, rows in datasets.items()},
    }
    return Template(_asset("page.html")).substitute(
        title=escape(f"{summary.study}: quality and joules"),
        light=as_css(LIGHT),
        dark=as_css(DARK),
        css=_asset("page.css"),
        heading=escape(f"{summary.title or summary.study}: which method, what quality, how many joules"),
        facts=_facts(summary),
        answer="\n".join(f'<p class="answer">{line}</p>' for line in answer(facts, summary)),
        table=main_table(facts, summary),
        notes="\n".join(f'<p class="note">{line}</p>' for line in notes(facts, summary)),
        link="".join(_link(facts, summary, chart) for chart in charts if chart.name == "quality"),
        figures="\n".join(_section(chart) for chart in charts if chart.name != "quality"),
        numbers=numbers_table(facts, summary),
        sources=sources_table(facts) + traffic_table(summary),
        study=escape(folder.study),
        data=_safe(data),
        vega=vega.replace("</script", "<\\/script"),
        script=_asset("page.js"),
    )


def _asset(name: str) -> str:
    return (files("fewjoule.report") / "assets" / name).read_text(encoding="utf-8")


def _facts(summary: Summary) -> str:
    agents = f"{counted(len(summary.agents), 'agent')} ({listing(summary.agents)})"
    return escape(
        f"{agents}; {summary.model}, {summary.weights} weights; {counted(summary.tasks, 'new task')}, "
        f"{counted(len(summary.seeds), 'seed')}; link “{summary.link.name}”; data: {summary.data}."
    )


def _link(facts: list[Facts], summary: Summary, chart: Chart) -> str:
    """The controls of the link beside the chart they move; the chart is there because some method finished."""
    most = max(32, summary.link.bits_per_weight)
    sliders = [_slider(field, label, low, high, step=0.05) for field, label, low, high in SLIDERS]
    sliders.append(_slider("bits_per_weight", "bits per weight", 1, most, step=1))
    methods = finished(facts)
    target = next((f for f in methods if f.family == "Meta-Backward"), methods[0])
    options = "".join(
        f'<option value="{escape(f.name)}"{" selected" if f is target else ""}>{escape(f.label)}</option>'
        for f in methods
    )
    return Template(_asset("link.html")).substitute(sliders="\n".join(sliders), options=options, figure=_figure(chart))


def _slider(field: str, label: str, low: int, high: int, step: float) -> str:
    return (
        f'<div class="slider"><label for="{field}"><span>{label}</span>'
        f'<output id="{field}-value" for="{field}"></output></label>'
        f'<input type="range" id="{field}" data-field="{field}" min="{low}" max="{high}" step="{step}"></div>'
    )


def _section(chart: Chart) -> str:
    return (
        f'<section aria-labelledby="{chart.name}-title"><h2 id="{chart.name}-title">{escape(chart.title)}</h2>'
        f"{_figure(chart)}</section>"
    )


def _figure(chart: Chart) -> str:
    return (
        f'<figure id="{chart.name}"><figcaption>{escape(chart.caption)} Also figures/{chart.name}.svg and .png.'
        f'</figcaption><div class="chart" data-chart="{chart.name}"></div></figure>'
    )


def _columns(rows: Rows) -> dict[str, Any]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return {"columns": columns, "rows": [[row.get(column) for column in columns] for row in rows]}


def _safe(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
