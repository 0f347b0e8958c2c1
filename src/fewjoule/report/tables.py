"""The tables of the page as HTML. Cells that depend on the link carry `data-method` and `data-part` for page.js."""

from collections.abc import Iterable
from html import escape

from fewjoule.energy.ledger import RADIO, TRAINING, Spent
from fewjoule.report.colours import FAMILIES
from fewjoule.report.facts import Facts, all_sources, on_frontier
from fewjoule.report.run_folder import Summary
from fewjoule.report.wording import counted, digits, joules_text, kinds_text, percent_text

STAR = "\N{NO-BREAK SPACE}★"


def main_table(facts: list[Facts], summary: Summary) -> str:
    """Methods sorted by quality, with what each phase spent and how that is known."""
    phases = [p for p in TRAINING if p in RADIO[:1] or any(f.of([p]) for f in facts)]
    best = set(on_frontier(facts))
    headline = f"{summary.metric} after {counted(summary.headline_steps, 'step')}"
    return _table(
        "Sorted by quality. ★: no other method is both better and cheaper. Joules are per run, all agents together; "
        f"{summary.metric} is measured: the {summary.statistic} over {summary.tasks} new tasks and "
        f"{counted(len(summary.seeds), 'seed')}, in brackets a 95 % interval over seeds.",
        _head("method", headline, "joules") + _head(*phases, "rounds", "pretraining, apart", css="wide"),
        (_method_row(f, phases, f.name in best, len(summary.seeds)) for f in facts),
        about=' id="methods"',
    )


def _method_row(f: Facts, phases: list[str], best: bool, seeds: int) -> str:
    quality = f.quality_text
    if f.quality is None:
        quality = "overflowed" if len(f.summary.diverged) < seeds else "diverged"
    elif f.low is not None and f.high is not None:
        quality += f' <span class="interval">[{digits(f.low)}, {digits(f.high)}]</span>'
    detail = " · ".join(f"{s.phase} {_spent(f, s)} {s.kind}" for s in f.of(phases)) or "nothing spent"
    by_phase = {
        phase: "".join(f'{_spent(f, s)}<span class="kind">{s.kind}</span>' for s in f.of([phase])) or "–"
        for phase in (*phases, "pretraining")
    }
    return _row(
        f'<span class="swatch" style="background:var(--{FAMILIES[f.family].colour})"></span>{escape(f.label)}'
        f'{_part(f, "star", "star", STAR if best else "")}<span class="detail">{detail}</span>',
        _cells(
            quality,
            f'{_part(f, "amount", "total", joules_text(f.joules()))}<span class="kind">{kinds_text(f.kinds())}</span>',
        )
        + _cells(*(by_phase[phase] for phase in phases), f.summary.rounds, by_phase["pretraining"], css="wide"),
        about=f' class="{"best" if best else ""}" data-method="{escape(f.name)}" data-part="row"',
    )


def _spent(f: Facts, s: Spent) -> str:
    return _part(f, "amount", f"{s.phase}/{s.kind}", joules_text(s.joules))


def _part(f: Facts, css: str, part: str, text: str) -> str:
    """A text that page.js finds and changes with the link."""
    return f'<span class="{css}" data-method="{escape(f.name)}" data-part="{part}">{text}</span>'


def numbers_table(facts: list[Facts], summary: Summary) -> str:
    """Medians after every number of fine-tuning steps, and the share of new tasks where each method is the best."""
    word = "lowest" if summary.better == "lower" else "highest"
    rivals = any(f.summary.share_best_in_paper is not None for f in facts)
    rows = []
    for f in sorted(facts, key=lambda f: -(f.summary.share_best or 0.0)):
        share, among = f.summary.share_best, f.summary.share_best_in_paper
        bar = f'<span class="bar wide" style="width:{0.9 * 100 * (share or 0):.0f}px"></span>'
        text = "–" if share is None or f.quality is None else percent_text(share)
        scores = [summary.score(f.name, steps) for steps in summary.steps]
        cells = ["–" if score is None else digits(score) for score in scores]
        if rivals:
            cells.insert(0, "" if among is None else percent_text(among))
        rows.append(_row(escape(f.label), _cells(text + bar, css="left amount") + _cells(*cells)))
    table = _table(
        f"Measured. Best on: share of the new tasks on which the method has the {word} {summary.metric} of all after "
        f"{counted(summary.headline_steps, 'step')}. Then the {summary.statistic} {summary.metric} "
        "after each number of fine-tuning steps.",
        _head("method") + _head("best on", css="left") + _head(*["among the paper’s"] * rivals, *summary.steps),
        rows,
    )
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Quality in numbers">{table}</div>'


def traffic_table(summary: Summary) -> str:
    """Bytes that the link charges beside those that really crossed; empty for a simulation."""
    real = [method for method in summary.methods.values() if method.traffic]
    if not real:
        return ""
    columns = [f"{what}_{way}" for way in ("up", "down") for what in ("charged", "payload", "network")]
    kilobytes = [[f"{method.traffic.get(column, 0) / 1000:,.1f}" for column in columns] for method in real]
    return _table(
        "Kilobytes of all agents per seed. Charged: what the link model charges. Payload: the messages. Network: "
        "counted by the agents' kernels on their connections, TLS and the engine's own messages included. Left out: "
        "answers that the absence policy went on without.",
        _head("method", *(column.replace("_", " ") for column in columns), "left out"),
        (_row(escape(m.label), _cells(*sent, m.skipped)) for m, sent in zip(real, kilobytes, strict=True)),
        about=' class="traffic"',
    )


def sources_table(facts: list[Facts]) -> str:
    """Every source on the ledger."""
    return _table(
        "Measured: a counter was read. Modelled: time or operations multiplied by a device's numbers. Analytic: a "
        "formula of the link. Sums of different kinds always name them.",
        _head("phase", "kind", "source"),
        (_row(phase, _cells(kind, escape(source))) for phase, kind, source in all_sources(facts)),
        about=' class="sources"',
    )


def _table(caption: str, head: str, rows: Iterable[str], about: str = "") -> str:
    return (
        f"<table{about}><caption>{caption}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _row(name: str, cells: str, about: str = "") -> str:
    return f'<tr{about}><th scope="row">{name}</th>{cells}</tr>'


def _head(*texts: object, css: str = "") -> str:
    return "".join(f'<th scope="col"{_class(css)}>{text}</th>' for text in texts)


def _cells(*texts: object, css: str = "") -> str:
    return "".join(f"<td{_class(css)}>{text}</td>" for text in texts)


def _class(css: str) -> str:
    return f' class="{css}"' if css else ""
