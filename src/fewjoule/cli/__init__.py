"""The command line. Each command lives in its own module; this one puts them together and turns mistakes into exits."""

import sys

import typer

from fewjoule.cli import adapt, doctor, evaluate, export, federation, plan, predict, report, run, train
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
app.command()(plan.plan)
app.command()(doctor.doctor)
app.command()(report.report)
app.command()(train.train)
app.command()(adapt.adapt)
app.command()(predict.predict)
app.command()(evaluate.evaluate)
app.command()(export.export)
app.command()(export.show)
app.add_typer(federation.app, name="federation")


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    try:
        app()
    except InputError as error:
        print(f"fewjoule: {error}", file=sys.stderr)
        sys.exit(2)
