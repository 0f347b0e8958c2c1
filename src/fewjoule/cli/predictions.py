"""Tables that people and scripts read: predictions, qualities over new tasks, and their distribution."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.errors import InputError
from fewjoule.models.model import Model
from fewjoule.tasks.files import DataFormat
from fewjoule.training.adapt import Adaptation

CHUNK = 4096
"""Samples predicted at once, so that memory does not grow with the file."""


def predictions(
    model: Model, vector: Array, x: np.ndarray[Any, Any], reading: DataFormat, file: str | Path
) -> tuple[list[str], list[list[Any]]]:
    """Header and rows: the targets of a regression; the class and each class's probability of a classification."""
    program = jax.jit(model.apply)
    try:
        outputs = np.concatenate([np.asarray(program(vector, jnp.asarray(p))) for p in _chunks(x)])
    except (TypeError, ValueError) as error:
        raise InputError(f"{file} has inputs of shape {list(x.shape[1:])}, which {model} does not take.") from error
    if model.loss_name == "mse":
        names = [name.strip() for name in reading.target.split(",")]
        if len(names) != outputs.shape[1]:
            names = [f"{reading.target}_{i}" for i in range(outputs.shape[1])]
        return names, [[_short(v) for v in row] for row in outputs]
    classes = list(reading.classes or map(str, range(outputs.shape[1])))
    classes += [str(i) for i in range(len(classes), outputs.shape[1])]
    chances = np.asarray(jax.nn.softmax(outputs, axis=-1))
    header = ["class", *(f"p_{name}" for name in classes)]
    return header, [[classes[int(row.argmax())], *(_short(v) for v in row)] for row in chances]


def quantile_rows(steps: Sequence[int], values: np.ndarray[Any, Any]) -> list[list[Any]]:
    """For each number of steps: mean, then the quantiles 5, 25, 50, 75 and 95 % over tasks [tasks, steps]."""
    quantiles = np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95), axis=0, method="inverted_cdf")
    return [[s, float(values[:, i].mean()), *(float(q) for q in quantiles[:, i])] for i, s in enumerate(steps)]


def cdf_table(steps: Sequence[int], values: np.ndarray[Any, Any]) -> str:
    """CSV of the empirical distribution: the share of tasks whose value is at most this one."""
    lines = ["steps,value,share"]
    for i, s in enumerate(steps):
        points, counts = np.unique(values[:, i], return_counts=True)
        lines += [f"{s},{_short(p)},{_short(c)}" for p, c in zip(points, counts.cumsum() / len(values), strict=True)]
    return "\n".join(lines) + "\n"


def cdf_text(values: np.ndarray[Any, Any], what: str, width: int = 50) -> list[str]:
    """The empirical distribution as lines of text: each decile with a bar as long as its share."""
    lines = [f"CDF: share of tasks with {what} at most ..."]
    for share in range(10, 101, 10):
        value = float(np.quantile(values, share / 100, method="inverted_cdf"))
        lines.append(f"  {share:3d} %  {'#' * (width * share // 100):<{width}}  {value:.4g}")
    return lines


def evaluation_table(names: Sequence[str], result: Adaptation) -> str:
    """CSV with one line per task and number of steps."""
    lines = ["task,steps,loss,accuracy"]
    for t, name in enumerate(names):
        for i, s in enumerate(result.steps):
            accuracy = result.accuracy[t, i]
            lines.append(
                f"{_quoted(name)},{s},{_short(result.loss[t, i])},{'' if np.isnan(accuracy) else _short(accuracy)}"
            )
    return "\n".join(lines) + "\n"


def _chunks(x: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    return [x[i : i + CHUNK] for i in range(0, len(x), CHUNK)]


def _short(value: Any) -> str:
    """The shortest text that reads back as the same float32."""
    return str(np.float32(value))


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n') else text
