"""From a run folder to its figures and its page."""

import os
from importlib.metadata import version
from pathlib import Path

from fewjoule.errors import InputError
from fewjoule.files import cache_dir, write_atomically
from fewjoule.report.axes import PAPER_LAYOUT
from fewjoule.report.charts import charts
from fewjoule.report.datasets import datasets
from fewjoule.report.facts import digest
from fewjoule.report.figures import compile_chart, draw
from fewjoule.report.page import render
from fewjoule.report.run_folder import RunFolder


def write(folder: Path) -> Path:
    """Everything is made before anything is written, so that an error leaves the folder as it was."""
    run = RunFolder.read(folder)
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
    contents["report.html"] = render(run, facts, data, drawn, compiled, _vega()).encode("utf-8")
    try:
        (folder / "figures").mkdir(exist_ok=True)
        for name, content in contents.items():
            write_atomically(folder / name, content, force=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be written to: {error.strerror}; free space or copy the folder.") from error
    return folder / "report.html"


def _vega() -> str:
    """Vega as one script. Bundling takes seconds, so the result is kept for this version of vl-convert."""
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
