"""What a server learns by itself after the last round, seed by seed: a program of its own, so that it is metered and
charged apart from the agents, and the same one in the simulator and in a federation."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fewjoule.energy.metering import Around
from fewjoule.methods.method import Method
from fewjoule.models.model import Model
from fewjoule.simulation import rules
from fewjoule.simulation.work import combined, data_of, vector_of
from fewjoule.tasks.samples import AgentData, Agents
from fewjoule.training.program import Program


@partial(jax.jit, static_argnums=(0, 1))
def learn(method: Method, model: Model, start: Array, messages: Any, seed: Array) -> Array:
    """The meta-model of one seed."""
    return rules.learned(method, model, start, messages, seed)


class Learning:
    """The server's learning for every seed, still to be run."""

    def __init__(self, method: Method, model: Model, agents: Agents, seeds: Any) -> None:
        vector, messages = vector_of(model), combined(method, model, data_of(agents), len(agents))
        self._program = Program(learn, (method, model), (vector, messages, jax.eval_shape(lambda s: s[0], seeds)))
        self._model, self._agents, self._seeds = model, agents, seeds

    def compile(self) -> None:
        self._program.compile()

    def run(self, start: Array, messages: Any, around: Around | None) -> dict[str, Array]:
        """The meta-models from the start [seeds, d] and the messages [seeds, agents, ...], and what to know of them."""

        def every_seed() -> Array:
            told = [jax.tree.map(lambda m, i=i: m[i], messages) for i in range(len(self._seeds))]
            return jnp.stack([self._program(*each) for each in zip(start, told, self._seeds, strict=True)])

        metas = self._program.run(around, every_seed)
        losses = _mean_losses(self._model, self._agents.seeds is not None, metas, self._agents.data)
        return {"meta": metas, "final_loss": losses, "finite": jnp.isfinite(metas).all(-1)}


@partial(jax.jit, static_argnums=(0, 1))
def _mean_losses(model: Model, per_seed: bool, metas: Array, data: AgentData) -> Array:
    """The agents' mean loss at every seed's meta-model."""

    def one(meta: Array, data: AgentData) -> Array:
        return jax.vmap(lambda samples: model.loss(meta, samples))(data.train).mean()

    return jax.vmap(one, (0, 0 if per_seed else None))(metas, data)
