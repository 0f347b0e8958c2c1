"""Fisher-weighted averaging of the local models (Matena and Raffel 2022, "Merging Models with Fisher-Weighted
Averaging"), in one upload.

    agent    F_i = mean over its samples of (grad of the sample's loss at phi_i)²        the empirical Fisher's diagonal
             message F_i * (phi_i - start) and F_i, both of the length of the model
    server   theta = start + mean(F_i * (phi_i - start)) / mean(F_i)

`floor` adds that multiple of its own mean to every F_i, so that weights which no sample moves fall back to the plain
average. The start is the common random one, which costs nothing to send.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.methods.method import Broadcast, Info, Loss, Method, Start, one_per_settings, positive, settings_of
from fewjoule.tasks.samples import AgentData, Samples


@one_per_settings
def fisher(*, floor: float = 0.1) -> Method:
    """One upload of twice the model: the merge that trusts each agent where its loss is sensitive."""
    settings = settings_of(locals())
    positive("floor", floor)

    def init(start: Start, probes: Any) -> tuple[Array, Broadcast]:
        return start.model, Broadcast(start.model)

    def agent(
        loss: Loss, local: Array, broadcast: Broadcast, data: AgentData, key: Array
    ) -> tuple[Array, tuple[Array, Array], Info]:
        weight = empirical_fisher(loss, local, data.train)
        weight = weight + floor * weight.mean() + np.finfo(weight.dtype).tiny
        # Scaled to mean 1: an agent whose loss is larger all over is not more certain of every weight.
        weight = weight / weight.mean()
        message = (weight * (local - broadcast.model), weight)
        return local, message, Info(loss(local, data.train), local, jnp.zeros(()))

    def server(start: Array, mean: tuple[Array, Array]) -> tuple[Array, Broadcast]:
        change, weight = mean
        # A codec may have left out a weight's Fisher value: it then counts as the floor.
        model = start + change / jnp.maximum(weight, floor / (1 + floor))
        return model, Broadcast(model)

    return Method(
        "fisher", 1, settings, "random", init, agent, server,
        agent_init=lambda local, uploaded=None: local, needs_local=True, sends="change",
    )  # fmt: skip


def empirical_fisher(loss: Loss, model: Array, samples: Samples) -> Array:
    """Mean over the real samples of the squared gradient of each one's loss."""

    def add(total: Array, sample: tuple[Array, Array, Array]) -> tuple[Array, None]:
        x, y, mask = sample
        gradient = jax.grad(loss)(model, Samples(x[None], y[None], jnp.ones(1), samples.allowed))
        return total + mask * gradient**2, None

    total, _ = jax.lax.scan(add, jnp.zeros_like(model), (samples.x, samples.y, samples.mask))
    return total / samples.mask.sum()
