"""The command line. Each command lives in its own module; this one puts them together and turns mistakes into exits."""

import sys

import typer

from fewjoule.cli import doctor, report, run
from fewjoule.errors import InputError

app = typer.Typer(
    name="fewjoule",
    help="Federated meta-learning that counts its energy.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Federated meta-learning that counts its energy."""


app.command()(run.run)
app.command()(doctor.doctor)
app.command()(report.report)


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    try:
        app()
    except InputError as error:
        print(f"fewjoule: {error}", file=sys.stderr)
        sys.exit(2)
