"""FedSGD and FedAvg (McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized
Data") and Reptile (Nichol et al. 2018, "On First-Order Meta-Learning Algorithms").

    FedSGD    message g_i = grad L_i(theta)                      theta <- theta - step * mean(g_i)
    FedAvg    message phi_i = SGD_steps(theta; L_i)              theta <- mean(phi_i)
    Reptile   message phi_i = SGD_steps(theta; L_i)              theta <- theta + meta_step * (mean(phi_i) - theta)

Reptile with meta_step 1 is FedAvg; FedAvg with one full-batch step is FedSGD.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

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
from fewjoule.tasks.samples import AgentData, draw
from fewjoule.training.descent import descend, optimiser


@one_per_settings
def fedsgd(*, rounds: int = 50, step: float = 0.01, batch: int | None = 100, start: str = "average") -> Method:
    """One gradient per agent and round; the server steps along their mean. `batch` None takes all samples."""
    settings = settings_of(locals())
    positive_int("rounds", rounds)
    positive("step", step)
    check_batch(batch)
    check_start(start)

    def init(start: Start, probes: Any) -> tuple[Array, Broadcast]:
        return start.model, Broadcast(start.model)

    def agent(
        loss: Loss, state: Any, broadcast: Broadcast, data: AgentData, key: Array
    ) -> tuple[tuple[()], Array, Info]:
        value, gradient = jax.value_and_grad(loss)(broadcast.model, draw(data.train, key, batch))
        return (), gradient, Info(value, broadcast.model - step * gradient, jnp.zeros(()))

    def server(model: Array, gradient: Array) -> tuple[Array, Broadcast]:
        model = model - step * gradient
        return model, Broadcast(model)

    return Method("fedsgd", rounds, settings, start, init, agent, server, sends="change")


@one_per_settings
def fedavg(
    *,
    rounds: int = 5,
    local_steps: int = 100,
    step: float = 0.01,
    batch: int | None = 100,
    start: str = "average",
) -> Method:
    """Many local steps per agent and round; the server takes the mean of the models."""
    return _local_steps("fedavg", settings_of(locals()), 1.0, rounds, local_steps, step, batch, start)


@one_per_settings
def reptile(
    *,
    rounds: int = 50,
    local_steps: int = 50,
    step: float = 0.01,
    meta_step: float = 1.0,
    batch: int | None = 100,
    start: str = "average",
) -> Method:
    """As FedAvg, but the server goes only `meta_step` of the way to the mean."""
    settings = settings_of(locals())
    positive("meta_step", meta_step)
    return _local_steps("reptile", settings, meta_step, rounds, local_steps, step, batch, start)


def _local_steps(
    name: str,
    settings: tuple[tuple[str, Any], ...],
    meta_step: float,
    rounds: int,
    local_steps: int,
    step: float,
    batch: int | None,
    start: str,
) -> Method:
    positive_int("rounds", rounds)
    positive_int("local_steps", local_steps)
    positive("step", step)
    check_batch(batch)
    check_start(start)

    def init(start: Start, probes: Any) -> tuple[Array, Broadcast]:
        return start.model, Broadcast(start.model)

    def agent(
        loss: Loss, state: Any, broadcast: Broadcast, data: AgentData, key: Array
    ) -> tuple[tuple[()], Array, Info]:
        model, _, value = descend(
            loss, broadcast.model, data.train, key, by=optimiser("sgd", step), steps=local_steps, batch=batch
        )
        return (), model, Info(value, model, jnp.zeros(()))

    def server(model: Array, mean: Array) -> tuple[Array, Broadcast]:
        model = mean if meta_step == 1.0 else model + meta_step * (mean - model)
        return model, Broadcast(model)

    return Method(name, rounds, settings, start, init, agent, server)
