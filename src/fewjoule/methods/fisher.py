"""Fisher-weighted averaging of the local models (Matena and Raffel 2022, "Merging Models with Fisher-Weighted
Averaging"), in one upload.

    agent    F_i = mean over its samples of (grad of the sample's loss at phi_i)²        the empirical Fisher's diagonal
             F_i <- (F_i + floor * mean(F_i)), scaled to mean 1
             message F_i * (phi_i - start) and F_i, both of the length of the model
    server   theta = start + mean(F_i * (phi_i - start)) / mean(F_i)

The scaling is ours: an agent whose loss is larger all over is not more certain of every weight. `floor` makes weights
which no sample moves fall back to the plain average. The start is the common random one, which costs nothing to send.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.errors import Positive
from fewjoule.methods.method import Broadcast, Info, Method, Turn, Weighting, factory, own_model_kept
from fewjoule.tasks.samples import AgentData, Samples
from fewjoule.training.descent import Loss


@factory
def fisher(*, floor: Positive = 0.1, weighting: Weighting = "agents") -> Method:
    """One upload of twice the model: the merge that trusts each agent where its loss is sensitive."""

    def agent(loss: Loss, local: Array, broadcast: Broadcast, data: AgentData, key: Array) -> Turn:
        weight = empirical_fisher(loss, local, data.train)
        weight = weight + floor * weight.mean() + np.finfo(weight.dtype).tiny
        weight = weight / weight.mean()
        return local, (weight * (local - broadcast.model), weight), Info(loss(local, data.train), local)

    def server(start: Array, mean: tuple[Array, Array]) -> tuple[Array, Broadcast]:
        change, weight = mean
        # A codec may have left out a weight's Fisher value: it then counts as the floor.
        model = start + change / jnp.maximum(weight, floor / (1 + floor))
        return model, Broadcast(model)

    return Method("fisher", 1, "random", agent, server, agent_init=own_model_kept, needs_local=True, sends="change")


def empirical_fisher(loss: Loss, model: Array, samples: Samples) -> Array:
    """Mean over the real samples of the squared gradient of each one's loss."""

    def add(total: Array, sample: Any) -> tuple[Array, None]:
        (x, y, weight), mask = jax.tree.map(lambda a: a[None], sample[:3]), sample[3]
        gradient = jax.grad(loss)(model, Samples(x, y, jnp.ones(1), samples.allowed, weight))
        return total + mask * gradient**2, None

    total, _ = jax.lax.scan(add, jnp.zeros_like(model), (samples.x, samples.y, samples.weight, samples.mask))
    return total / samples.mask.sum()
