"""Descent on one device: optimisers of optax by name, and plain stochastic gradient descent."""

import inspect
from collections.abc import Callable
from functools import lru_cache

import jax
import optax
from jax import Array

from fewjoule.errors import unknown
from fewjoule.tasks.samples import Samples, draw

Loss = Callable[[Array, Samples], Array]
"""Mean loss of a flat vector of weights on samples."""

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


@lru_cache
def optimiser(name: str, step: float) -> optax.GradientTransformation:
    """The optax optimiser of this name with learning rate `step`."""
    names = optimiser_names()
    if name not in names:
        raise unknown("optimiser", name, names)
    built: optax.GradientTransformation = getattr(optax, name)(learning_rate=step)
    return built


def descend(
    loss: Loss, model: Array, samples: Samples, key: Array, *, step: float, steps: int, batch: int | None
) -> tuple[Array, Array]:
    """`steps` SGD steps from a vector; gives the vector reached and the loss at which the first step began.

    Each step draws its own mini-batch of `batch` samples, or takes all samples where batch is None.
    """

    def one(model: Array, key: Array | None) -> tuple[Array, Array]:
        minibatch = samples if key is None else draw(samples, key, batch)
        value, gradient = jax.value_and_grad(loss)(model, minibatch)
        return model - step * gradient, value

    keys = None if batch is None else jax.random.split(key, steps)
    if steps == 1:  # without a loop, which would cost a tenth of MAML's speed
        return one(model, None if keys is None else keys[0])
    reached, values = jax.lax.scan(one, model, keys, length=steps)
    return reached, values[0]
