"""The rules that a simulated and a federated run share: where a run starts, means over those present, what a message
costs in bytes, and when a run has diverged."""

import math
from fractions import Fraction
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.tree_util import Partial

from fewjoule.errors import InputError
from fewjoule.methods.method import Broadcast, Everyone, Info, Method, Start, share_cut, shared_key
from fewjoule.models.model import Model
from fewjoule.models.parts import Parts, last_layer, parts_of, with_prototypes
from fewjoule.tasks.held_out import evenly
from fewjoule.tasks.samples import AgentData
from fewjoule.training.start import random_start

DIVERGED_AT = 10.0
"""A run has diverged where the agents' mean loss at the meta-model is beyond this multiple of that at the start. MAML
and its kin may raise that loss on purpose, since only what follows their inner steps is to be low: they have diverged
where the loss after the inner steps of the last round is beyond it too."""
NUMBER_BYTES = 4
"""Of one float32 on the air."""


LOSS_SAMPLES = 500
"""At most so many samples of an agent, evenly spaced among its own, say its loss at the start and the end of a run."""


def loss_at(model: Model, vector: Array, data: AgentData) -> Array:
    """An agent's loss at a model, as the start and the end of a run tell it."""
    return model.loss(vector, evenly(data.train, LOSS_SAMPLES))


def uses_local(method: Method) -> bool:
    """Whether a method asks for the agents' own models."""
    return method.start != "random" or method.needs_local


def own_model(method: Method, model: Model, vector: Array) -> Any:
    """An agent's own model, of its own architecture, as the method's `agent_init` takes it."""
    return Partial(model.apply, vector) if method.asks else vector  # type: ignore[no-untyped-call]


def told(broadcast: Broadcast, seed: Any) -> Broadcast:
    """A broadcast as an agent uses it: what was sent, and what both ends have from the seed."""
    return Broadcast(broadcast.model, broadcast.scalars, shared=shared_key(seed))


def learned(method: Method, model: Model, start: Array, messages: Any, seed: Any) -> Array:
    """The meta-model of a method whose server learns by itself."""
    assert method.learn is not None
    return method.learn(model, start, messages, shared_key(seed))


def needs_one_architecture(method: Method) -> bool:
    """Whether the agents' own models must all be of the meta-model's architecture."""
    return uses_local(method) and not method.asks


def parts(method: Method, model: Model) -> Parts:
    """Which weights of a model the method shares: the body of `Parts`."""
    return parts_of(model, method.head)


def shared_size(method: Method, model: Model) -> int:
    """How many weights of a model travel."""
    return parts(method, model).body


def loss_of(method: Method, model: Model) -> Any:
    """The loss as the method's functions use it: of vectors whose shared weights come first. Where class means are the
    head (`Tuning.prototypes`) it is of a vector, the support that they are made of, and the query."""
    split = parts(method, model)
    if method.tuning.prototypes:
        last_layer(model)  # refuses a model that has no classes
        return lambda vector, support, query: model.loss(with_prototypes(model, split.as_model(vector), support), query)
    return model.loss if split.order is None else lambda vector, samples: model.loss(split.as_model(vector), samples)


def common_start(method: Method, model: Model, seed: Any) -> Array:
    """The seed's random start [d], shared weights first. Both ends draw it, so it costs nothing to send."""
    start: Array = parts(method, model).body_first(random_start(model, seed))
    return start


def whole(method: Method, model: Model, shared: Array, common: Array) -> Array:
    """The model [d] of a new device, from what it gets: the weights that never travel are those of the common start."""
    split = parts(method, model)
    if split.body == model.size:
        return shared
    vector: Array = split.as_model(jnp.concatenate([shared, common[split.body :]]))
    return vector


def start_of(method: Method, models: Any, common: Array, weights: Array | None = None) -> Start:
    """What the server knows before the first round, from what it received of the local models [agents, b], and what is
    shared of the common start [b]."""
    if method.start == "random":
        return Start(common, jnp.zeros(()), common)
    average = combine(models, weights, None, method.combine)
    distances, cut = jnp.sort(((models - average) ** 2).sum(-1)), int(share_cut(method.combine) * len(models))
    spread = distances[len(models) - 1 - cut]  # the largest, of those that a trimmed mean would keep
    return Start(average if method.start == "average" else models[method.start], spread, common)


def weights_of(method: Method, sizes: Array) -> Array | None:
    """What each agent counts in a mean, from its number of samples; None where all count alike."""
    return sizes.astype(jnp.float32) if method.weighting == "samples" else None


def mean_over(each: Array, here: Array | None, weights: Array | None = None) -> Array:
    """The mean over the agents [agents, ...] that are `here` [agents]; None means all of them, nobody gives 0.

    With `weights` [agents] it is McMahan's sum of n_k / n times each, over those that are here.
    """
    if weights is None and here is None:
        return each.mean(0)
    total, weight = sum_over(each, here, weights)
    return total / jnp.maximum(weight, 1)


def sum_over(each: Any, here: Array | None, weights: Array | None = None) -> tuple[Any, Array]:
    """Sums over those that are `here`, of a pytree of [agents, ...], each times its weight; and of the weights."""
    counts = jnp.ones(len(jax.tree.leaves(each)[0])) if weights is None else weights
    counts = counts if here is None else jnp.where(here, counts, 0)

    def total(values: Array) -> Array:
        by_agent = counts.reshape((-1,) + (1,) * (values.ndim - 1))
        kept = jnp.where(by_agent > 0, values, 0)
        return (kept if weights is None else kept * by_agent).sum(0)

    return jax.tree.map(total, each), counts.sum()


def combine(messages: Any, weights: Array | None = None, present: Array | None = None, how: str = "mean") -> Any:
    """What the server gets of the agents' messages, a pytree of [agents, ...], from those `present` [agents].

    `how` is a method's `Combine`. `weights` [agents] are for means alone.
    """
    if how == "all":
        agents = len(jax.tree.leaves(messages)[0])
        return Everyone(messages, jnp.ones(agents) if present is None else present.astype(jnp.float32))
    cut = share_cut(how)
    if cut == 0:
        return jax.tree.map(partial(mean_over, here=present, weights=weights), messages)
    return jax.tree.map(partial(_trimmed_mean, here=present, cut=cut), messages)


def _trimmed_mean(each: Array, here: Array | None, cut: Fraction) -> Array:
    """The mean without the share `cut` of the lowest and of the highest, weight by weight; one or two are left."""
    agents, by_agent = len(each), (-1,) + (1,) * (each.ndim - 1)
    count = jnp.asarray(agents) if here is None else here.sum()
    if here is not None:
        each = jnp.where(here.reshape(by_agent), each, jnp.nan)  # NaN is sorted to the end
    ends = jnp.asarray([min(int(cut * n), max(n - 1, 0) // 2) for n in range(agents + 1)])[count]  # exact
    rank = jnp.arange(agents).reshape(by_agent)
    kept = jnp.where((ends <= rank) & (rank < count - ends), jnp.sort(each, 0), 0)
    return kept.sum(0) / jnp.maximum(count - 2 * ends, 1)


def server_step(
    method: Method, state: Any, messages: Any, weights: Array | None, present: Array | None
) -> tuple[Any, Broadcast]:
    """The server's part of a round, from the messages [agents, ...] of those `present` [agents]; None means all."""
    return method.server(state, combine(messages, weights, present, method.combine))


def check_agents(method: Method, agents: int) -> None:
    """Refuse a method that needs more agents than there are in a round."""
    cut = share_cut(method.combine)
    least = 1 if cut == 0 else max(3, math.ceil(1 / cut))
    if agents < least:
        raise InputError(
            f"combine={method.combine!r} leaves nobody out of fewer than {least} agents, and a round has {agents}; "
            "take more agents, a larger share, or combine='mean'."
        )


def has_diverged(
    method: Method, start_loss: Any, final_loss: Any, last_loss: Any, finite: Any, diverged_at: float = DIVERGED_AT
) -> Any:
    """Whether a run has diverged, from the agents' mean losses at the start, at the meta-model and in the last round.

    `finite` says whether the meta-model is; `last_loss` counts for methods with inner steps, and for those whose
    agents have their own head (the meta-model's is nobody's).
    """
    with np.errstate(over="ignore"):
        limit = diverged_at * np.maximum(np.asarray(start_loss), 1e-12)
    diverged = ~(np.asarray(final_loss) <= limit)
    if method.judged_adapted and method.rounds:
        diverged &= ~(np.asarray(last_loss) <= limit)
    return diverged | ~np.asarray(finite)


def weight_bytes(method: Method) -> int:
    """Bytes that one agent sends once, before the first round, to say how many samples it has."""
    return NUMBER_BYTES if method.weighting == "samples" else 0


def numbers(tree: Any) -> int:
    """How many numbers a pytree holds, of arrays or of their shapes."""
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def message_bytes(message: Any, info: Info | None = None) -> Any:
    """Bytes that one agent's message costs on the air: what its codec says, else float32."""
    coded = None if info is None else info.size_bytes
    return NUMBER_BYTES * numbers(message) if coded is None else coded


def holders(who: Array) -> Array:
    """Which of those who take part [rounds, rows] hold the broadcast before that of their round: those that were there
    one round earlier. Before the first round everybody holds the seed's random start."""
    return jnp.concatenate([jnp.ones_like(who[:1], bool), jax.vmap(jnp.isin)(who[1:], who[:-1])])


def broadcast_bytes(method: Method, broadcast: Broadcast, first_round: Any, holds: Any = True) -> Any:
    """Bytes that one agent receives at the beginning of a round.

    A coded broadcast is a difference from the one before. An agent that `holds` that one is sent the difference, any
    other the whole model in float32. In the first round an agent knows a random start, which it drew itself, and the
    start of a probe, which it got then. Handing out the meta-model at the end is not part of a run's cost.
    """
    coded, whole = broadcast.size_bytes, NUMBER_BYTES * broadcast.model.size
    model = whole if coded is None else jnp.where(holds, coded, whole)
    if method.start == "random" or (method.probe is not None and coded is None):
        model = jnp.where(first_round, 0, model)
    return model + NUMBER_BYTES * numbers(broadcast.scalars)


def probe_bytes(method: Method, model: Model, probe: Any) -> tuple[int, int]:
    """Bytes that one agent sends (its probe) and receives (where the probe is taken) before the first round."""
    return NUMBER_BYTES * numbers(probe), NUMBER_BYTES * shared_size(method, model)
