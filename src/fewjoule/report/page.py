"""One self-contained HTML page: tables and sentences as text, charts as descriptions, Vega inlined, no network.

The words and the markup are in assets/*.html; this module gives them their values.
"""

from typing import Any

from fewjoule.energy.ledger import TRAINING
from fewjoule.report.axes import LAYOUTS
from fewjoule.report.charts import Chart
from fewjoule.report.colours import DARK, FAMILIES, LIGHT, as_css
from fewjoule.report.datasets import Rows, link_of_page
from fewjoule.report.facts import Facts, all_sources, finished, on_frontier, references
from fewjoule.report.figures import Compiled
from fewjoule.report.run_folder import RunFolder
from fewjoule.report.wording import asset, templates


def render(
    folder: RunFolder, facts: list[Facts], datasets: dict[str, Rows], charts: list[Chart], compiled: Compiled, vega: str
) -> str:
    """The page; `vega` is the JavaScript that puts `vegaEmbed` on the window."""
    summary, scored, best = folder.summary, finished(facts), on_frontier(facts)
    data = {
        **link_of_page(facts, summary),
        "layouts": LAYOUTS,
        "charts": {chart.name: compiled[chart.name] for chart in charts},
        "uses": {chart.name: chart.datasets for chart in charts},
        "datasets": {name: _columns(rows) for name, rows in datasets.items()},
    }
    return (
        templates(autoescape=True)
        .get_template("page.html")
        .render(
            summary=summary,
            study=folder.study,
            facts=facts,
            scored=scored,
            references=references(facts)[::-1],
            best=best,
            frontier=[f for name in best for f in scored if f.name == name and f.joules() > 0],
            extreme="lowest" if summary.better == "lower" else "highest",
            training=TRAINING,
            phases=[phase for phase in TRAINING if phase == "uplink" or any(f.of([phase]) for f in facts)],
            families=FAMILIES,
            all_sources=all_sources(facts),
            charts=charts,
            data=data,
            light=as_css(LIGHT),
            dark=as_css(DARK),
            css=asset("page.css"),
            vega=vega.replace("</script", "<\\/script"),
            script=asset("page.js"),
        )
    )


def _columns(rows: Rows) -> dict[str, Any]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return {"columns": columns, "rows": [[row.get(column) for column in columns] for row in rows]}
