"""What a server learns by itself after the last round, seeds on all devices.

A program of its own, so that it is metered and charged apart from the agents; a federation learns by the same rule.
"""

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
from fewjoule.training.mesh import gathered, over_devices
from fewjoule.training.program import Program


@partial(jax.jit, static_argnums=(0, 1))
def learn(method: Method, model: Model, start: Array, messages: Any, seed: Array) -> Array:
    """The meta-model of one seed."""
    return rules.learned(method, model, start, messages, seed)


@partial(jax.jit, static_argnums=(0, 1))
def _learn_all(method: Method, model: Model, starts: Array, messages: Any, seeds: Array) -> Array:
    """The meta-models of all seeds, one after the other on every device."""

    def of_some(starts: Array, messages: Any, seeds: Array) -> Array:
        return jax.lax.map(lambda each: rules.learned(method, model, *each), (starts, messages, seeds))

    metas: Array = over_devices(of_some, len(seeds), (True, True, True))(starts, messages, seeds)
    return metas


class Learning:
    """The server's learning for every seed, still to be run."""

    def __init__(self, method: Method, model: Model, agents: Agents, seeds: Any) -> None:
        one = (vector_of(model), combined(method, model, data_of(agents), len(agents)))
        every = jax.eval_shape(lambda: jax.tree.map(lambda s: jnp.zeros((len(seeds), *s.shape), s.dtype), one))
        self._program = Program(_learn_all, (method, model), (*every, seeds))
        self._model, self._agents, self._seeds = model, agents, seeds

    def compile(self) -> None:
        self._program.compile()

    def run(self, start: Array, messages: Any, around: Around | None) -> dict[str, Array]:
        """The meta-models from the start [seeds, d] and the messages [seeds, agents, ...], and what to know of them."""

        def every_seed() -> Array:
            metas: Array = jax.block_until_ready(self._program(start, messages, self._seeds))  # type: ignore[no-untyped-call]
            return metas

        metas = gathered(self._program.run(around, every_seed))
        losses = _mean_losses(self._model, self._agents.seeds is not None, metas, self._agents.data)
        return {"meta": metas, "final_loss": losses, "finite": jnp.isfinite(metas).all(-1)}


@partial(jax.jit, static_argnums=(0, 1))
def _mean_losses(model: Model, per_seed: bool, metas: Array, data: AgentData) -> Array:
    """The agents' mean loss at every seed's meta-model."""

    def one(meta: Array, data: AgentData) -> Array:
        return jax.lax.map(lambda own: rules.loss_at(model, meta, own), data).mean()

    return jax.vmap(one, (0, 0 if per_seed else None))(metas, data)
