"""The command line. Each command lives in its own module; this one puts them together and turns mistakes into exits."""

import sys
import warnings
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fewjoule.errors import InputError

COMMANDS = {  # name: where it is, and the first line of its help
    "run": (
        "run.run",
        "Run a study: local training, every method, adaptation to new tasks, energy, figures and a page.",
    ),
    "plan": (
        "plan.plan",
        "Estimate what each method costs one agent at most on a link, which ones fit a budget, and which to take.",
    ),
    "doctor": (
        "doctor.doctor",
        "Check what this machine can measure and whether a run would work; exit code 0 only if it would.",
    ),
    "report": ("report.report", "Redraw the figures and the page of a run, from its folder alone."),
    "train": ("train.train", "Train a meta-model over the agents in FOLDER."),
    "adapt": ("adapt.adapt", "Fine-tune META to a new task from a few samples, or to every task in a folder."),
    "predict": ("predict.predict", "Write a model's predictions for INPUTS as CSV: one line per sample."),
    "evaluate": (
        "evaluate.evaluate",
        "Fine-tune META to every new task in FOLDER and show the quality reached, as a table and a CDF.",
    ),
    "export": (
        "export.export",
        "Write a model for another runtime: ONNX, weights with PyTorch's or Flax's names and axes, or C.",
    ),
    "show": ("export.show", "Show a model's card and tensors; no weights are read."),
    "federation": ("federation.app", "Run methods between real machines (extra: federation)."),
}


class ImportedWhenCalled(TyperGroup):
    """Help lists the commands from the table; a command is imported when it is called, because JAX takes a second."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else command, rest


def load(name: str) -> Any:
    """The real command of this name."""
    module, _, what = COMMANDS[name][0].partition(".")
    found = getattr(import_module(f"fewjoule.cli.{module}"), what)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name)(found)
    return typer.main.get_command(alone)


def version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        from fewjoule._version import __version__

        typer.echo(f"fewjoule {__version__}")
        raise typer.Exit


def program(
    version: Annotated[
        bool, typer.Option("--version", callback=version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""


app = typer.Typer(
    name="fewjoule",
    callback=program,
    help="Federated meta-learning that counts its energy.",
    cls=ImportedWhenCalled,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: no boxes, and no type for a flag
)
for name, (_, line) in COMMANDS.items():
    app.command(name, short_help=line)(lambda: None)


def show_warnings_once() -> None:
    """A warning is one line on stderr, as a mistake is, and said once however often it is raised."""
    said: set[str] = set()

    def show(message: Any, *_: Any, **__: Any) -> None:
        text = str(message)
        if text.startswith("Error writing persistent compilation cache"):  # JAX says it of every program
            text = import_module("fewjoule.files").NO_CACHE
        if text not in said:
            said.add(text)
            print(f"fewjoule: warning: {text}", file=sys.stderr)

    warnings.showwarning = show


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    show_warnings_once()
    try:
        app()
    except InputError as error:
        print(f"fewjoule: {error}", file=sys.stderr)
        sys.exit(2)
