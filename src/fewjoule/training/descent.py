"""Descent on one device: the one loop behind local training, adaptation and the local steps of every method."""

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fewjoule.errors import unknown
from fewjoule.randomness import shuffled
from fewjoule.tasks.samples import Samples, draw, rows_of

Loss = Callable[[Array, Samples], Array]
"""Mean loss of a flat vector of weights on samples."""


def near(loss: Loss, centre: Array, weight: float) -> Loss:
    """The loss and weight/2 times the squared distance from `centre`: a proximal term."""
    return lambda vector, samples: loss(vector, samples) + weight / 2 * jnp.vdot(vector - centre, vector - centre)


NOT_BY_NAME = ("lbfgs", "noisy_sgd", "optimistic_adam", "scale_by_learning_rate", "scale_by_rprop")
"""optax functions of a learning rate that need more than it, are parts of optimisers, or have a successor."""


def optimiser_names() -> list[str]:
    """The optax optimisers that need nothing but a learning rate."""
    names = []
    for name, factory in vars(optax).items():
        if name in NOT_BY_NAME or not inspect.isfunction(factory):
            continue
        parameters = list(inspect.signature(factory).parameters.values())
        optional = all(p.default is not p.empty for p in parameters[1:])
        if parameters and parameters[0].name == "learning_rate" and optional:
            names.append(name)
    return sorted(names)


Optimiser: TypeAlias = str | optax.GradientTransformation
"""An optax optimiser by name, or any optax object, which has its learning rate already."""
SCHEDULES: dict[str, Callable[[float, int], Any]] = {
    "constant": lambda rate, steps: rate,
    "linear": lambda rate, steps: optax.linear_schedule(rate, 0.0, steps),
    "cosine": optax.cosine_decay_schedule,
}
"""How a learning rate falls to 0 over so many steps, if it does."""


@lru_cache
def optimiser(
    name: Optimiser, learning_rate: float, schedule: str = "constant", steps: int = 0
) -> optax.GradientTransformation:
    """The optax optimiser of this name, whose learning rate follows the schedule over `steps` steps."""
    if isinstance(name, optax.GradientTransformation):
        return name
    if name not in optimiser_names():
        raise unknown("optimiser", name, optimiser_names())
    if schedule not in SCHEDULES:
        raise unknown("schedule", schedule, SCHEDULES)
    rate = SCHEDULES[schedule](learning_rate, steps)
    built: optax.GradientTransformation = getattr(optax, name)(learning_rate=rate)
    return built


Carry = tuple[Array, Any]
"""A model and the optimiser's memory."""


class Reached(NamedTuple):
    """Where a descent ended: the model, the optimiser's memory, and the loss at which the first step began."""

    vector: Array
    memory: Any
    first_loss: Array


def descend(
    loss: Loss,
    vector: Array,
    samples: Samples,
    key: Array | None = None,
    *,
    by: optax.GradientTransformation,
    steps: int,
    batch: int | None = None,
    memory: Any = None,
    limit: Array | None = None,
) -> Reached:
    """`steps` optimiser steps from a vector, each on a mini-batch of its own (all samples where batch is None).

    `memory` is that of an earlier descent which this one goes on with. Steps from `limit` on change nothing.
    """
    is_new = memory is None
    memory = by.init(vector) if is_new else memory

    def one(carry: Carry, at: tuple[Array | None, Array | None]) -> tuple[Carry, Array]:
        key, index = at
        minibatch = samples if key is None else draw(samples, key, batch)
        return _step(loss, by, carry, minibatch, None if limit is None or index is None else index < limit)

    keys = None if batch is None or key is None else jax.random.split(key, steps)
    if steps == 1 and is_new and limit is None:  # without a loop, which would cost a tenth of MAML's speed
        (vector, memory), value = one((vector, memory), (None if keys is None else keys[0], None))
        return Reached(vector, memory, value)
    at = (keys, None if limit is None else jnp.arange(steps))
    (vector, memory), values = jax.lax.scan(one, (vector, memory), at, length=steps)
    return Reached(vector, memory, values[0] if steps else loss(vector, samples))


def descend_epochs(
    loss: Loss,
    vector: Array,
    samples: Samples,
    key: Array,
    *,
    by: optax.GradientTransformation,
    epochs: int,
    batch: int | None = None,
) -> Reached:
    """`epochs` passes over all samples, shuffled anew for each, in mini-batches of `batch` without replacement.

    The last mini-batch of a pass may be smaller. Padding changes nothing: a mini-batch without samples is no step.
    """
    size = len(samples.mask)
    batch = size if batch is None else min(batch, size)
    count = -(-size // batch)

    def epoch(carry: Carry, key: Array) -> tuple[Carry, Array]:
        order = jnp.pad(shuffled(key, samples.mask), (0, count * batch - size), constant_values=size)

        def one(carry: Carry, rows: Array) -> tuple[Carry, Array]:
            x, y, weight = rows_of(samples, rows, "clip")
            mask = samples.mask.at[rows].get(mode="fill", fill_value=0)
            return _step(loss, by, carry, Samples(x, y, mask, samples.allowed, weight), mask.any())

        return jax.lax.scan(one, carry, order.reshape(count, batch))

    (vector, memory), values = jax.lax.scan(epoch, (vector, by.init(vector)), jax.random.split(key, epochs))
    return Reached(vector, memory, values[0, 0])


def _step(
    loss: Loss, by: optax.GradientTransformation, carry: Carry, minibatch: Samples, counts: Array | None
) -> tuple[Carry, Array]:
    """One step of the optimiser, and the loss at which it began; where it does not count, nothing changes."""
    vector, memory = carry
    value, gradient = jax.value_and_grad(loss)(vector, minibatch)
    change, memory = by.update(gradient, memory, vector)
    after = (optax.apply_updates(vector, change), memory)
    if counts is not None:
        after = jax.tree.map(lambda new, old: jnp.where(counts, new, old), after, carry)
    return after, value
