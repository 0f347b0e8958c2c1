"""Optimisers of optax by name."""

import inspect
from functools import lru_cache

import optax

from fewjoule.errors import unknown

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
