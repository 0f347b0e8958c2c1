"""Questions: inputs without targets that the server and all agents know, at which agents evaluate their own models.

    range:LOW:HIGH              a grid for one input, a Latin hypercube (McKay et al. 1979) for several
    noise:28x28                 smooth random images with values from 0 to 1; noise:32x32x3 for colours
    strokes:28x28               random lines in the middle of a dark image, as drawings and letters are
    numbers [questions, ...]    a user's own inputs, out of a file of the kinds that samples are read from

The first three are drawn from a key that both ends have, so asking them costs nothing. Own inputs have to be sent.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.errors import InputError

MOST_NUMBERS = 50_000
"""Of own questions: they are part of a method's settings, which every agent gets."""
COARSE_SIDES = {"noise": 7, "strokes": 5}  # of the grid of random numbers that images are interpolated from
LINE_WIDTH = 0.5  # of strokes, in standard deviations of the smooth noise whose zeros they follow
WRITTEN = "range:LOW:HIGH, noise:HEIGHTxWIDTH, strokes:HEIGHTxWIDTH or a list of inputs"


@dataclass(frozen=True)
class Questions:
    """`number` questions: own ones where `given`, else drawn. `sides` are those of an image, of noise or strokes."""

    number: int
    kind: str = "range"
    given: Any = None  # nested tuples of numbers
    low: float = 0.0
    high: float = 1.0
    sides: tuple[int, ...] = ()

    def draw(self, key: Array, shape: tuple[int, ...]) -> Array:
        """The questions as inputs of this shape [number, *shape], the same for everybody with the key."""
        width = math.prod(shape)
        own = None if self.given is None else np.asarray(self.given, np.float32).reshape(self.number, -1)
        wanted = math.prod(self.sides) if self.sides else width if own is None else own.shape[1]
        if wanted != width:
            raise InputError(f"questions have {wanted} numbers each, but the model takes {width}; make them as many.")
        if own is not None:
            flat = jnp.asarray(own)
        elif self.sides:
            flat = images(self.kind, key, self.number, self.sides)
        elif width == 1:
            flat = jnp.linspace(self.low, self.high, self.number)
        else:
            order, within = jax.random.split(key)
            rows = jax.vmap(lambda k: jax.random.permutation(k, self.number))(jax.random.split(order, width)).T
            at = (rows + jax.random.uniform(within, rows.shape)) / self.number
            flat = self.low + (self.high - self.low) * at
        return flat.reshape(self.number, *shape)

    @property
    def is_range(self) -> bool:
        """Whether every input between two questions could be a question too."""
        return self.given is None and not self.sides

    def between(self, key: Array, shape: tuple[int, ...], count: int) -> Array:
        """`count` random inputs from the range [count, *shape]."""
        return jax.random.uniform(key, (count, *shape), minval=self.low, maxval=self.high)


def read_questions(value: Any, number: int) -> Questions:
    """Questions as a method's settings write them; `number` of them where they are drawn."""
    if isinstance(value, tuple):
        return _own(value)
    kind, _, rest = str(value).partition(":")
    parts = rest.split(":")
    try:
        if kind == "range" and len(parts) == 2:
            low, high = map(float, parts)
            if -math.inf < low < high < math.inf:
                return Questions(number, low=low, high=high)
        elif kind in COARSE_SIDES and len(parts) == 1:
            sides = tuple(map(int, rest.split("x")))
            if len(sides) in (2, 3) and all(1 <= side <= 4096 for side in sides) and math.prod(sides) <= 2**24:
                return Questions(number, kind, sides=sides)
    except ValueError:
        pass  # said below
    raise InputError(f"questions must be {WRITTEN}, such as range:-5:5 or noise:28x28, got {str(value)[:60]!r}.")


def questions_from_file(path: str | Path) -> Any:
    """A user's own questions as a method takes them: nested lists of the inputs in a file; a target is left aside."""
    from fewjoule.tasks.readers import read_table  # and with it Arrow, which no other question needs

    x = read_table(path, needs_target=False).train[0]
    if x.size > MOST_NUMBERS:
        raise InputError(f"{path}: questions may hold {MOST_NUMBERS} numbers in all, got {x.size}; leave some out.")
    return x.tolist()


def images(kind: str, key: Array, number: int, sides: tuple[int, ...]) -> Array:
    """Random images of these sides, flat, with values from 0 to 1.

    Noise is smooth bright shapes on a dark ground. Strokes are the contour lines at 0 of smooth noise, which look like
    those of a pen, within a circle: what is drawn stands in the middle of its image.
    """
    fine = jax.image.resize(coarse_noise(kind, key, number, sides), (number, *sides), "cubic")
    fine = fine / jnp.maximum(fine.std(axis=(1, 2), keepdims=True), 1e-6)
    if kind == "noise":
        return jax.nn.sigmoid(3 * (fine - 0.8)).reshape(number, -1)
    lines = jnp.clip(1.5 * (1 - jnp.abs(fine) / LINE_WIDTH), 0, 1)
    return (lines * inside_of(sides).reshape(*sides[:2], *([1] * (len(sides) - 2)))).reshape(number, -1)


def coarse_noise(kind: str, key: Array, number: int, sides: tuple[int, ...]) -> Array:
    """The few random numbers [number, rows, columns, ...] that images are interpolated from."""
    coarse = tuple(min(side, COARSE_SIDES[kind]) for side in sides[:2])
    return jax.random.normal(key, (number, *coarse, *sides[2:]))


def image_tables(asked: Questions, key: Array) -> dict[str, Array]:
    """What a device draws images from: their coarse noise, and the matrices that enlarge it, rows @ coarse @ columns.T.

    Of strokes also how much of each pixel they may fill.
    """
    coarse = coarse_noise(asked.kind, key, asked.number, asked.sides)
    rows, columns = (
        jax.image.resize(jnp.eye(few), (side, few), "cubic")
        for few, side in zip(coarse.shape[1:3], asked.sides, strict=False)
    )
    inside = {"inside": inside_of(asked.sides)} if asked.kind == "strokes" else {}
    return {"coarse_noise": coarse, "row_shares": rows, "column_shares": columns, **inside}


def inside_of(sides: tuple[int, ...]) -> Array:
    """How much of each pixel [rows, columns] strokes may fill: 1 in the middle, 0 in the corners."""
    rows, columns = (jnp.linspace(-1, 1, side) for side in sides[:2])
    return jax.nn.sigmoid((0.8 - jnp.hypot(rows[:, None], columns)) * sides[0] / 2)


def _own(value: tuple[Any, ...]) -> Questions:
    try:
        table = np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"questions must be {WRITTEN} of one shape, got a ragged one.") from error
    if table.dtype.kind != "f" or not table.size or not np.isfinite(table).all():
        raise InputError(f"questions must be {WRITTEN}, finite and at least one, got shape {list(table.shape)}.")
    if table.size > MOST_NUMBERS:
        raise InputError(f"questions may hold {MOST_NUMBERS} numbers in all, got {table.size}; leave some out.")
    return Questions(len(value), given=value)
