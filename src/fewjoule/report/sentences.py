"""The first lines of the page, computed from the run: who reached what for how many joules, and what spent them."""

from html import escape

from fewjoule.energy.ledger import TRAINING
from fewjoule.report.facts import Facts, error_of, finished, on_frontier, references
from fewjoule.report.run_folder import Summary
from fewjoule.report.wording import counted, digits, joules_text, kinds_text, listing, percent_text

NO_BREAK = "\N{NO-BREAK SPACE}"


def answer(facts: list[Facts], summary: Summary) -> list[str]:
    """Sentences as HTML; the first one answers the question of the report."""
    scored = finished(facts)
    if not scored:
        return ["Every method diverged on every seed; there is no meta-model to compare."]
    best = scored[0]
    word = "lowest" if summary.better == "lower" else "highest"
    lines = [
        f"{_strong(best)} reached the {word} {summary.statistic} {summary.metric} after "
        f"{counted(summary.headline_steps, 'fine-tuning step')}, <strong>{best.quality_text}</strong>, "
        f"for <strong>{_joules(best.joules())}</strong>{_spenders(best)}."
    ]
    others = [f for f in reversed(references(facts)) if f is not best]
    if others:
        lines.append(" ".join(_beside(f, best, summary) for f in others))
    frontier = [f for name in on_frontier(facts) for f in scored if f.name == name and f.joules() > 0]
    if len(frontier) > 1:
        named = listing(f"{escape(f.label)} ({f.quality_text}, {_joules(f.joules())})" for f in frontier)
        lines.append(f"No other method is both better and cheaper than {named}.")
    return lines


def notes(facts: list[Facts], summary: Summary) -> list[str]:
    """What a reader must know about the table."""
    lines = []
    for f in facts:
        if gone := f.summary.diverged:
            which = "every seed" if f.quality is None else f"{counted(len(gone), 'seed')} of {len(summary.seeds)}"
            rest = "" if f.quality is None else "; its numbers are of the others"
            lines.append(f"{escape(f.label)} diverged on {which} ({listing(map(str, gone))}){rest}.")
    free = [escape(f.label) for f in finished(facts) if f.joules() == 0]
    if free:
        lines.append(f"{listing(free)}: nothing is computed or sent, 0 J.")
    return lines


def _joules(value: float) -> str:
    return joules_text(value).replace(" ", NO_BREAK)


def _percent(share: float) -> str:
    return percent_text(share).replace(" ", NO_BREAK)


def _strong(f: Facts) -> str:
    return f"<strong>{escape(f.label)}</strong>"


def _spenders(f: Facts) -> str:
    """`: 99.6 % of it uplink (analytic), the rest computation (modelled)`."""
    parts = sorted((s for s in f.of(TRAINING) if s.joules > 0), key=lambda s: -s.joules)
    if not parts:
        return ""
    first, *others = parts
    if not others:
        return f", all of it {first.phase} ({first.kind})"
    rest = listing(f"{s.phase} ({_joules(s.joules)} {s.kind})" for s in others)
    return f": {_percent(first.joules / f.joules())} of it {first.phase} ({first.kind}), the rest {rest}"


def _beside(f: Facts, best: Facts, summary: Summary) -> str:
    assert f.quality is not None
    assert best.quality is not None
    text = f"{_strong(f)} reached {f.quality_text} for {_joules(f.joules())} ({kinds_text(f.kinds())})"
    if summary.metric == "loss":
        text += f", {digits(f.quality / best.quality)} times that loss" if best.quality > 0 else ""
    else:
        worse = error_of(summary, f.quality) / error_of(summary, best.quality)
        text += f", {digits(worse)} times as many errors"
    if best.joules() > 0 and f.joules() > 0:
        ratio = f.joules() / best.joules()
        if ratio > 1.05:
            text += f" at {digits(ratio)} times the joules"
        elif ratio < 0.95:
            text += f" at {_percent(ratio)} of the joules"
        else:
            text += " at the same joules"
    return text + "."
