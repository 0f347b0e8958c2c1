"""From a run folder to its figures and one self-contained HTML page that needs no network.

The page's words and markup are in assets/*.html, what it does in assets/*.js; this module gives them their values.
"""

import os
import tomllib
from pathlib import Path
from typing import Any

from fewjoule.energy.ledger import TRAINING, WITH_SERVER
from fewjoule.errors import InputError
from fewjoule.files import write_atomically
from fewjoule.reporting import cards, radio, scatter, unseen
from fewjoule.reporting.charts import LAYOUTS, captions, charts
from fewjoule.reporting.colours import DARK, FAMILIES, LIGHT, as_css
from fewjoule.reporting.facts import Facts, all_sources, digest, finished, on_frontier, references, score_text
from fewjoule.reporting.figures import as_png, on_white
from fewjoule.reporting.predictions import Predictions
from fewjoule.reporting.run_folder import RunFolder
from fewjoule.reporting.wording import asset, joules_text, templates

MAIN = ("distribution", "energy", "steps")
"""Charts of the page itself; the others are folded away as diagnostics."""
PAPER = {"quality": "wide"} | dict.fromkeys((*MAIN, "spread", "radius", "paths"), "wide")
"""The layout of each figure's file."""

Drawn = dict[str, dict[str, str]]
"""SVG by chart and layout."""


def write(folder: Path) -> Path:
    """Everything is made before anything is written, so that an error leaves the folder as it was."""
    run = RunFolder.read(folder)
    if not run.summary.tasks:
        raise InputError(
            f"{folder} has no new tasks to compare its methods on; name some in the study (family.new_tasks)."
        )
    if not os.access(folder, os.W_OK):
        raise InputError(f"{folder} cannot be written to; copy the run folder to where you may write.")
    if (folder / "figures").exists() and not (folder / "figures").is_dir():
        raise InputError(f"{folder / 'figures'} is a file where a folder must be; remove it.")
    predictions = Predictions.read(folder)
    facts = digest(run)
    drawn = draw(run, facts)
    contents: dict[str, bytes] = {}
    for name, layouts in drawn.items():
        svg = on_white(layouts[PAPER[name]])
        contents[f"figures/{name}.svg"], contents[f"figures/{name}.png"] = svg.encode("utf-8"), as_png(svg)
    contents["report.html"] = _page(run, facts, drawn, predictions).encode("utf-8")
    try:
        (folder / "figures").mkdir(exist_ok=True)
        for name, content in contents.items():
            write_atomically(folder / name, content, force=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be written to: {error.strerror}; free space or copy the folder.") from error
    return folder / "report.html"


def draw(run: RunFolder, facts: list[Facts]) -> Drawn:
    """Every chart in every layout."""
    summary, words = run.summary, captions(run.summary)
    said = "; ".join(f"{f.label}: {f.quality_text} for {joules_text(f.joules())}" for f in finished(facts))
    title = f"{summary.metric.capitalize()} against joules on {radio.title_of(summary)}. {said}"
    drawn: Drawn = {}
    if finished(facts):
        drawn["quality"] = {layout: scatter.scatter(summary, facts, layout, title) for layout in scatter.LAYOUTS}
    for name, chart in charts(run, facts).items():
        spoken = f"{words[name]['title']}. {words[name]['caption']}"
        drawn[name] = {layout: chart(width, spoken) for layout, width in LAYOUTS.items()}
    return drawn


def _page(run: RunFolder, facts: list[Facts], drawn: Drawn, predictions: Predictions | None) -> str:
    summary, scored = run.summary, finished(facts)
    methods = cards.contenders(facts, summary)
    reference = next(reversed(references(facts)), None)
    known = radio.knows_messages(summary)
    shown = None if predictions is None else unseen.of_page(predictions)
    found = cards.answers(methods)
    looked_at = _looked_at(found, reference, methods, shown)
    where = radio.title_of(summary)
    named = None if reference is None else reference.name
    data = {
        "metric": summary.metric,
        "contenders": [m._asdict() for m in methods],
        "labels": {f.name: f.label for f in facts},
        "swatches": {f.name: f"var(--{FAMILIES[f.family].colour})" for f in facts},
        "reference": named,
        "training": TRAINING,
        "known": known,
        "scatter": scatter.of_page(summary, facts),
        "unseen": shown,
        "looked": looked_at,
        **radio.of_page(facts, summary),
    }
    links = radio.links_of(summary) if known else {}
    rows = [(n, radio.NAMES.get(n, n), radio.answers_on(facts, methods, link)) for n, link in links.items()]
    best = on_frontier(facts)
    return (
        templates(autoescape=True)
        .get_template("page.html")
        .render(
            summary=summary,
            study=run.study,
            host=tomllib.loads(run.study).get("host", {}),
            facts=facts,
            scored=scored,
            controlled=any(f.is_control and f.summary.method != "random" for f in scored),
            best=best,
            stairs=sum(f.name in best and f.joules() > 0 for f in facts),
            shown=cards.shown(methods),
            cards=cards,
            sentence=cards.sentence(where, summary, methods, named) if methods else "",
            where=where,
            as_score=lambda value: score_text(summary, value),
            radios=rows,
            known=known,
            extreme="lowest" if summary.better == "lower" else "highest",
            training=TRAINING,
            with_server=WITH_SERVER,
            served=any(f.of(["server"]) for f in facts),
            phases=[phase for phase in TRAINING if known or any(f.of([phase]) for f in facts)],
            families=FAMILIES,
            all_sources=all_sources(facts),
            drawn=drawn,
            captions=captions(summary),
            main=[name for name in MAIN if name in drawn],
            folded=[name for name in drawn if name not in (*MAIN, "quality")],
            unseen=shown,
            looked=looked_at,
            score=lambda name: unseen.score_words(shown or {}, name),
            panel=lambda name, words: unseen.curves(shown or {}, name, words),
            data=data,
            light=as_css(LIGHT),
            dark=as_css(DARK),
            css=asset("page.css") + asset("report.css"),
            scripts=[asset(name) for name in ("numbers.js", "links.js", "cards.js", "pictures.js", "page.js")],
        )
    )


def _looked_at(
    found: dict[str, cards.Answer],
    reference: Facts | None,
    methods: list[cards.Contender],
    shown: dict[str, Any] | None,
) -> list[str]:
    """Whose predictions are shown first: the best value, the reference, and a random start."""
    if shown is None:
        return []
    wanted = [answer.chosen.name for key in ("value", "quality") if (answer := found[key]).chosen is not None]
    wanted += [reference.name] if reference is not None else []
    wanted = list(dict.fromkeys([*wanted[:1], *wanted[2:], *(m.name for m in methods if m.random), *wanted]))
    return [name for name in wanted if name in shown["said"]][:3] or list(shown["said"])[:1]
