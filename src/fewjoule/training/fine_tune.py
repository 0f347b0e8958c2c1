"""Fine-tuning to one new task from a few samples: the loss step by step, and how many steps to take.

With so few samples there is often nothing to hold out for good, so the number of steps can be chosen on the samples
themselves: by leaving each one out in turn, or by holding out a share once; then all samples are used for that many.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fewjoule.errors import InputError, positive, positive_int
from fewjoule.models.model import Model
from fewjoule.tasks.samples import Samples, Tasks
from fewjoule.training.descent import optimiser as make_optimiser

CHOICES = ("leave-one-out", "validation")
MOST_LEFT_OUT = 200
"""Samples up to which each is left out in turn: that many fine-tunings run at once."""


class Choice(NamedTuple):
    """A number of steps and the losses on samples held out that it was chosen by."""

    steps: int
    by: str
    loss: list[float]  # by number of steps, from 0


class FineTuned(NamedTuple):
    """An adapted model and its losses by number of steps from 0, on its own samples and on held-out ones if any."""

    vector: Array
    loss: list[float]
    accuracy: list[float]
    test_loss: list[float] | None
    test_accuracy: list[float] | None


def step_grid(most: int) -> tuple[int, ...]:
    """Numbers of steps worth looking at: 0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, ... and `most` itself."""
    grid = {0, 1, most, *(round(m * 10**e) for e in range(7) for m in (1, 1.5, 2, 3, 5, 7))}
    return tuple(sorted(n for n in grid if n <= most))


def check_settings(steps: int, step: float, optimiser: str) -> None:
    """Refuse what cannot be fine-tuned with, before any file is read."""
    positive_int("steps", steps, least=0)
    positive("step", step)
    make_optimiser(optimiser, step)


def fine_tune(
    model: Model,
    meta: Array,
    support: Samples,
    test: Samples | None,
    *,
    steps: int,
    step: float,
    optimiser: str = "sgd",
) -> FineTuned:
    """Take `steps` full-batch descent steps on the support samples [n, ...], looking at the loss after every one."""
    check_settings(steps, step, optimiser)
    queries = (support,) if test is None else (support, test)
    vector, path = _descend(model, optimiser, step, steps, meta, support, queries)
    losses, accuracies = np.asarray(path[0]), np.asarray(path[1])
    if not bool(jnp.isfinite(vector).all()) or not np.isfinite(losses[:, 0]).all():
        raise InputError(f"fine-tuning diverged within {steps} steps of {step:g}; lower --step.")
    held = (losses[:, 1].tolist(), accuracies[:, 1].tolist()) if test is not None else (None, None)
    return FineTuned(vector, losses[:, 0].tolist(), accuracies[:, 0].tolist(), *held)


def choose_steps(
    model: Model,
    meta: Array,
    support: Samples,
    *,
    most: int,
    by: str,
    step: float,
    optimiser: str = "sgd",
    share: float = 0.25,
    seed: int = 0,
) -> Choice:
    """The number of steps, up to `most`, with the lowest mean loss on samples held out of `support` [n, ...]."""
    if by not in CHOICES:
        raise InputError(f"steps are chosen by {' or '.join(CHOICES)}, not {by!r}.")
    check_settings(most, step, optimiser)
    count = int(support.mask.sum())
    if count < 2:
        raise InputError(f"choosing the number of steps needs at least 2 samples, got {count}; give --steps alone.")
    if by == "leave-one-out":
        if count > MOST_LEFT_OUT:
            raise InputError(
                f"leave-one-out is for at most {MOST_LEFT_OUT} samples, got {count}; use --choose validation."
            )
        held = jnp.eye(count, len(support.mask))
    else:
        if not 0 < share < 1:
            raise InputError(f"the validation share must be above 0 and below 1, got {share}.")
        few = min(max(1, round(share * count)), count - 1)
        rows = np.random.default_rng(seed).permutation(count)[:few]
        held = jnp.zeros((1, len(support.mask))).at[0, rows].set(1)

    def without(mask: Array) -> Array:
        fit, query = support._replace(mask=support.mask - mask), support._replace(mask=mask)
        return _descend(model, optimiser, step, most, meta, fit, (query,))[1][0][:, 0]

    losses = np.asarray(jax.vmap(without)(held)).mean(0)
    if not np.isfinite(losses).any():
        raise InputError(f"fine-tuning diverged at every number of steps of {step:g}; lower --step.")
    return Choice(int(np.nanargmin(losses)), by, losses.tolist())


def one_task(support: Samples, query: Samples | None = None) -> Tasks:
    """Samples [n, ...] as the only task of a stack; judged on themselves where no query is given."""
    pair = (support, support if query is None else query)
    return Tasks(*(jax.tree.map(lambda a: a[None], samples) for samples in pair))


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _descend(
    model: Model,
    optimiser: str,
    step: float,
    steps: int,
    vector: Array,
    support: Samples,
    queries: tuple[Samples, ...],
) -> tuple[Array, tuple[Array, Array]]:
    """The model after the last step, and losses and accuracies [steps + 1, queries] on the way."""
    chosen = make_optimiser(optimiser, step)

    def judge(vector: Array) -> tuple[Array, Array]:
        return (
            jnp.stack([model.loss(vector, query) for query in queries]),
            jnp.stack([model.accuracy(vector, query) for query in queries]),
        )

    def one(carry: tuple[Array, Any], _: None) -> tuple[tuple[Array, Any], tuple[Array, Array]]:
        vector, memory = carry
        change, memory = chosen.update(jax.grad(model.loss)(vector, support), memory, vector)
        return (optax.apply_updates(vector, change), memory), judge(vector)

    (vector, _), path = jax.lax.scan(one, (vector, chosen.init(vector)), None, length=steps)
    return vector, jax.tree.map(lambda before, last: jnp.concatenate([before, last[None]]), path, judge(vector))
