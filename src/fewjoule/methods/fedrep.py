"""FedRep (Collins et al. 2021, "Exploiting Shared Representations for Personalized Federated Learning").

    agent    h_i <- SGD_head_steps(h_i; L_i(theta, h_i))           its own head, the shared body fixed
             phi_i = SGD_body_steps(theta; L_i(theta, h_i))         then the body, its head fixed; message phi_i
    server   theta <- mean(phi_i)

The head is the last `head_layers` layers of the model; it stays with its agent and costs no bits. With 0 of them it is
FedAvg, with all of them every agent trains alone. A new device tunes its head only.
"""

from functools import partial
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from jax import Array

from fewjoule.errors import Batch, Count, Epochs, Positive, positive_int
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
from fewjoule.training.descent import Loss
from fewjoule.training.tuning import Tuning

HEAD_STREAM = 0x4EAD  # apart from the keys that the body's mini-batches are drawn with


@factory
def fedrep(
    *,
    rounds: Count = 5,
    head_steps: Count = 50,
    body_steps: Count = 50,
    epochs: Epochs = None,
    learning_rate: Positive = 0.01,
    head_layers: Annotated[int, partial(positive_int, least=0)] = 1,
    batch: Batch = 100,
    start: StartAt = "average",
    weighting: Weighting = "agents",
    combine: Combine = "mean",
) -> Method:
    """A shared body and every agent's own head. `epochs` passes take the place of both numbers of steps."""
    train_head, train_body = (local_steps_of(steps, learning_rate, batch, epochs) for steps in (head_steps, body_steps))

    def agent(loss: Loss, own: Array, broadcast: Broadcast, data: AgentData, key: Array) -> Turn:
        body, head = broadcast.model, own[broadcast.model.size :]
        value: Any = None
        if head.size:
            head_key = jax.random.fold_in(key, HEAD_STREAM)
            fixed = body
            reached = train_head(lambda h, s: loss(jnp.concatenate([fixed, h]), s), head, data.train, head_key)
            head, value = reached.vector, reached.first_loss
        if body.size:
            reached = train_body(lambda b, s: loss(jnp.concatenate([b, head]), s), body, data.train, key)
            body, value = reached.vector, reached.first_loss if value is None else value
        own = jnp.concatenate([body, head])
        return own, body, Info(value, own)

    def server(model: Array, mean: Array) -> tuple[Array, Broadcast]:
        return mean, Broadcast(mean)

    return Method(
        "fedrep", rounds, start, agent, server, agent_init=own_model_kept, head=head_layers,
        tuning=Tuning(head=head_layers), personal=with_own_head, judged_adapted=bool(head_layers),
    )  # fmt: skip


def with_own_head(own: Array, broadcast: Broadcast) -> Array:
    """The agent's own model after the last round: the shared body, and its head."""
    return jnp.concatenate([broadcast.model, own[broadcast.model.size :]])
