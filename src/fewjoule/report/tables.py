"""The tables of the page as HTML. Cells that depend on the link carry `data-method` and `data-part` for page.js."""

from html import escape

from fewjoule.report.colours import FAMILY_VARIABLES
from fewjoule.report.facts import RADIO, TRAINING, Facts, all_sources, on_frontier
from fewjoule.report.folder import RunFolder, Summary
from fewjoule.report.wording import counted, joules_text, kinds_text, percent_text, quality_text

STAR = "\N{NO-BREAK SPACE}★"


def main_table(facts: list[Facts], summary: Summary) -> str:
    """Methods sorted by quality, with what each phase spent and how that is known."""
    phases = [p for p in TRAINING if p in RADIO[:1] or any(s.phase == p for f in facts for s in f.spent)]
    best = set(on_frontier(facts, summary))
    head = "".join(f'<th scope="col" class="wide">{phase}</th>' for phase in phases)
    rows = "".join(_row(f, phases, f.name in best, len(summary.seeds)) for f in facts)
    return (
        '<table id="methods"><caption>Sorted by quality. ★: no other method is both better and cheaper. '
        f"Joules are per run, all agents together; {summary.metric} is measured: the {summary.statistic} over "
        f"{summary.tasks} new tasks "
        f"and {counted(len(summary.seeds), 'seed')}, in brackets a 95 % interval over seeds.</caption>"
        f'<thead><tr><th scope="col">method</th><th scope="col">{summary.metric} after '
        f'{counted(summary.headline_steps, "step")}</th><th scope="col">joules</th>{head}'
        '<th scope="col" class="wide">rounds</th><th scope="col" class="wide">pretraining, apart</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def numbers_table(facts: list[Facts], summary: Summary) -> str:
    """Medians after every number of fine-tuning steps, and the share of new tasks where each method is the best."""
    head = "".join(f'<th scope="col">{steps}</th>' for steps in summary.steps)
    word = "lowest" if summary.better == "lower" else "highest"
    rivals = any(f.share_best_in_paper is not None for f in facts)
    among = '<th scope="col">among the paper’s</th>' if rivals else ""
    rows = []
    for f in sorted(facts, key=lambda f: -(f.share_best or 0.0)):
        cells = []
        for steps in summary.steps:
            score = summary.score(f.name, steps)
            cells.append("<td>–</td>" if score is None else f"<td>{quality_text(score)}</td>")
        share = f.share_best
        bar = f'<span class="bar wide" style="width:{0.9 * 100 * (share or 0):.0f}px"></span>'
        text = "–" if share is None or f.quality is None else percent_text(share)
        first = f'<td class="left amount">{text}{bar}</td>'
        if rivals:
            part = f.share_best_in_paper
            first += f"<td>{'' if part is None else percent_text(part)}</td>"
        rows.append(f'<tr><th scope="row">{escape(f.label)}</th>{first}{"".join(cells)}</tr>')
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Quality in numbers"><table><caption>Measured. '
        f"Best on: share of the new tasks on which the method has the {word} {summary.metric} of all after "
        f"{counted(summary.headline_steps, 'step')}. Then the {summary.statistic} {summary.metric} "
        'after each number of fine-tuning steps.</caption><thead><tr><th scope="col">method</th>'
        f'<th scope="col" class="left">best on</th>{among}{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def traffic_table(summary: Summary) -> str:
    """Bytes that the link charges beside those that really crossed; empty for a simulation."""
    real = {name: m for name, m in summary.methods.items() if m.traffic}
    if not real:
        return ""
    columns = [f"{what}_{way}" for way in ("up", "down") for what in ("charged", "payload", "network")]
    head = "".join(f'<th scope="col">{column.replace("_", " ")}</th>' for column in columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(m.label)}</th>'
        + "".join(f"<td>{m.traffic.get(column, 0) / 1000:,.1f}</td>" for column in columns)
        + f"<td>{m.skipped}</td></tr>"
        for m in real.values()
    )
    return (
        '<table class="traffic"><caption>Kilobytes of all agents per seed. Charged: what the link model charges. '
        "Payload: the messages. Network: counted by the agents' kernels on their connections, TLS and the engine's own "
        "messages included. Left out: answers that the absence policy went on without.</caption>"
        f'<thead><tr><th scope="col">method</th>{head}<th scope="col">left out</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def sources_table(folder: RunFolder) -> str:
    """Every source on the ledger."""
    rows = "".join(
        f'<tr><th scope="row">{phase}</th><td>{kind}</td><td>{escape(source)}</td></tr>'
        for phase, kind, source in all_sources(folder)
    )
    return (
        '<table class="sources"><caption>Measured: a counter was read. Modelled: time or operations multiplied by a '
        "device's numbers. Analytic: a formula of the link. Sums of different kinds always name them.</caption>"
        '<thead><tr><th scope="col">phase</th><th scope="col">kind</th><th scope="col">source</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _row(f: Facts, phases: list[str], best: bool, seeds: int) -> str:
    name, about = escape(f.name, quote=True), f'data-method="{escape(f.name, quote=True)}"'
    detail = " · ".join(
        f'{s.phase} <span class="amount" {about} data-part="{s.phase}/{s.kind}">{joules_text(s.joules)}</span> {s.kind}'
        for s in f.spent
        if s.phase in phases
    )
    quality = "overflowed" if len(f.diverged) < seeds else "diverged"
    if f.quality is not None:
        quality = quality_text(f.quality)
        if f.low is not None and f.high is not None:
            quality += f' <span class="interval">[{quality_text(f.low)}, {quality_text(f.high)}]</span>'
    cells = "".join(f'<td class="wide">{_phase(f, phase)}</td>' for phase in phases)
    return (
        f'<tr class="{"best" if best else ""}" data-method="{name}" data-part="row"><th scope="row">'
        f'<span class="swatch" style="background:var(--{FAMILY_VARIABLES[f.family]})"></span>{escape(f.label)}'
        f'<span class="star" {about} data-part="star">{STAR if best else ""}</span>'
        f'<span class="detail">{detail or "nothing spent"}</span></th><td>{quality}</td>'
        f'<td><span class="amount" {about} data-part="total">{joules_text(f.joules())}</span>'
        f'<span class="kind">{kinds_text(f.kinds())}</span></td>{cells}'
        f'<td class="wide">{f.rounds}</td><td class="wide">{_phase(f, "pretraining")}</td></tr>'
    )


def _phase(f: Facts, phase: str) -> str:
    parts = [
        f'<span class="amount" data-method="{escape(f.name, quote=True)}" data-part="{s.phase}/{s.kind}">'
        f'{joules_text(s.joules)}</span><span class="kind">{s.kind}</span>'
        for s in f.spent
        if s.phase == phase
    ]
    return "".join(parts) or "–"
