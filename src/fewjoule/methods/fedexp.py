"""FedExP (Jhunjhunwala et al. 2023, "FedExP: Speeding Up Federated Averaging via Extrapolation").

    agent    message u_i = SGD_steps(theta; L_i) - theta, and ||u_i||²
    server   eta = max(1, mean(||u_i||²) / (2 (||mean(u_i)||² + epsilon)))
             theta <- theta + eta * mean(u_i)

The more the agents disagree, the shorter their mean beside their own steps, and the further along it the server goes.
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from fewjoule.errors import Batch, Count, Epochs, NotNegative, Positive
from fewjoule.methods.fedavg import local_sgd
from fewjoule.methods.method import Broadcast, Combine, Method, StartAt, Turn, Weighting, factory
from fewjoule.tasks.samples import AgentData
from fewjoule.training.descent import Loss


@factory
def fedexp(
    *, rounds: Count = 5, local_steps: Count = 100, epochs: Epochs = None, learning_rate: Positive = 0.01,
    epsilon: NotNegative = 0.0, batch: Batch = 100, start: StartAt = "average", weighting: Weighting = "agents",
    combine: Combine = "mean",
) -> Method:  # fmt: skip
    """FedAvg whose server goes beyond the mean by a factor it takes from the agents' steps."""
    descent = local_sgd(local_steps, learning_rate, batch, epochs)

    def agent(loss: Loss, state: Any, broadcast: Broadcast, data: AgentData, key: Array) -> Turn:
        _, phi, info = descent(loss, state, broadcast, data, key)
        change = phi - broadcast.model
        return (), (change, jnp.vdot(change, change)), info

    def server(model: Array, mean: tuple[Array, Array]) -> tuple[Array, Broadcast]:
        change, norms = mean
        model = model + extrapolation(change, norms, epsilon) * change
        return model, Broadcast(model)

    return Method("fedexp", rounds, start, agent, server, sends="change")


def extrapolation(change: Array, norms: Array, epsilon: float) -> Array:
    """The server's step eta from the mean change and the mean of the agents' squared norms; 1 where nobody moved."""
    length = 2 * (jnp.vdot(change, change) + epsilon)
    return jnp.maximum(1, jnp.where(length > 0, norms / jnp.where(length > 0, length, 1), 1))
