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
from fewjoule.tasks.samples import Agents
from fewjoule.training.mesh import over_devices
from fewjoule.training.program import COMPILER_OPTIONS, Program


@partial(jax.jit, static_argnums=(0, 1), compiler_options=COMPILER_OPTIONS)
def learn(method: Method, model: Model, start: Array, messages: Any, seed: Array) -> Array:
    """The meta-model of one seed."""
    return rules.learned(method, model, start, messages, seed)


@partial(jax.jit, static_argnums=(0, 1), compiler_options=COMPILER_OPTIONS)
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
        self._seeds = seeds

    def compile(self) -> None:
        self._program.compile()

    def run(self, start: Array, messages: Any, around: Around | None) -> Array:
        """The meta-models from the start [seeds, d] and the messages [seeds, agents, ...]."""

        def every_seed() -> Array:
            metas: Array = jax.block_until_ready(self._program(start, messages, self._seeds))  # type: ignore[no-untyped-call]
            return metas

        metas: Array = self._program.run(around, every_seed)
        return metas
