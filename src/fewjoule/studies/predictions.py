"""What a study's meta-models say on its first few new tasks, before and after fine-tuning, for people to look at."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fewjoule.models.model import Model
from fewjoule.reporting.predictions import Array, Predictions
from fewjoule.studies.families import Evaluation
from fewjoule.tasks.samples import Samples, Tasks
from fewjoule.training.adapt import at_each
from fewjoule.training.descent import optimiser as make_optimiser
from fewjoule.training.program import COMPILER_OPTIONS, Program
from fewjoule.training.tuning import ALL_WEIGHTS, Tuning, rated

TASKS = 8
QUERIES = {"regression": 60, "classification": 12}
SAMPLES = 60
"""Of a task's samples to adapt on, this many are kept, and only where an input is one number: they are drawn."""


class NewDevice(NamedTuple):
    """What a new device gets of a method, and what it does with it."""

    meta: Any  # [d]
    tuning: Tuning = ALL_WEIGHTS
    rates: Any = None  # [d] where they are learned


def predict_new_tasks(
    model: Model, starts: Mapping[str, NewDevice], tasks: Tasks, evaluation: Evaluation, seed: int
) -> Predictions:
    """From each method's meta-model of one seed; those that are not finite are left out.

    The tasks are the study's first, chosen by nothing, and so are the queries, evenly over a task's list.
    """
    few: Tasks = jax.tree.map(lambda a: np.asarray(a)[:TASKS], tasks)
    steps = sorted({0, 1, evaluation.headline})
    classifies = model.loss_name == "cross_entropy"
    least = int(np.asarray(few.query.mask).sum(-1).min())
    wanted = min(QUERIES["classification" if classifies else "regression"], least)
    which = np.unique(np.linspace(0, least - 1, wanted).round().astype(int))
    queries = jax.tree.map(lambda a: a[:, which], few.query._replace(allowed=None))._replace(allowed=few.query.allowed)
    groups: dict[Any, dict[str, NewDevice]] = {}  # those that fine-tune in the same way, at once
    for name, start in starts.items():
        if np.isfinite(start.meta).all():
            groups.setdefault((start.tuning, start.rates is None), {})[name] = start
    said: dict[str, Array] = {}
    for (tuning, plain), group in groups.items():
        metas = np.stack([start.meta for start in group.values()])
        rates = None if plain else np.stack([start.rates for start in group.values()])
        static = (model, tuple(steps), evaluation.learning_rate, evaluation.optimiser, tuning)
        each = np.asarray(Program(_said, static, (metas, rates, few.support, queries)).run())
        said |= zip(group, each.astype(np.int32 if classifies else np.float32), strict=True)
    drawn = SAMPLES if math.prod(few.support.x.shape[2:]) == 1 else 0
    support_x, support_y = _real(jax.tree.map(lambda a: a[:, :drawn], few.support._replace(allowed=None)), classifies)
    query_x, query_y = _real(queries, classifies)
    found = {name: said[name] for name in starts if name in said}
    return Predictions(steps, seed, support_x, support_y, query_x, query_y, found)


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4), compiler_options=COMPILER_OPTIONS)
def _said(
    model: Model, steps: tuple[int, ...], learning_rate: float, optimiser: str, tuning: Tuning, metas: Any, rates: Any,
    support: Samples, queries: Samples,
) -> Any:  # fmt: skip
    """Outputs or classes [methods, steps, tasks, q, ...] of meta-models [methods, d] after each number of steps."""

    def outputs(samples: Samples, vector: Any) -> Any:
        found = model.apply(vector, samples.x)
        if model.loss_name != "cross_entropy":
            return found
        return (found if samples.allowed is None else jnp.where(samples.allowed, found, -jnp.inf)).argmax(-1)

    def one(meta: Any, rates: Any, support: Samples, queries: Samples) -> Any:
        by = rated(make_optimiser(optimiser, learning_rate), rates)
        return at_each(model, steps, by, tuning, meta, support, partial(outputs, queries))[0]

    def of_method(both: tuple[Any, Any]) -> Any:
        return jax.vmap(partial(one, *both), out_axes=1)(support, queries)

    return jax.lax.map(of_method, (metas, rates))


def _real(samples: Samples, classifies: bool) -> tuple[Array, Array]:
    """Inputs (half precision is enough to look at) and targets, without what is padding."""
    x, y, mask = np.asarray(samples.x), np.asarray(samples.y), np.asarray(samples.mask) > 0
    shaped = mask.reshape(*mask.shape, *(1,) * (y.ndim - 2))
    targets = np.where(shaped, y, -1).astype(np.int32) if classifies else np.where(shaped, y, np.nan).astype(np.float32)
    return np.clip(x, -6e4, 6e4).astype(np.float16), targets
