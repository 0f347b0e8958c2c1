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


for command in (
    run.run, plan.plan, doctor.doctor, report.report, train.train, adapt.adapt, predict.predict, evaluate.evaluate,
    export.export, export.show,
):  # fmt: skip
    app.command()(command)
app.add_typer(federation.app, name="federation")


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    try:
        app()
    except InputError as error:
        print(f"fewjoule: {error}", file=sys.stderr)
        sys.exit(2)
