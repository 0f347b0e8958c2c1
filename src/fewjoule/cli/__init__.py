"""The command line. Each command lives in its own module; this one puts them together and turns mistakes into exits."""

import sys

import typer

from fewjoule.cli import doctor, federation, own_files, own_train, own_use, plan, report, run
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
app.command()(own_train.train)
app.command()(own_use.adapt)
app.command()(own_use.predict)
app.command()(own_use.evaluate)
app.command()(own_files.export)
app.command()(own_files.show)
app.add_typer(federation.app, name="federation")


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    try:
        app()
    except InputError as error:
        print(f"fewjoule: {error}", file=sys.stderr)
        sys.exit(2)
