"""How files of samples are read, the same for training, adapting and predicting; the model card keeps it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fewjoule.errors import InputError, is_real, positive, text, unknown
from fewjoule.tasks.samples import Pair

Values = np.ndarray[Any, Any]
TASKS = ("regression", "classification")
LARGEST_INPUT = 3e38  # of float32
SMALLEST_SCALE = 1e-6
"""Of a standard deviation against the mean: what float32 cannot tell from an input that never changes."""


class DataFormat(NamedTuple):
    """How files are read. The same for training, adapting and predicting, so the model card keeps it ("reading")."""

    target: str = "y"
    task: str | None = None  # "regression" or "classification"; None tells it by the targets' type
    divide_by: float = 1.0  # every input is divided by this: 255 for 8-bit images
    classes: tuple[str, ...] | None = None  # names of the classes where the targets are text
    columns: tuple[str, ...] = ()  # names of the inputs where the files have them
    mean: tuple[float, ...] = ()  # of every input over the agents' samples, taken off where they are standardised
    scale: tuple[float, ...] = ()  # and what is divided by then: its standard deviation


def format_of_card(card: Mapping[str, Any], task: str, **said: Any) -> DataFormat:
    """How a model's files are read: as its card says, unless the user said otherwise."""
    reading = card.get("reading") or {}
    if not isinstance(reading, dict):
        raise InputError(f"the model card's reading must be a table, got {reading!r}; write the model again.")
    known = {key: tuple(v) if isinstance(v, list) else v for key, v in reading.items() if key in DataFormat._fields}
    format = DataFormat(**known | said)._replace(task=task)
    check_format(format)
    return format


def check_format(format: DataFormat) -> None:
    """A model card may say anything, since it may come from a stranger."""
    text("target (--target)", format.target)
    if format.task is not None and format.task not in TASKS:
        raise unknown("task", format.task, TASKS)
    positive("divide_by (--divide-by)", format.divide_by)
    for name, values in (("classes", format.classes or ()), ("columns", format.columns)):
        if not (isinstance(values, tuple) and all(isinstance(value, str) for value in values)):
            raise InputError(f"{name} must be a tuple of names, got {values!r}; write the model card again.")
    for name, numbers in (("mean", format.mean), ("scale", format.scale)):
        fine = isinstance(numbers, tuple) and all(is_real(n) and abs(n) < LARGEST_INPUT for n in numbers)
        if not fine or len(numbers) != len(format.mean) or (name == "scale" and not all(n > 0 for n in numbers)):
            raise InputError(f"{name} must be one number for each input; write the model card again.")


def scaled(where: str, x: Values, format: DataFormat) -> Values:
    x = x if format.divide_by == 1 else x / np.float32(format.divide_by)
    if not format.mean:
        return x
    if x.shape[1:] != (len(format.mean),):
        raise InputError(
            f"{where} has inputs of shape {list(x.shape[1:])}, the model takes {len(format.mean)} columns."
        )
    return standardised(x, format)


def standardised(x: Values, format: DataFormat) -> Values:
    """Inputs [n, features] with the format's mean taken off, divided by its scale."""
    mean, scale = (np.asarray(numbers, np.float32) for numbers in (format.mean, format.scale))
    return (x - mean) / scale


def standardising(format: DataFormat, pairs: Sequence[Pair]) -> DataFormat:
    """The format with mean and scale of every input over all samples; an input that never changes has scale 1."""
    x = np.concatenate([np.asarray(x, np.float64) for x, _ in pairs])
    if x.ndim != 2:
        raise InputError(
            f"standardise is for columns of numbers, got inputs of shape {list(x.shape[1:])}; scale images by "
            "divide_by (--divide-by)."
        )
    mean, scale = x.mean(0), x.std(0)
    scale[scale < SMALLEST_SCALE * np.maximum(np.abs(mean), 1e-30)] = 1.0
    return format._replace(mean=tuple(mean.tolist()), scale=tuple(scale.tolist()))
