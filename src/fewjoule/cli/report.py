"""`fewjoule report`: the figures and the page of a finished run, redrawn from its folder alone."""

from pathlib import Path
from typing import Annotated

import typer

from fewjoule.reporting import write_report


def report(
    folder: Annotated[Path, typer.Argument(help="A run folder, as `fewjoule run` writes it.", show_default=False)],
) -> None:
    """Redraw the figures and the page of a run, from its folder alone."""
    page = write_report(folder)
    typer.echo(f"wrote {page} and {page.parent / 'figures'}")
