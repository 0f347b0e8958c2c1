"""What commands show: plain aligned tables on stdout, progress on stderr."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer


def say(text: str = "") -> None:
    typer.echo(text)


def pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Names and what they stand for, one below the other."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        typer.echo(f"  {name.ljust(width)}  {text}")


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns as wide as their widest cell; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(len(c) for c in column) for column in zip(header, *cells, strict=True)]
    right = [all(isinstance(row[i], int | float) or row[i] is None for row in rows) for i in range(len(header))]
    for line in (list(header), *cells):
        padded = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)]
        typer.echo("  " + "  ".join(padded).rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


@contextmanager
def stage(text: str) -> Iterator[None]:
    """Say what is being done, with a spinner on a terminal, and how long it took."""
    began = time.perf_counter()
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            progress.add_task(text, total=None)
            yield
    else:
        typer.echo(f"{text} ...", err=True)
        yield
    typer.echo(f"{text}: {time.perf_counter() - began:.1f} s", err=True)
