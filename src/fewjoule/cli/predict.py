"""`fewjoule predict`: a model's predictions for a file of inputs, as CSV."""

import csv
import io
from pathlib import Path
from typing import Annotated, Any

import typer

from fewjoule.cli.options import (
    DivideBy,
    Force,
    Layout,
    Loss,
    MetaFile,
    Spec,
    Target,
    format_of,
    load,
    writable,
)  # fmt: skip
from fewjoule.cli.screen import say, short
from fewjoule.errors import InputError

CHUNK = 4096
"""Samples predicted at once, so that memory does not grow with the file."""


def predict(
    file: MetaFile,
    inputs: Annotated[Path, typer.Argument(help="Inputs: .npz with x, .csv or .parquet; a target is left aside.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A CSV file; else the screen.")] = None,
    target: Target = None,
    divide_by: DivideBy = None,
    spec: Spec = None,
    loss: Loss = None,
    layout: Layout = None,
    force: Force = False,
) -> None:  # fmt: skip
    """Write a model's predictions for INPUTS as CSV: one line per sample."""
    from fewjoule.files import write_atomically
    from fewjoule.tasks.files import read_inputs

    writable(output, force=force)
    loaded = load(file, spec, loss, layout)
    form = format_of(loaded, target, divide_by)
    header, rows = predictions(loaded.model, loaded.vector, read_inputs(inputs, form), form, inputs)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    if output is None:
        typer.echo(text.getvalue(), nl=False)
    else:
        write_atomically(output, text.getvalue().encode(), force=force)
        say(f"{len(rows)} predictions: {output}")


def predictions(model: Any, vector: Any, x: Any, form: Any, file: Path) -> tuple[list[str], list[list[Any]]]:
    """Header and rows: the targets of a regression; the class and each class's probability of a classification."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    program = jax.jit(model.apply)
    try:
        parts = [np.asarray(program(vector, jnp.asarray(x[i : i + CHUNK]))) for i in range(0, len(x), CHUNK)]
    except (TypeError, ValueError) as error:
        raise InputError(f"{file} has inputs of shape {list(x.shape[1:])}, which {model} does not take.") from error
    outputs = np.concatenate(parts)
    if model.loss_name == "mse":
        names = [name.strip() for name in form.target.split(",")]
        if len(names) != outputs.shape[1]:
            names = [f"{form.target}_{i}" for i in range(outputs.shape[1])]
        return names, [[short(v) for v in row] for row in outputs]
    classes = list(form.classes or map(str, range(outputs.shape[1])))
    classes += [str(i) for i in range(len(classes), outputs.shape[1])]
    chances = np.asarray(jax.nn.softmax(outputs, axis=-1))
    header = ["class", *(f"p_{name}" for name in classes)]
    return header, [[classes[int(row.argmax())], *(short(v) for v in row)] for row in chances]
