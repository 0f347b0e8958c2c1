"""The baselines that cost one upload or less: the average of the local models, one agent's own model, no model at all.

average:  theta = (1/N) sum_i phi_i        every agent uploads its model once, no rounds
local:    theta = phi_j                    one agent uploads its model, nobody else takes part
random:   theta = the common random start  nothing is sent, nothing is learned
"""

from functools import partial
from typing import Annotated, Any

from jax import Array

from fewjoule.errors import positive_int
from fewjoule.methods.method import Broadcast, Combine, Info, Method, Turn, Weighting, factory
from fewjoule.tasks.samples import AgentData
from fewjoule.training.descent import Loss


@factory
def average(*, weighting: Weighting = "agents", combine: Combine = "mean") -> Method:
    """The plain average of the local models: zero rounds. The baseline of every other method."""
    return _without_rounds("average", "average")


@factory
def local_model(*, agent: Annotated[int, partial(positive_int, least=0)] = 0) -> Method:
    """The local model of the agent at this position, as the meta-model: zero rounds."""
    return _without_rounds("local", agent)


@factory
def random_start() -> Method:
    """The common random start as the meta-model: what a new device has where nobody learned anything."""
    return _without_rounds("random", "random")


def _without_rounds(name: str, start: str | int) -> Method:
    def agent(loss: Loss, state: Any, broadcast: Broadcast, data: AgentData, key: Array) -> Turn:
        return (), broadcast.model, Info(loss(broadcast.model, data.train), broadcast.model)

    def server(model: Array, mean: Array) -> tuple[Array, Broadcast]:
        return mean, Broadcast(mean)

    return Method(name, 0, start, agent, server)
