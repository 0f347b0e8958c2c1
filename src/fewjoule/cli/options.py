"""Options that several commands share, and what they stand for."""

import tomllib
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fewjoule import files
from fewjoule.errors import InputError
from fewjoule.models.code import is_code, trust
from fewjoule.models.nets import model_from_spec
from fewjoule.models.weights import ModelFile, read_header, read_model
from fewjoule.tasks.format import DataFormat, format_of_card
from fewjoule.tasks.questions import questions_from_file
from fewjoule.tasks.readers import SUFFIXES

MetaFile = Annotated[Path, typer.Argument(help="A model: .safetensors of fewjoule, PyTorch or Flax.")]
Spec = Annotated[str | None, typer.Option("--model", help="Architecture, if the file has no fewjoule card.")]
Loss = Annotated[str | None, typer.Option(help="mse or cross_entropy, if the file has no fewjoule card.")]
Layout = Annotated[str | None, typer.Option(help="pytorch, flax or fewjoule, if the weights are ambiguous.")]
Target = Annotated[str | None, typer.Option(help="Target column of CSV and Parquet (default: as in training).")]
DivideBy = Annotated[float | None, typer.Option(help="Divide every input by this (default: as in training).")]
LearningRate = Annotated[float, typer.Option(help="Learning rate of the fine-tuning.")]
Steps = Annotated[str, typer.Option(help="Numbers of fine-tuning steps, separated by commas.")]
Shots = Annotated[int | None, typer.Option(help="Samples (per class) to adapt on, if a task has no x_test.")]
Optimiser = Annotated[str, typer.Option(help="sgd, adam, ...")]
MeterName = Annotated[str | None, typer.Option("--meter", help="auto, powercap, cpu-time or operations.")]
DeviceName = Annotated[str | None, typer.Option("--device", help="Device profile for modelled energy.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]


def load(path: Path, spec: str | None, loss: str | None, layout: str | None) -> ModelFile:
    """A model by its file; flags say what a file without a card does not."""
    files.use_compile_cache()
    known = loss or (read_header(path).card or {}).get("loss")
    model = None if spec is None or known is None else model_from_spec(named(spec), loss=known)
    return read_model(path, model=model, loss=loss, layout=layout)


def format_of(loaded: ModelFile, target: str | None, divide_by: float | None) -> DataFormat:
    """How the model's files are read: as its card says, unless a flag says otherwise."""
    reading = loaded.card.get("reading")
    of_own_loss = str(reading.get("task")) if isinstance(reading, dict) and reading.get("task") else "regression"
    task = {"mse": "regression", "cross_entropy": "classification"}.get(loaded.model.loss_name, of_own_loss)
    return format_of_card(loaded.card, task, **given(target=target, divide_by=divide_by))


def named(spec: str) -> str:
    """A model's spec as somebody wrote it on the command line: code that it names is trusted from here on."""
    return trust(spec) if is_code(spec) else spec


def given(**flags: Any) -> dict[str, Any]:
    """The flags that somebody gave."""
    return {name: value for name, value in flags.items() if value is not None}


def writable(*paths: Path | None, force: bool) -> None:
    """Refuse files that could not be written, before the work begins."""
    for path in paths:
        if path is not None:
            files.check_writable(path, force=force)


def questions_of(text: str, divide_by: float) -> Any:
    """What --questions stands for: those of a file are scaled as the agents' inputs are."""
    if Path(text).suffix not in SUFFIXES:
        return text
    return (np.asarray(questions_from_file(text)) / divide_by).tolist()


def named_values(texts: list[str]) -> dict[str, Any]:
    """Settings like `rounds=10` by name, values as in TOML."""
    table: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InputError(f"--set takes NAME=VALUE, as in rounds=10, got {text!r}.")
        table[key.strip()] = value_of(value.strip())
    return table


def value_of(text: str) -> Any:
    """A value as TOML writes it; a bare word is text, and `none` is nothing, as in batch=none."""
    if text == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def step_list(text: str) -> list[int]:
    """Numbers of fine-tuning steps like `0,1,10`."""
    try:
        return sorted({int(n) for n in text.split(",")})
    except ValueError as error:
        raise InputError(f"--steps takes whole numbers with commas, as in 0,1,10, got {text!r}.") from error
