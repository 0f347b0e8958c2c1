"""How many steps of fine-tuning: few samples leave nothing to hold out for good, so the number is chosen
on the samples themselves.

From a meta-model and one task's samples to a number of steps and the losses that speak for it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.energy.metering import Around
from fewjoule.errors import InputError
from fewjoule.models.model import Model
from fewjoule.tasks.samples import Samples, Tasks
from fewjoule.training.adapt import adapt_all
from fewjoule.training.program import Program
from fewjoule.training.tuning import ALL_WEIGHTS, Tuning

CHOICES = ("leave-one-out", "validation")
MOST_LEFT_OUT = 200
"""Samples up to which each is left out in turn: that many fine-tunings run at once."""


class StepChoice(NamedTuple):
    """A number of steps, the losses on samples held out that it was chosen by, and the FLOPs of all that."""

    steps: int
    by: str
    loss: list[float]  # by number of steps, from 0
    flops: int


def choose_steps(
    model: Model,
    meta: Array,
    support: Samples,
    *,
    most: int,
    by: str,
    learning_rate: float = 0.01,
    optimiser: str = "sgd",
    share: float = 0.25,
    seed: int = 0,
    tuning: Tuning = ALL_WEIGHTS,
    rates: Array | None = None,
    around: Around | None = None,
) -> StepChoice:
    """The number of steps, up to `most`, with the lowest mean loss on samples held out of `support` [n, ...].

    Each sample is left out in turn ("leave-one-out"), or a `share` is held out once ("validation"). `around` is handed
    the execution of the compiled program.
    """
    if by not in CHOICES:
        raise InputError(f"steps are chosen by {' or '.join(CHOICES)}, not {by!r}.")
    count = int(support.mask.sum())
    if count < 2:
        raise InputError(f"choosing the number of steps needs at least 2 samples, got {count}; give --steps alone.")
    if by == "leave-one-out":
        if count > MOST_LEFT_OUT:
            raise InputError(
                f"leave-one-out is for at most {MOST_LEFT_OUT} samples, got {count}; use --choose validation."
            )
        held = np.eye(count, len(support.mask), dtype=np.float32)
    else:
        if not 0 < share < 1:
            raise InputError(f"the validation share must be above 0 and below 1, got {share}.")
        few = min(max(1, round(share * count)), count - 1)
        held = np.zeros((1, len(support.mask)), np.float32)
        held[0, np.random.default_rng(seed).permutation(count)[:few]] = 1
    every = jax.tree.map(lambda a: jnp.repeat(a[None], len(held), 0), support)
    tasks = Tasks(every._replace(mask=every.mask - held), every._replace(mask=jnp.asarray(held)))
    static = (model, tuple(range(most + 1)), learning_rate, optimiser, False, tuning, False)
    own_rates = None if rates is None else jnp.asarray(rates, jnp.float32)[None]
    program = Program(adapt_all, static, (jnp.asarray(meta, jnp.float32)[None], tasks, own_rates))
    reached = np.asarray(program.run(around)[0])[0]
    losses = np.where(np.isnan(reached), np.inf, reached).mean(0)
    if not np.isfinite(losses).any():
        raise InputError(f"fine-tuning diverged at every number of steps of {learning_rate:g}; lower --learning-rate.")
    return StepChoice(int(losses.argmin()), by, losses.tolist(), program.flops())
