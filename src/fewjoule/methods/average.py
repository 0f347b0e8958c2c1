"""The controls that cost one upload or less: the average of the local models, one agent's own model, no model at all.

average:  theta = (1/N) sum_i phi_i        every agent uploads its model once, no rounds
local:    theta = phi_j                    one agent uploads its model, nobody else takes part
random:   theta = the common random start  nothing is sent, nothing is learned
"""

from typing import Any

import jax.numpy as jnp
from jax import Array

from fewjoule.methods.method import Broadcast, Info, Loss, Method, Start, one_per_settings, positive_int
from fewjoule.tasks.samples import AgentData


@one_per_settings
def average() -> Method:
    """The plain average of the local models: zero rounds. The mandatory control of every other method."""
    return _without_rounds("average", "average", ())


@one_per_settings
def local_model(*, agent: int = 0) -> Method:
    """The local model of the agent at this position, as the meta-model: zero rounds."""
    positive_int("agent", agent, least=0)
    return _without_rounds("local", agent, (("agent", agent),))


@one_per_settings
def random_start() -> Method:
    """The common random start as the meta-model: what a new device has where nobody learned anything."""
    return _without_rounds("random", "random", ())


def _without_rounds(name: str, start: str | int, settings: tuple[tuple[str, Any], ...]) -> Method:
    def init(start: Start, probes: Any) -> tuple[tuple[()], Broadcast]:
        return (), Broadcast(start.model)

    def agent(
        loss: Loss, state: Any, broadcast: Broadcast, data: AgentData, key: Array
    ) -> tuple[tuple[()], Array, Info]:
        return (), broadcast.model, Info(loss(broadcast.model, data.train), broadcast.model, jnp.zeros(()))

    def server(state: tuple[()], mean: Array) -> tuple[tuple[()], Broadcast]:
        return (), Broadcast(mean)

    return Method(name, 0, settings, start, init, agent, server)
