"""What commands show: plain aligned tables on stdout, progress on stderr."""

import re
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fewjoule.energy import knows_receiving
from fewjoule.energy import link as named_link
from fewjoule.energy.ledger import TRAINING
from fewjoule.energy.show import digits, si_text
from fewjoule.reporting import cards
from fewjoule.reporting.facts import digest, score_text
from fewjoule.reporting.run_folder import MethodSummary, RunFolder, Spread, Summary

LABEL = 26
"""Characters of a method in a table, so that it fits 80 columns."""
WIDTH = 80
"""Columns that output takes at most, on a wider terminal too."""
UNITS = {"joules": "J", "seconds": "s", "bits": "bit", "flops": "FLOP"}
CHOOSING = "choosing the number of steps"
"""The end of a source of joules that were spent before the adaptation itself."""
SEE_CHOOSING = "compare other methods and starts, see docs/choosing-a-method.md"


def say(text: str = "") -> None:
    typer.echo(text)


def width() -> int:
    """Columns of this terminal, or `WIDTH` where it is wider or there is none."""
    return min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)


def say_wrapped(text: str) -> None:
    """A sentence on as many lines as it needs."""
    typer.echo(textwrap.fill(text, width(), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False))


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Names and what they stand for, one below the other."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        typer.echo(f"  {name.ljust(width)}  {text}")


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns as wide as their widest cell; those of numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(c) for c in column) for column in zip(header, *cells, strict=True)]
    right = [bool(rows) and all(re.match(r"-?\d|-$|inf|nan", row[i]) for row in cells) for i in range(len(header))]
    for line in (list(header), *cells):
        padded = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)]
        typer.echo("  " + "  ".join(padded).rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return digits(value)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


@contextmanager
def stage(text: str) -> Iterator[None]:
    """Say what is being done, with a spinner on a terminal, and how long it took."""
    began = time.perf_counter()
    if sys.stderr.isatty():
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            progress.add_task(text, total=None)
            yield
    else:
        typer.echo(f"{text} ...", err=True)
        yield
    typer.echo(f"{text}: {time.perf_counter() - began:.1f} s", err=True)


def show_energy(rows: list[dict[str, Any]], link: str | None) -> None:
    """The ledger by phase and kind; kinds are not added up."""
    if not rows:
        say("energy: nothing was spent")
        return
    say(f"energy, all agents together (radio link {link!r}):" if link else "energy:")
    shown = []
    for row in rows:
        phase = "choosing steps" if str(row.get("source", "")).endswith(CHOOSING) else row["phase"]
        amounts = [None if row.get(key) is None else si_text(row[key], unit) for key, unit in UNITS.items()]
        shown.append([phase, row["kind"], *amounts])
    table(("phase", "kind", "joules", "seconds", "bits", "FLOPs"), shown)
    if link and not knows_receiving(named_link(link)):
        say("the downlink is not charged: this link does not say what receiving costs")


def show_summary(folder: Path) -> None:
    """The result of a run, best first: quality at the headline number of steps, and joules with how they are known."""
    summary = Summary.read(folder)
    metric, statistic, at = summary.metric, summary.statistic, summary.headline_steps
    sign = -1 if summary.better == "higher" else 1
    headline, column = f"{statistic} {metric} after {at} steps", metric
    scores = {name: summary.score(name, at) for name in summary.methods}
    if not summary.tasks:
        headline, column = f"agents' loss after {at} steps", "loss"
        scores = {name: method.worth.get("final") for name, method in summary.methods.items()}
        sign = 1
    kinds = {kind for method in summary.methods.values() for kind in method.energy.get("computation", {})}
    served = any("server" in method.energy for method in summary.methods.values())

    def joules(method: MethodSummary, *phases: str) -> str:
        spent = (kinds for phase, kinds in method.energy.items() if phase in phases)
        return si_text(sum(amount.joules for kinds in spent for amount in kinds.values()), "J")

    columns = {"joules": TRAINING, "uplink": ("uplink",), "computation": ("computation",)}
    columns |= {"server": ("server",)} if served else {}

    def shown(score: float) -> str:
        return score_text(summary, score) if summary.tasks else digits(score)  # without tasks it is a loss

    rows = []
    for name, score in sorted(scores.items(), key=lambda s: (s[1] is None, sign * (s[1] or 0.0))):
        method = summary.methods[name]
        lost = len(method.diverged)
        gone = f" ({lost} of {len(summary.seeds)} diverged)" if lost and score is not None else ""
        quality = summary.no_score(name, at) if score is None else shown(score)
        label = _short_label(method.label, LABEL - len(gone)) + gone
        rows.append((label, quality, *[joules(method, *phases) for phases in columns.values()]))
    say(f"{summary.title}: {headline}")
    known = f"; computation is {' + '.join(sorted(kinds))}" if kinds else ""
    say_wrapped(f"Joules are those of all agents together; uplink is analytic{known}.")
    table(("method", column, *columns), rows)
    show_personal(summary)
    for method in summary.methods.values():
        for remark in method.remarks:
            say_wrapped(f"{method.label} is {remark}")


def _short_label(label: str, most: int = LABEL) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"


def show_personal(summary: Summary) -> None:
    """What the agents themselves get, on test samples of their own, best first; nothing where they keep none."""
    if summary.alone is None:
        return
    at, metric, sign = summary.headline_steps, summary.metric, -1 if summary.better == "higher" else 1
    rows: list[tuple[Any, ...]] = [("alone (own local model)", None, *_spread(summary.alone))]
    for method in summary.methods.values():
        if at in method.personal:
            first, tuned = method.personal.get(0), method.personal[at]
            rows.append((_short_label(method.label), None if first is None else first.mean, *_spread(tuned)))
    rows.sort(key=lambda row: (row[2] is None, sign * (row[2] or 0.0)))
    say(f"{metric} on {len(summary.agents)} agents' own test samples, after {at} steps (before: none):")
    table(("method", "before", "mean", "median", "worst tenth", "beat alone"), rows)


def _spread(spread: Spread) -> tuple[Any, ...]:
    share = spread.better_than_alone
    return spread.mean, spread.median, spread.worst_tenth, None if share is None else f"{share:.0%}"


def show_answers(folder: Path) -> None:
    """How a run ends: the three answers in the page's words, and where the page is."""
    run = RunFolder.read(folder)
    say()
    for line in cards.lines(run.summary, digest(run), width()):
        say(line)
    say(f"report: {folder / 'report.html'}")
