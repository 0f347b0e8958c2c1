"""Is a starting model worth anything? Its loss after a few fine-tuning steps, compared with what there is without it.

Without fine-tuning the loss says little: where tasks differ much, no common model can be good at all of them at once.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.energy.counts import count_once
from fewjoule.energy.show import digits
from fewjoule.models.model import Model
from fewjoule.tasks.held_out import evenly
from fewjoule.tasks.samples import Agents, Samples
from fewjoule.training.descent import optimiser as make_optimiser
from fewjoule.training.mesh import in_groups, over_devices
from fewjoule.training.program import COMPILER_OPTIONS, Program
from fewjoule.training.tuning import ALL_WEIGHTS, Tuning, rated

NOISE = 1.1
"""Losses whose ratio is within this are taken as equal."""
RAISED = 2.0
"""A method that raises its start's loss by more than this has done harm. Below it the agents' own samples do not tell:
their local models, and so the average, were trained on them, and a better start for new tasks may fit them less."""


class Worth(NamedTuple):
    """Mean losses over the agents, on their own training samples, after `steps` fine-tuning steps on these."""

    steps: int
    constant: float  # without a model: the mean of an agent's targets, or the shares of its classes
    random: float  # from a random start
    start: float  # from where the method began
    final: float  # from the meta-model

    def remarks(self) -> list[str]:
        """What a user must know before using the meta-model, one line each."""
        lines = []
        reached = f"loss {digits(self.final)} after {self.steps} fine-tuning steps on the agents' samples"
        # a constant is perfect where every agent has one class or one sample, and says nothing then
        if self.constant > 0 and NOISE * self.final > self.constant:
            lines.append(f"no better than a constant: {reached}; without any model it is {digits(self.constant)}")
        elif NOISE * self.final > self.random and self.final != self.random:
            lines.append(f"no better than a random start: {reached}; a random start reaches {digits(self.random)}")
        if self.final > RAISED * self.start:
            lines.append(f"worse than its own start: {reached}; its start reaches {digits(self.start)}")
        return lines


def constant_loss(model: Model, agents: Agents) -> np.ndarray[Any, Any]:
    """Mean over the agents of the loss that the best constant has on an agent's samples: one, or [seeds].

    0 where the loss is the user's own, of which the best constant is not known.
    """
    samples = agents.data.train
    mask, y = np.asarray(samples.mask, np.float64), np.asarray(samples.y)
    count = mask.sum(-1)
    if model.loss_name == "mse":
        weights = mask[..., None]
        mean = (weights * y).sum(-2, keepdims=True) / count[..., None, None]
        each = ((weights * (y - mean) ** 2).sum(-2) / count[..., None]).mean(-1)
    elif model.loss_name != "cross_entropy":
        each = np.zeros(count.shape)
    else:
        shares = (mask[..., None] * (y[..., None] == np.arange(y.max() + 1))).sum(-2) / count[..., None]
        each = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(-1)
    return np.asarray(each.mean(-1))


def adapted_loss(
    model: Model, metas: Array, agents: Agents, *, steps: int, learning_rate: float, optimiser: str,
    tuning: Tuning = ALL_WEIGHTS, rates: Array | None = None, most: int = 1000,
) -> np.ndarray[Any, Any]:  # fmt: skip
    """Mean over the agents of the loss [seeds] of meta-models [seeds, d], after fine-tuning on an agent's samples.

    Infinity where fine-tuning overflowed. At most `most` of an agent's samples, evenly spaced among them, are used.
    """
    per_seed = agents.seeds is not None
    static = (model, steps, learning_rate, optimiser, tuning, per_seed, most)
    given = jax.tree.map(np.asarray, (metas, rates, agents.data.train))  # JAX would compile how to cut them
    found = np.asarray(Program(_adapted, static, given).run())
    return np.where(np.isnan(found), np.inf, found)


def adapted_loss_ahead(
    model: Model, metas: int, agents: Agents, *, steps: int, learning_rate: float, optimiser: str, tuning: Tuning,
    rated: bool, most: int,
) -> None:  # fmt: skip
    """Compile `adapted_loss` of so many meta-models, with rates or without, and run nothing."""
    vectors = jax.ShapeDtypeStruct((metas, model.size), jnp.float32)  # type: ignore[no-untyped-call]
    static = (model, steps, learning_rate, optimiser, tuning, agents.seeds is not None, most)
    Program(_adapted, static, (vectors, vectors if rated else None, agents.data.train)).compile()


TOGETHER_BYTES = 256 << 20
"""What agents that are fine-tuned at once may read and write in a step: it bounds the memory of convolution nets."""


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5, 6), compiler_options=COMPILER_OPTIONS)
def _adapted(
    model: Model, steps: int, learning_rate: float, name: str, tuning: Tuning, per_seed: bool, most: int,
    metas: Array, rates: Array | None, samples: Samples,
) -> Array:  # fmt: skip
    def one(meta: Array, rates: Array | None, samples: Samples) -> Array:
        by, samples = rated(make_optimiser(name, learning_rate), rates), evenly(samples, most)
        return model.loss(tuning.tuned(model, meta, samples, by=by, steps=steps), samples)

    def over_agents(meta: Array, rates: Array | None, samples: Samples) -> Array:
        size_bytes = count_once(one, meta, rates, jax.tree.map(lambda a: a[0], samples)).bytes
        at_once = jax.vmap(partial(one, meta, rates))
        return jnp.mean(in_groups(at_once, max(1, TOGETHER_BYTES // size_bytes), samples))

    def over_seeds(metas: Array, rates: Array | None, samples: Samples) -> Array:
        if per_seed:
            return jax.lax.map(lambda each: over_agents(*each), (metas, rates, samples))
        return jax.lax.map(lambda both: over_agents(both[0], both[1], samples), (metas, rates))

    return over_devices(over_seeds, len(metas), (True, True, per_seed))(metas, rates, samples)
