"""FedAvgM: server momentum (Hsu et al. 2019, "Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification").

    agent    message phi_i = SGD_steps(theta; L_i)
    server   v <- momentum * v + (mean(phi_i) - theta),   theta <- theta + server_learning_rate * v

Momentum 0 with server_learning_rate 1 is FedAvg.
"""

from typing import Annotated, Any

import jax.numpy as jnp
from jax import Array

from fewjoule.errors import Batch, Count, Epochs, InputError, Positive, is_real
from fewjoule.methods.fedavg import local_sgd
from fewjoule.methods.method import Broadcast, Combine, Method, Start, StartAt, Weighting, factory


def _below_one(name: str, value: Any) -> None:
    if not is_real(value) or not 0 <= value < 1:
        raise InputError(f"{name} must be at least 0 and below 1, got {value!r}.")


@factory
def fedavgm(
    *,
    rounds: Count = 5,
    local_steps: Count = 100,
    epochs: Epochs = None,
    learning_rate: Positive = 0.01,
    momentum: Annotated[float, _below_one] = 0.5,
    server_learning_rate: Positive = 1.0,
    batch: Batch = 100,
    start: StartAt = "average",
    weighting: Weighting = "agents",
    combine: Combine = "mean",
) -> Method:
    """FedAvg whose server keeps a running sum of its steps."""

    def init(start: Start, probes: Any) -> tuple[tuple[Array, Array], Broadcast]:
        return (start.model, jnp.zeros_like(start.model)), Broadcast(start.model)

    def server(state: tuple[Array, Array], mean: Array) -> tuple[tuple[Array, Array], Broadcast]:
        model, velocity = state
        velocity = momentum * velocity + (mean - model)
        model = model + server_learning_rate * velocity
        return (model, velocity), Broadcast(model)

    return Method("fedavgm", rounds, start, local_sgd(local_steps, learning_rate, batch, epochs), server, init)
