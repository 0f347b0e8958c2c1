"""Ditto (Li et al. 2021, "Ditto: Fair and Robust Federated Learning Through Personalization").

    agent    phi_i = SGD_steps(theta; L_i), the message, as in FedAvg
             v_i <- SGD_steps(v_i; L_i(v) + proximal/2 ||v - theta||²), its own model, which never travels
    server   theta <- mean(phi_i)

`proximal` is the paper's lambda: with 0 an agent's own model is trained alone, a large one keeps it at the common one.
It begins as the agent's local model, or as the seed's random start where nobody has one.
"""

import jax
from jax import Array

from fewjoule.errors import Batch, Count, Epochs, NotNegative, Positive
from fewjoule.methods.fedavg import local_steps_of
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
from fewjoule.tasks.samples import AgentData
from fewjoule.training.descent import Loss, near

PERSONAL_STREAM = 0xD1770  # apart from the keys that the shared model's mini-batches are drawn with


@factory
def ditto(
    *,
    rounds: Count = 5,
    local_steps: Count = 100,
    personal_steps: Count = 100,
    epochs: Epochs = None,
    learning_rate: Positive = 0.01,
    proximal: NotNegative = 0.1,
    batch: Batch = 100,
    start: StartAt = "average",
    weighting: Weighting = "agents",
    combine: Combine = "mean",
) -> Method:
    """FedAvg, and beside it every agent's own model. `epochs` passes take the place of both numbers of steps."""
    train, train_own = (local_steps_of(steps, learning_rate, batch, epochs) for steps in (local_steps, personal_steps))

    def agent(loss: Loss, own: Array, broadcast: Broadcast, data: AgentData, key: Array) -> Turn:
        reached = train(loss, broadcast.model, data.train, key)
        pulled = near(loss, broadcast.model, proximal) if proximal else loss
        own = train_own(pulled, own, data.train, jax.random.fold_in(key, PERSONAL_STREAM)).vector
        return own, reached.vector, Info(reached.first_loss, reached.vector)

    def server(model: Array, mean: Array) -> tuple[Array, Broadcast]:
        return mean, Broadcast(mean)

    return Method(
        "ditto", rounds, start, agent, server, agent_init=own_model_kept, personal=lambda own, broadcast: own
    )  # fmt: skip
