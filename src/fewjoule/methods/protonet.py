"""Prototypical networks (Snell et al. 2017, "Prototypical Networks for Few-shot Learning"), federated.

    c_k = mean of f_theta(x) over the support samples of class k            f is the shared body, without the last layer
    p(y = k | x) = softmax_k(-||f_theta(x) - c_k||²)                        so the head is made, never trained
    agent    one episode of its own classes; message g_i = d/d theta of -log p over the episode's query samples
    server   theta <- optimiser step along mean(g_i)

A new device takes no step: one forward pass over its samples gives the class means, which are its head. The last layer
never travels.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fewjoule.errors import Count, Positive, Text
from fewjoule.methods.maml import outer_descent
from fewjoule.methods.method import (
    Broadcast,
    Combine,
    Info,
    Method,
    StartAt,
    Turn,
    Weighting,
    factory,
    own_model_kept,
)
from fewjoule.tasks.episodes import episode
from fewjoule.tasks.samples import AgentData
from fewjoule.training.descent import optimiser
from fewjoule.training.tuning import Tuning


@factory
def protonet(
    *,
    rounds: Count = 100,
    ways: Count = 5,
    shots: Count = 5,
    queries: Count = 15,
    learning_rate: Positive = 1e-3,
    server_optimiser: Text = "adam",
    schedule: Text = "constant",
    start: StartAt = "random",
    weighting: Weighting = "agents",
    combine: Combine = "mean",
) -> Method:
    """Episodes of `ways` classes, `shots` support and `queries` query samples of each; the body alone is learned.

    With `schedule` "linear" or "cosine" the server's learning rate falls to 0 over the rounds.
    """
    init, server = outer_descent(optimiser(server_optimiser, learning_rate, schedule, rounds))

    def agent(loss: Any, own: Array, broadcast: Broadcast, data: AgentData, key: Array) -> Turn:
        support, query = episode(data.train, key, ways=ways, shots=shots, queries=queries)
        rest = own[broadcast.model.size :]

        def episode_loss(body: Array) -> Array:
            value: Array = loss(jnp.concatenate([body, rest]), support, query)
            return value

        value, gradient = jax.value_and_grad(episode_loss)(broadcast.model)
        return own, gradient, Info(value, jnp.concatenate([broadcast.model, rest]))

    return Method(
        "protonet", rounds, start, agent, server, init, own_model_kept, head=1, tuning=Tuning(prototypes=True),
        judged_adapted=True, sends="change",
    )  # fmt: skip
