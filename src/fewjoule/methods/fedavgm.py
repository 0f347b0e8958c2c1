"""FedAvgM: server momentum (Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification").

    agent    message phi_i = SGD_steps(theta; L_i)
    server   v <- momentum * v + (mean(phi_i) - theta),   theta <- theta + server_step * v

Momentum 0 with server_step 1 is FedAvg.
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
def fedavgm(
    *,
    rounds: int = 5,
    local_steps: int = 100,
    step: float = 0.01,
    momentum: float = 0.5,
    server_step: float = 1.0,
    batch: int | None = 100,
    start: str = "average",
) -> Method:
    """FedAvg whose server keeps a running sum of its steps."""
    settings = settings_of(locals())
    positive_int("rounds", rounds)
    positive_int("local_steps", local_steps)
    positive("step", step)
    positive("server_step", server_step)
    check_batch(batch)
    check_start(start)
    if not 0 <= momentum < 1:
        raise InputError(f"momentum must be at least 0 and below 1, got {momentum}.")

    def init(start: Start, probes: Any) -> tuple[tuple[Array, Array], Broadcast]:
        return (start.model, jnp.zeros_like(start.model)), Broadcast(start.model)

    def agent(
        loss: Loss, state: Any, broadcast: Broadcast, data: AgentData, key: Array
    ) -> tuple[tuple[()], Array, Info]:
        model, _, value = descend(
            loss, broadcast.model, data.train, key, by=optimiser("sgd", step), steps=local_steps, batch=batch
        )
        return (), model, Info(value, model, jnp.zeros(()))

    def server(state: tuple[Array, Array], mean: Array) -> tuple[tuple[Array, Array], Broadcast]:
        model, velocity = state
        velocity = momentum * velocity + (mean - model)
        model = model + server_step * velocity
        return (model, velocity), Broadcast(model)

    return Method("fedavgm", rounds, settings, start, init, agent, server)
