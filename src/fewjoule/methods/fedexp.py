"""FedExP (Jhunjhunwala et al. 2023, "FedExP: Speeding Up Federated Averaging via Extrapolation").

    agent    message u_i = SGD_steps(theta; L_i) - theta, and ||u_i||²
    server   eta = max(1, mean(||u_i||²) / (2 (||mean(u_i)||² + epsilon)))
             theta <- theta + eta * mean(u_i)

The more the agents disagree, the shorter their mean beside their own steps, and the further along it the server goes.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from fewjoule.errors import InputError
from fewjoule.methods.method import (
    Broadcast,
    Info,
    Loss,
    Method,
    Start,
    check_batch,
    check_start,
    one_per_settings,
    positive,
    positive_int,
    settings_of,
)
from fewjoule.tasks.samples import AgentData
from fewjoule.training.descent import descend, optimiser


@one_per_settings
def fedexp(
    *,
    rounds: int = 5,
    local_steps: int = 100,
    step: float = 0.01,
    epsilon: float = 0.0,
    batch: int | None = 100,
    start: str = "average",
) -> Method:
    """FedAvg whose server goes beyond the mean by a factor it takes from the agents' steps."""
    settings = settings_of(locals())
    positive_int("rounds", rounds)
    positive_int("local_steps", local_steps)
    positive("step", step)
    check_batch(batch)
    check_start(start)
    if not epsilon >= 0:
        raise InputError(f"epsilon must be 0 or more, got {epsilon}.")

    def init(start: Start, probes: Any) -> tuple[Array, Broadcast]:
        return start.model, Broadcast(start.model)

    def agent(
        loss: Loss, state: Any, broadcast: Broadcast, data: AgentData, key: Array
    ) -> tuple[tuple[()], tuple[Array, Array], Info]:
        theta = broadcast.model
        model, _, value = descend(
            loss, theta, data.train, key, by=optimiser("sgd", step), steps=local_steps, batch=batch
        )
        change = model - theta
        return (), (change, jnp.vdot(change, change)), Info(value, model, jnp.zeros(()))

    def server(model: Array, mean: tuple[Array, Array]) -> tuple[Array, Broadcast]:
        change, norms = mean
        model = model + extrapolation(change, norms, epsilon) * change
        return model, Broadcast(model)

    return Method("fedexp", rounds, settings, start, init, agent, server, sends="change")


def extrapolation(change: Array, norms: Array, epsilon: float) -> Array:
    """The server's step eta from the mean change and the mean of the agents' squared norms; 1 where nobody moved."""
    length = 2 * (jnp.vdot(change, change) + epsilon)
    return jnp.maximum(1, jnp.where(length > 0, norms / jnp.where(length > 0, length, 1), 1))
