"""From a run folder to its figures and one self-contained HTML page that needs no network.

The page's words and markup are in assets/*.html; this module gives them their values.
"""

import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fewjoule.energy.ledger import TRAINING, WITH_SERVER
from fewjoule.errors import InputError
from fewjoule.files import cache_dir, write_atomically
from fewjoule.reporting.axes import LAYOUTS, PAPER_LAYOUT
from fewjoule.reporting.charts import Chart, charts
from fewjoule.reporting.colours import DARK, FAMILIES, LIGHT, as_css
from fewjoule.reporting.datasets import Rows, datasets, link_of_page
from fewjoule.reporting.facts import Facts, all_sources, digest, finished, on_frontier, references
from fewjoule.reporting.figures import Compiled, compile_chart, draw
from fewjoule.reporting.run_folder import RunFolder
from fewjoule.reporting.wording import asset, templates


def write(folder: Path) -> Path:
    """Everything is made before anything is written, so that an error leaves the folder as it was."""
    run = RunFolder.read(folder)
    if not run.summary.tasks:
        raise InputError(f"{folder} has no new tasks that judge its methods; name some in the study (new_tasks).")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{folder} cannot be written to; copy the run folder to where you may write.")
    if (folder / "figures").exists() and not (folder / "figures").is_dir():
        raise InputError(f"{folder / 'figures'} is a file where a folder must be; remove it.")
    facts = digest(run)
    data = datasets(run, facts)
    drawn = charts(run.summary, facts, data)
    compiled = {chart.name: compile_chart(chart) for chart in drawn}
    contents: dict[str, bytes] = {}
    for name, layouts in compiled.items():
        contents[f"figures/{name}.svg"], contents[f"figures/{name}.png"] = draw(layouts[PAPER_LAYOUT], data)
    contents["report.html"] = _page(run, facts, data, drawn, compiled).encode("utf-8")
    try:
        (folder / "figures").mkdir(exist_ok=True)
        for name, content in contents.items():
            write_atomically(folder / name, content, force=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be written to: {error.strerror}; free space or copy the folder.") from error
    return folder / "report.html"


def _page(run: RunFolder, facts: list[Facts], data: dict[str, Rows], drawn: list[Chart], compiled: Compiled) -> str:
    """Tables and sentences as text, charts as descriptions beside their numbers, and Vega to draw them."""
    summary, scored, best = run.summary, finished(facts), on_frontier(facts)
    return (
        templates(autoescape=True)
        .get_template("page.html")
        .render(
            summary=summary,
            study=run.study,
            facts=facts,
            scored=scored,
            contenders=[f for f in scored if f.contends],
            references=references(facts)[::-1],
            best=best,
            frontier=[f for name in best for f in scored if f.name == name and f.joules() > 0],
            extreme="lowest" if summary.better == "lower" else "highest",
            training=TRAINING,
            with_server=WITH_SERVER,
            served=any(f.of(["server"]) for f in facts),
            phases=[phase for phase in TRAINING if phase == "uplink" or any(f.of([phase]) for f in facts)],
            families=FAMILIES,
            all_sources=all_sources(facts),
            charts=drawn,
            data=link_of_page(facts, summary)
            | {
                "layouts": LAYOUTS,
                "charts": compiled,
                "uses": {chart.name: chart.datasets for chart in drawn},
                "datasets": {name: _columns(rows) for name, rows in data.items()},
            },
            light=as_css(LIGHT),
            dark=as_css(DARK),
            css=asset("page.css"),
            vega=_vega().replace("</script", "<\\/script"),
            script=asset("page.js"),
        )
    )


def _columns(rows: Rows) -> dict[str, Any]:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return {"columns": columns, "rows": [[row.get(column) for column in columns] for row in rows]}


def _vega() -> str:
    """The script that puts `vegaEmbed` on the window. Bundling takes seconds, so it is kept for this vl-convert."""
    import vl_convert

    kept = cache_dir() / "vega" / f"vl-convert-{version('vl-convert-python')}.js"
    if kept.is_file() and kept.stat().st_size:
        return kept.read_text(encoding="utf-8")
    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, script.encode("utf-8"), force=True)
    except (OSError, InputError):
        pass  # a cache that cannot be written only costs time
    return script
