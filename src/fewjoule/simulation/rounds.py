"""The compiled program of a simulated run: all rounds under `scan`, all seeds at once on all devices, in each round
those who take part.

From agents' data and models, checked by `simulate`, to meta-models, traces and bytes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.methods.method import Method
from fewjoule.models.model import Model
from fewjoule.randomness import key_for, round_key, uniform_each
from fewjoule.simulation import rules
from fewjoule.simulation.cohort import Rows, one_round
from fewjoule.simulation.how import How
from fewjoule.tasks.samples import AgentData
from fewjoule.training.mesh import over_devices, spread

SEEDS = "seeds"
"""The axis that all seeds run along at once."""
DRAWN_AT_ONCE = 1_000_000
"""Agents times rounds whose numbers are drawn at once: more would take memory, fewer would take time."""


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5, 6))
def rounds_program(
    method: Method, model: Model, owners: tuple[Model, ...] | None, per_seed: bool, present: int | None,
    kept: tuple[int, ...] | None, how: How,
    data: AgentData, ids: Array, models: Any, cohorts: Array | None, seeds: Array,
) -> dict[str, Any]:  # fmt: skip
    """`present` agents are drawn for each round, or `cohorts` [rounds, rows] are their positions, with fillers beyond
    the last agent; all take part where both are None. `models` are None where the method does not ask for them."""
    together, each = len(seeds) > 1 and not how.alone, how.each
    split, loss = rules.parts(method, model), rules.loss_of(method, model)

    def of_first_seed(values: Array) -> Array:
        return jax.lax.all_gather(values, SEEDS)[0] if together else values

    def mean_loss(vector: Array, data: AgentData) -> Array:
        return each(lambda samples: model.loss(vector, samples))(data.train).mean()

    def one_seed(seed: Array, data: AgentData, models: Any) -> tuple[dict[str, Any], Any]:
        if owners is None:
            received, states, first_up = first_upload(method, model, models, ids, seed, each)
        else:
            received, first_up = None, jnp.full(len(ids), rules.weight_bytes(method), jnp.int32)
            pairs = zip(owners, models, strict=True)
            states = tuple(method.agent_init(rules.own_model(method, own, vector)) for own, vector in pairs)
        weights = rules.weights_of(method, data.train.mask.sum(-1))
        start = how.by_itself(partial(rules.start_of, method, model))(received, seed, weights)
        first_down = jnp.zeros(len(ids), jnp.int32)
        probes = None
        if method.probe is not None:
            keys = jax.vmap(lambda i: jax.random.fold_in(key_for(seed, "probe"), i))(ids)
            probes = each(lambda d, k: method.probe(loss, start.model, d, k))(data, keys)  # type: ignore[misc]
            up, down = rules.probe_bytes(method, model, jax.tree.map(lambda p: p[0], probes))
            first_up, first_down = first_up + up, first_down + down
        server, broadcast = how.by_itself(method.init)(start, probes)

        def round_of(carry: tuple[Any, ...], at: tuple[Any, ...]) -> tuple[Any, Any]:
            server, broadcast, states, paths = carry
            index, keys, who, held, slot = at
            placed = partial(_placed, who, len(ids))
            here = None if who is None or present is not None else who < len(ids)
            if how.apart and who is not None:  # nothing is gathered where shapes differ
                here, who = placed(who < len(ids)), None
            own_states, own_data, own_weights = _gathered((states, data, weights), who)
            rows, everybody = Rows(own_states, own_data, keys, own_weights, here, held), None
            if method.combine == "all" and who is not None:
                everybody = lambda sent: placed((sent, who < len(ids)))  # noqa: E731
            out = one_round(method, model, how, seed, index == 0, server, broadcast, rows, everybody)
            new_states, size_bytes, models = out.states, out.size_bytes, out.models
            if who is not None:
                new_states = jax.tree.map(lambda old, new: old.at[who].set(new, mode="drop"), states, new_states)
                size_bytes, models = placed(size_bytes), placed(models, jnp.nan)
            if paths is not None:
                now = (rules.whole(method, model, out.broadcast.model, seed), split.as_model(models))
                now = jax.tree.map(of_first_seed, now)
                paths = jax.tree.map(lambda path, models: path.at[slot].set(models), paths, now)
            return (out.server, out.broadcast, new_states, paths), (out.trace, size_bytes, out.said)

        who = cohorts if present is None else _drawn(seed, method.rounds, ids, present)
        # All keys before the first round: one large draw is far cheaper than many small ones inside the loop.
        keys = _round_keys(key_for(seed, "round"), method.rounds, ids, None if how.apart else who)
        slots, paths = None, None
        if kept is not None:
            slots = np.searchsorted(kept, np.arange(1, method.rounds + 1))  # rounds between write to the next one's
            paths = (jnp.zeros((len(kept) + 1, model.size)), jnp.zeros((len(kept) + 1, len(ids), model.size)))
        held = None if who is None or method.codecs[2] is None else rules.holders(who)
        rounds = (jnp.arange(method.rounds), keys, who, held, slots)
        (server, broadcast, states, paths), (trace, size_bytes, said) = jax.lax.scan(
            round_of, (server, broadcast, states, paths), rounds
        )
        meta = broadcast.model if method.final is None else method.final(server)
        meta, begin = (rules.whole(method, model, vector, seed) for vector in (meta, start.model))
        personal = None
        if method.personal is not None:
            last = rules.told(broadcast, seed)
            personal = split.as_model(jax.vmap(lambda state: method.personal(state, last))(states))  # type: ignore[misc]
        out: dict[str, Any] = {
            "meta": meta,
            "personal": personal,
            "rates": None if method.rates is None else method.rates(broadcast),
            "messages": jax.tree.map(lambda a: a[-1], said) if method.rounds else None,
            "start": begin,
            "trace": trace,
            "start_loss": mean_loss(begin, data),
            "final_loss": mean_loss(meta, data),
            "finite": jnp.isfinite(meta).all(),
            "size_bytes": (
                jnp.concatenate([first_up[None], size_bytes[0]]),
                jnp.concatenate([first_down[None], size_bytes[1]]),
            ),
        }
        if paths is not None:
            paths = (jnp.concatenate([of_first_seed(begin)[None], paths[0][:-1]]), paths[1][:-1])
        return out, paths

    if len(seeds) == 1:  # an axis of one would cost a fifth of the speed
        everybody = present is None and cohorts is None
        own = spread(jax.tree.map(lambda a: a[0], data) if per_seed else data, how.devices if everybody else 1)
        out, paths = one_seed(seeds[0], own, jax.tree.map(lambda a: a[0], models))
        out = jax.tree.map(lambda a: a[None], out)
    elif how.alone:
        own_data = data if per_seed else jax.tree.map(lambda a: jnp.broadcast_to(a, (len(seeds), *a.shape)), data)
        out, paths = each(one_seed)(seeds, own_data, models)
        paths = jax.tree.map(lambda path: path[0], paths)
    else:
        at_once = jax.vmap(one_seed, (0, 0 if per_seed else None, 0), (0, None), axis_name=SEEDS)

        def of_some(seeds: Array, data: AgentData, models: Any) -> tuple[Any, Any]:
            out, paths = at_once(seeds, data, models)
            return out, jax.tree.map(lambda path: jnp.repeat(path[None], len(seeds), 0), paths)

        out, paths = over_devices(of_some, len(seeds), (True, per_seed, True))(seeds, data, models)
        paths = jax.tree.map(lambda path: path[0], paths)
    return {**out, "paths": paths}


def _gathered(tree: Any, who: Array | None) -> Any:
    """The rows of those who take part, from those of all agents."""
    return tree if who is None else jax.tree.map(lambda a: a.at[who].get(mode="clip"), tree)


def _placed(who: Array, agents: int, tree: Any, absent: float = 0) -> Any:
    """The rows of all agents, from those of the ones who take part."""

    def place(rows: Array) -> Array:
        everyone = jnp.full((agents, *rows.shape[1:]), jnp.asarray(absent, rows.dtype))
        return everyone.at[who].set(rows, mode="drop")

    return jax.tree.map(place, tree)


def _drawn(seed: Array, rounds: int, ids: Array, present: int) -> Array:
    """The positions of the agents that are drawn for each round [rounds, present], rising.

    Every agent draws a number for itself and the lowest take part, so that the order of agents does not matter.
    """
    root = key_for(seed, "participation")

    def draw(index: Array) -> Array:
        numbers = uniform_each(jax.random.fold_in(root, index), ids)
        return jnp.sort(jax.lax.top_k(-numbers, present)[1])

    return jax.lax.map(draw, jnp.arange(rounds), batch_size=max(1, DRAWN_AT_ONCE // len(ids)))


def _round_keys(root: Array, rounds: int, ids: Array, who: Array | None) -> Array:
    """The key of every agent in every round [rounds, agents], or of those who take part."""

    def of_round(index: Array, ids: Array) -> Array:
        return jax.vmap(lambda i: round_key(root, index, i))(ids)

    return jax.vmap(of_round, (0, None if who is None else 0))(jnp.arange(rounds), _gathered(ids, who))


def first_upload(
    method: Method, model: Model, models: Array | None, ids: Array, seed: Array, each: Callable[..., Any]
) -> tuple[Array, Any, Array]:
    """What the server receives of the local models [agents, b], the agents' states, and bytes per agent.

    Where the method does not ask for local models, everybody begins with the seed's random start.
    """
    split, common = rules.parts(method, model), rules.common_start(method, model, seed)
    if models is None or not rules.uses_local(method):
        own = jnp.broadcast_to(common, (len(ids), model.size))
    else:
        own = split.body_first(models)
    shared = own[:, : split.body]
    told, senders = rules.weight_bytes(method), jnp.full(len(ids), method.start == "average", jnp.int32)
    if isinstance(method.start, int):
        senders = senders.at[method.start].set(1)
    if method.upload is None or method.start == "random":
        states = jax.vmap(lambda local, sent: method.agent_init(rules.own_model(method, model, local), sent))(
            own, shared
        )
        return shared, states, told + senders * rules.NUMBER_BYTES * split.body
    root = key_for(seed, "codec")
    keys = jax.vmap(lambda i: jax.random.fold_in(root, i))(ids)
    sent = each(lambda part, key: method.upload(part, common[: split.body], key))(shared, keys)
    return sent.model, jax.vmap(method.agent_init)(own, sent.model), told + senders * sent.size_bytes
