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
from fewjoule.training.program import BRIEF_OPTIONS, Program
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
    few, steps, classifies = _shown(model, tasks), _steps(evaluation), model.loss_name == "cross_entropy"
    said: dict[str, Array] = {}
    for name, start in starts.items():
        if np.isfinite(start.meta).all():
            each = np.asarray(_program(model, few, evaluation, start).run())
            said[name] = each.astype(np.int32 if classifies else np.float32)
    drawn = SAMPLES if math.prod(few.support.x.shape[2:]) == 1 else 0
    support_x, support_y = _real(jax.tree.map(lambda a: a[:, :drawn], few.support._replace(allowed=None)), classifies)
    query_x, query_y = _real(few.query, classifies)
    return Predictions(steps, seed, support_x, support_y, query_x, query_y, said)


def predict_ahead(model: Model, tasks: Tasks, evaluation: Evaluation, tuning: Tuning, rated: bool) -> None:
    """Compile what methods with this tuning, with rates or without, need for `predict_new_tasks`, and run nothing."""
    vector: Any = jax.ShapeDtypeStruct((model.size,), np.float32)  # type: ignore[no-untyped-call]
    _program(model, _shown(model, tasks), evaluation, NewDevice(vector, tuning, vector if rated else None)).compile()


def _steps(evaluation: Evaluation) -> list[int]:
    return sorted({0, 1, evaluation.headline})


def _shown(model: Model, tasks: Tasks) -> Tasks:
    """The first tasks, with some of their queries."""
    few: Tasks = jax.tree.map(lambda a: np.asarray(a)[:TASKS], tasks)
    least = int(np.asarray(few.query.mask).sum(-1).min())
    wanted = min(QUERIES["classification" if model.loss_name == "cross_entropy" else "regression"], least)
    which = np.unique(np.linspace(0, least - 1, wanted).round().astype(int))
    queries = jax.tree.map(lambda a: a[:, which], few.query._replace(allowed=None))
    return Tasks(few.support, queries._replace(allowed=few.query.allowed))


def _program(model: Model, few: Tasks, evaluation: Evaluation, start: NewDevice) -> Program:
    static = (model, tuple(_steps(evaluation)), evaluation.learning_rate, evaluation.optimiser, start.tuning)
    return Program(_said, static, (start.meta, start.rates, few.support, few.query), brief=True)


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4), compiler_options=BRIEF_OPTIONS)
def _said(
    model: Model, steps: tuple[int, ...], learning_rate: float, optimiser: str, tuning: Tuning, meta: Any, rates: Any,
    support: Samples, queries: Samples,
) -> Any:  # fmt: skip
    """Outputs or classes [steps, tasks, q, ...] of a meta-model [d] after each number of steps."""

    def outputs(samples: Samples, vector: Any) -> Any:
        found = model.apply(vector, samples.x)
        if model.loss_name != "cross_entropy":
            return found
        return (found if samples.allowed is None else jnp.where(samples.allowed, found, -jnp.inf)).argmax(-1)

    by = rated(make_optimiser(optimiser, learning_rate), rates)

    def of_task(support: Samples, queries: Samples) -> Any:
        return at_each(model, steps, by, tuning, meta, support, partial(outputs, queries))[0]

    return jax.vmap(of_task, out_axes=1)(support, queries)


def _real(samples: Samples, classifies: bool) -> tuple[Array, Array]:
    """Inputs (half precision is enough to look at) and targets, without what is padding."""
    x, y, mask = np.asarray(samples.x), np.asarray(samples.y), np.asarray(samples.mask) > 0
    shaped = mask.reshape(*mask.shape, *(1,) * (y.ndim - 2))
    targets = np.where(shaped, y, -1).astype(np.int32) if classifies else np.where(shaped, y, np.nan).astype(np.float32)
    return np.clip(x, -6e4, 6e4).astype(np.float16), targets
