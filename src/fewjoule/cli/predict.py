"""`fewjoule predict`: a model's predictions for a file of inputs, as CSV."""

import csv
import sys
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import typer

from fewjoule.cli import options
from fewjoule.cli.screen import say
from fewjoule.errors import InputError
from fewjoule.files import write_csv
from fewjoule.studies.outputs import as_text
from fewjoule.tasks.files import read_inputs

CHUNK = 4096
"""Samples predicted at once, so that memory does not grow with the file."""


def predict(
    file: options.MetaFile,
    inputs: Annotated[Path, typer.Argument(help="Inputs: .npz with x, .csv or .parquet; a target is ignored.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A CSV file; default: the screen.")] = None,
    target: options.Target = None,
    divide_by: options.DivideBy = None,
    spec: options.Spec = None,
    loss: options.Loss = None,
    layout: options.Layout = None,
    force: options.Force = False,
) -> None:  # fmt: skip
    """Write a model's predictions for INPUTS as CSV: one line per sample."""
    options.writable(output, force=force)
    loaded = options.load(file, spec, loss, layout)
    form = options.format_of(loaded, target, divide_by)
    header, rows = predictions(loaded.model, loaded.vector, read_inputs(inputs, form), form, inputs)
    if output is None:
        csv.writer(sys.stdout, lineterminator="\n").writerows([header, *rows])
    else:
        write_csv(output, header, rows, force=force)
        say(f"{len(rows)} predictions: {output}")


def predictions(model: Any, vector: Any, x: Any, form: Any, file: Path) -> tuple[list[str], list[list[Any]]]:
    """Header and rows: the targets of a regression; the class and each class's probability of a classification."""
    program = jax.jit(model.apply)
    try:
        parts = [np.asarray(program(vector, jnp.asarray(x[i : i + CHUNK]))) for i in range(0, len(x), CHUNK)]
    except (TypeError, ValueError) as error:
        raise InputError(f"{file} has inputs of shape {list(x.shape[1:])}, which {model} does not take.") from error
    outputs = np.concatenate(parts)
    if form.task != "classification":
        outputs = outputs.reshape(len(outputs), -1)
        names = [name.strip() for name in form.target.split(",")]
        if len(names) != outputs.shape[1]:
            names = [f"{form.target}_{i}" for i in range(outputs.shape[1])]
        return names, as_text(outputs).tolist()
    classes = list(form.classes or map(str, range(outputs.shape[1])))
    classes += [str(i) for i in range(len(classes), outputs.shape[1])]
    chances = np.asarray(jax.nn.softmax(outputs, axis=-1))
    header = ["class", *(f"p_{name}" for name in classes)]
    return header, [[classes[i], *row] for i, row in zip(chances.argmax(-1), as_text(chances).tolist(), strict=True)]
