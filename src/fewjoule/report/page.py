"""One self-contained HTML page: tables and sentences as text, charts as descriptions, Vega inlined, no network."""

import json
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from fewjoule.report.charts import LAYOUTS, Chart
from fewjoule.report.colours import DARK, LIGHT, as_css
from fewjoule.report.datasets import Rows, link_of_page
from fewjoule.report.facts import Facts
from fewjoule.report.figures import Compiled
from fewjoule.report.folder import LinkFacts, RunFolder, Summary
from fewjoule.report.sentences import answer, notes
from fewjoule.report.tables import main_table, numbers_table, sources_table, traffic_table
from fewjoule.report.wording import counted, listing

SLIDERS = (
    # field, label, lowest and highest power of ten, step
    ("bandwidth_hz", "bandwidth of one agent", 2.0, 8.0),
    ("power_watts", "radiated power", -3.0, 2.0),
    ("noise_watts_per_hz", "noise density", -21.0, -2.0),
)


def render(
    folder: RunFolder, facts: list[Facts], datasets: dict[str, Rows], charts: list[Chart], compiled: Compiled, vega: str
) -> str:
    """The page; `vega` is the JavaScript that puts `vegaEmbed` on the window."""
    summary = folder.summary
    assets = files("fewjoule.report") / "assets"
    quality = next((chart for chart in charts if chart.name == "quality"), None)
    return Template((assets / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(f"{summary.study}: quality and joules"),
        light=as_css(LIGHT),
        dark=as_css(DARK),
        css=(assets / "page.css").read_text(encoding="utf-8"),
        heading=escape(f"{summary.title or summary.study}: which method, what quality, how many joules"),
        facts=_facts(summary),
        answer="\n".join(f'<p class="answer">{line}</p>' for line in answer(facts, summary)),
        table=main_table(facts, summary),
        notes="\n".join(f'<p class="note">{line}</p>' for line in notes(facts, summary)),
        link=_link(facts, summary, quality) if quality else "",
        figures="\n".join(_section(chart) for chart in charts if chart is not quality),
        numbers=numbers_table(facts, summary),
        sources=sources_table(folder) + traffic_table(summary),
        study=escape(folder.study_text),
        data=_safe(_data(facts, summary, datasets, charts, compiled)),
        vega=vega.replace("</script", "<\\/script"),
        script=(assets / "page.js").read_text(encoding="utf-8"),
    )


def _facts(summary: Summary) -> str:
    link = summary.link
    agents = f"{counted(len(summary.agents), 'agent')} ({listing(summary.agents)})"
    return escape(
        f"{agents}; {summary.model}, {summary.weights} weights; {counted(summary.tasks, 'new task')}, "
        f"{counted(len(summary.seeds), 'seed')}; link “{link.name}”; data: {summary.data}."
    )


def _link(facts: list[Facts], summary: Summary, chart: Chart) -> str:
    sliders = "".join(_slider(field, label, low, high) for field, label, low, high in SLIDERS)
    finished = [f for f in facts if f.quality is not None]
    chosen = next((f.name for f in finished if f.family == "Meta-Backward"), finished[0].name if finished else "")
    options = "".join(
        f'<option value="{escape(f.name, quote=True)}"{" selected" if f.name == chosen else ""}>'
        f"{escape(f.label)}</option>"
        for f in finished
    )
    verdict = ""
    if finished:
        verdict = (
            f'<p class="controls"><label for="target">Cheapest method at least as good as </label><select id="target">'
            f'{options}</select></p><div id="verdict" class="verdict" aria-live="polite">'
            '<p><strong data-part="winner"></strong><span data-part="because"></span></p>'
            '<p class="note"><span data-part="air"></span>Cheapest for its quality, left to right in joules: '
            '<span data-part="frontier"></span>.</p></div>'
        )
    return (
        '<section id="link" aria-labelledby="link-title"><h2 id="link-title">On your link</h2>'
        '<p class="note">The joules of radio are a formula (analytic): R = B log₂(1 + P / (N₀ B)), joules = bits · P / '
        "R. Move the link to yours; the table above, the joules and the times below follow. Noise density is that at "
        "the receiver divided by the path's gain.</p>"
        f'<div class="bench"><div><fieldset class="controls"><legend>Radio link</legend>{sliders}{_bits(summary.link)}'
        f'<button type="button" id="reset">Back to the run’s link</button></fieldset>{verdict}</div>'
        f"{_figure(chart)}</div></section>"
    )


def _slider(field: str, label: str, low: float, high: float) -> str:
    return (
        f'<div class="slider"><label for="{field}"><span>{label}</span>'
        f'<output id="{field}-value" for="{field}"></output></label>'
        f'<input type="range" id="{field}" data-field="{field}" min="{low:g}" max="{high:g}" step="0.05"></div>'
    )


def _bits(link: LinkFacts) -> str:
    most = max(32, round(link.bits_per_weight))
    return (
        '<div class="slider"><label for="bits_per_weight"><span>bits per weight</span>'
        '<output id="bits_per_weight-value" for="bits_per_weight"></output></label><input type="range" '
        f'id="bits_per_weight" data-field="bits_per_weight" min="1" max="{most}" step="1"></div>'
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


def _data(
    facts: list[Facts], summary: Summary, datasets: dict[str, Rows], charts: list[Chart], compiled: Compiled
) -> dict[str, Any]:
    return {
        **link_of_page(facts, summary),
        "layouts": LAYOUTS,
        "charts": {chart.name: compiled[chart.name] for chart in charts},
        "uses": {chart.name: chart.datasets for chart in charts},
        "datasets": {name: _columns(rows) for name, rows in datasets.items()},
    }


def _columns(rows: Rows) -> dict[str, Any]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return {"columns": columns, "rows": [[row.get(column) for column in columns] for row in rows]}


def _safe(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
