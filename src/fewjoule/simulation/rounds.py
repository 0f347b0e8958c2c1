"""The compiled program of a simulated run: all rounds under `scan`, all seeds at once on all devices, in each round
those who take part.

From agents' data and models, checked by `simulate`, to meta-models, traces and bytes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.methods.method import Method
from fewjoule.models.model import Model
from fewjoule.randomness import cohorts_of, key_for, round_keys
from fewjoule.simulation import rules
from fewjoule.simulation.cohort import Rows, one_round
from fewjoule.simulation.how import How
from fewjoule.tasks.samples import AgentData
from fewjoule.training.mesh import everywhere, over_devices, spread, with_fillers
from fewjoule.training.program import BRIEF_OPTIONS, COMPILER_OPTIONS

SEEDS = "seeds"
"""The axis that all seeds run along at once."""


class Draws(NamedTuple):
    """What is random about the rounds of every seed, drawn before them: programs of their own, which methods share."""

    start: Any  # [seeds, d], the common one, shared weights first
    who: Any  # [seeds, rounds, rows], the positions of those who take part, rising; None where all do
    keys: Any  # [seeds, rounds, rows, 2], their data


def draws(
    method: Method, model: Model, present: int | None, cohorts: Any, ids: Array, seeds: Any, *, apart: bool
) -> Draws:
    """`present` agents are drawn for each round, or `cohorts` [rounds, rows] are their positions, with fillers beyond
    the last agent; all take part where both are None. Where agents are `apart`, all have a key in every round."""
    who = None if cohorts is None else np.broadcast_to(cohorts, (len(seeds), *cohorts.shape))
    who = who if present is None else np.stack([cohorts_of(int(seed), method.rounds, present, ids) for seed in seeds])
    rows = np.asarray(ids)[None].repeat(len(seeds), 0)
    if who is not None and not apart:
        rows = rows[0].take(np.asarray(who), mode="clip")
    keys = [round_keys(int(seed), method.rounds, own) for seed, own in zip(seeds, rows, strict=True)]
    return Draws(np.stack([rules.common_start(method, model, seed) for seed in seeds]), who, np.stack(keys))


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5, 6), compiler_options=COMPILER_OPTIONS)
def rounds_program(
    method: Method, model: Model, owners: tuple[Model, ...] | None, per_seed: bool, present: int | None,
    kept: tuple[int, ...] | None, how: How,
    data: AgentData, ids: Array, models: Any, drawn: Draws, seeds: Array,
) -> dict[str, Any]:  # fmt: skip
    """All seeds of a method. `models` are None where the method does not ask for them."""
    together, each = len(seeds) > 1 and not how.alone, how.each
    split, loss = rules.parts(method, model), rules.loss_of(method, model)

    def of_first_seed(values: Array) -> Array:
        return jax.lax.all_gather(values, SEEDS)[0] if together else values

    def one_seed(seed: Array, drawn: Draws, data: AgentData, models: Any) -> tuple[dict[str, Any], Any]:
        if owners is None:
            received, states, first_up = first_upload(method, model, models, ids, seed, drawn.start, each)
        else:
            received, first_up = None, jnp.full(len(ids), rules.weight_bytes(method), jnp.int32)
            pairs = zip(owners, models, strict=True)
            states = tuple(method.agent_init(rules.own_model(method, own, vector)) for own, vector in pairs)
        weights = rules.weights_of(method, data.train.mask.sum(-1))
        start = how.by_itself(partial(rules.start_of, method))(received, drawn.start[: split.body], weights)
        first_down = jnp.zeros(len(ids), jnp.int32)
        probes = None
        if method.probe is not None:
            keys = jax.vmap(lambda i: jax.random.fold_in(key_for(seed, "probe"), i))(ids)
            probes = each(lambda d, k: method.probe(loss, start.model, d, k))(data, keys)  # type: ignore[misc]
            up, down = rules.probe_bytes(method, model, jax.tree.map(lambda p: p[0], probes))
            first_up, first_down = first_up + up, first_down + down
        server, broadcast = how.by_itself(method.init)(start, probes)
        who, keys = drawn.who, jax.random.wrap_key_data(drawn.keys)
        everyone, rows_here = (states, data, weights), None
        fillers = -keys.shape[1] % how.devices if how.splits(method) else 0
        if fillers:  # so that the devices divide the rows
            keys = with_fillers(keys.T, fillers).T
            if who is None:
                everyone, rows_here = with_fillers(everyone, fillers), jnp.arange(keys.shape[1]) < len(ids)
            else:
                who = jnp.pad(who, ((0, 0), (0, fillers)), constant_values=len(ids))
        states, all_data, all_weights = everyone
        all_data = spread(all_data, how.devices if who is None and len(seeds) == 1 else 1)

        def round_of(carry: tuple[Any, ...], at: tuple[Any, ...]) -> tuple[Any, Any]:
            server, broadcast, states, paths = carry
            index, keys, who, held, slot = at
            placed = partial(_placed, who, len(ids))
            here = rows_here if who is None or (present is not None and not fillers) else who < len(ids)
            if how.apart and who is not None:  # nothing is gathered where shapes differ
                here, who = placed(who < len(ids)), None
            own_states, own_data, own_weights = _gathered((states, all_data, all_weights), who)
            rows, everybody = Rows(own_states, own_data, keys, own_weights, here, held), None
            if method.combine == "all" and who is not None:
                everybody = lambda sent: placed((sent, who < len(ids)))  # noqa: E731
            out = one_round(method, model, how, seed, index == 0, server, broadcast, rows, everybody)
            new_states, size_bytes, models = out.states, out.size_bytes, out.models
            if who is not None:
                new_states = jax.tree.map(lambda old, new: old.at[who].set(new, mode="drop"), states, new_states)
                size_bytes, models = placed(size_bytes), placed(models, jnp.nan)
            if paths is not None:
                own_models = None if models is None else models[: len(ids)]
                now = (rules.whole(method, model, out.broadcast.model, drawn.start), split.as_model(own_models))
                now = jax.tree.map(of_first_seed, now)
                paths = jax.tree.map(lambda path, models: path.at[slot].set(models), paths, now)
            return (out.server, out.broadcast, new_states, paths), (out.trace, size_bytes, out.said)

        slots, paths = None, None
        if kept is not None:
            slots = np.searchsorted(kept, np.arange(1, method.rounds + 1))  # rounds between write to the next one's
            paths = (jnp.zeros((len(kept) + 1, model.size)), jnp.zeros((len(kept) + 1, len(ids), model.size)))
        held = None if who is None or method.codecs[2] is None else rules.holders(who)
        rounds = (jnp.arange(method.rounds), keys, who, held, slots)
        (server, broadcast, states, paths), (trace, size_bytes, said) = jax.lax.scan(
            round_of, (server, broadcast, states, paths), rounds
        )
        if rows_here is not None:
            states = jax.tree.map(lambda a: a[: len(ids)], states)
            size_bytes = tuple(b[:, : len(ids)] for b in size_bytes)
        if how.splits(method):
            each_device = everywhere(trace.spread, how.devices)  # a maximum over devices would lose NaN
            trace = trace._replace(spread=each_device.max(-1))
        meta = broadcast.model if method.final is None else method.final(server)
        personal = None
        if method.personal is not None:
            last = rules.told(broadcast._replace(model=meta), seed)  # all get the meta-model when a run closes
            personal = split.as_model(jax.vmap(lambda state: method.personal(state, last))(states))  # type: ignore[misc]
        meta, begin = (rules.whole(method, model, vector, drawn.start) for vector in (meta, start.model))
        out: dict[str, Any] = {
            "meta": meta,
            "personal": personal,
            "rates": None if method.rates is None else method.rates(broadcast),
            "messages": jax.tree.map(lambda a: a[-1], said) if method.rounds else None,
            "start": begin,
            "trace": trace,
            "size_bytes": (
                jnp.concatenate([first_up[None], size_bytes[0]]),
                jnp.concatenate([first_down[None], size_bytes[1]]),
            ),
        }
        if paths is not None:
            paths = (jnp.concatenate([of_first_seed(begin)[None], paths[0][:-1]]), paths[1][:-1])
        return out, paths

    if len(seeds) == 1:  # an axis of one would cost a fifth of the speed
        first = partial(jax.tree.map, lambda a: a[0])
        own = first(data) if per_seed else data
        if drawn.who is None:
            own = (everywhere if len(ids) % how.devices else spread)(own, how.devices)
        out, paths = one_seed(seeds[0], first(drawn), own, first(models))
        out = jax.tree.map(lambda a: a[None], out)
    elif how.alone:
        own_data = data if per_seed else jax.tree.map(lambda a: jnp.broadcast_to(a, (len(seeds), *a.shape)), data)
        out, paths = each(one_seed)(seeds, drawn, own_data, models)
        paths = jax.tree.map(lambda path: path[0], paths)
    else:
        at_once = jax.vmap(one_seed, (0, 0, 0 if per_seed else None, 0), (0, None), axis_name=SEEDS)

        def of_some(seeds: Array, drawn: Draws, data: AgentData, models: Any) -> tuple[Any, Any]:
            out, paths = at_once(seeds, drawn, data, models)
            return out, jax.tree.map(lambda path: jnp.repeat(path[None], len(seeds), 0), paths)

        out, paths = over_devices(of_some, len(seeds), (True, True, per_seed, True))(seeds, drawn, data, models)
        paths = jax.tree.map(lambda path: path[0], paths)
    return {**out, "paths": paths}


@partial(jax.jit, static_argnums=(0, 1, 2), compiler_options=BRIEF_OPTIONS)
def mean_losses(model: Model, how: How, per_seed: bool, vectors: Array, data: AgentData) -> Array:
    """The agents' mean loss [seeds, k] at vectors [seeds, k, d]: before the rounds and after them. Never part of their
    program: methods share it, and what judges a method is no part of its cost."""

    def one_seed(vectors: Array, data: AgentData) -> Array:
        def mean_loss(vector: Array) -> Array:
            return how.each(lambda own: rules.loss_at(model, vector, own))(data).mean()

        return jax.lax.map(mean_loss, vectors)

    if len(vectors) == 1:
        return one_seed(vectors[0], jax.tree.map(lambda a: a[0], data) if per_seed else data)[None]
    over_seeds = how.each if how.alone and per_seed else lambda one: jax.vmap(one, (0, 0 if per_seed else None))
    losses: Array = over_devices(over_seeds(one_seed), len(vectors), (True, per_seed))(vectors, data)
    return losses


def _gathered(tree: Any, who: Array | None) -> Any:
    """The rows of those who take part, from those of all agents."""
    return tree if who is None else jax.tree.map(lambda a: a.at[who].get(mode="clip"), tree)


def _placed(who: Array, agents: int, tree: Any, absent: float = 0) -> Any:
    """The rows of all agents, from those of the ones who take part."""

    def place(rows: Array) -> Array:
        everyone = jnp.full((agents, *rows.shape[1:]), jnp.asarray(absent, rows.dtype))
        return everyone.at[who].set(rows, mode="drop")

    return jax.tree.map(place, tree)


def first_upload(
    method: Method, model: Model, models: Array | None, ids: Array, seed: Array, common: Array, each: Callable[..., Any]
) -> tuple[Array, Any, Array]:
    """What the server receives of the local models [agents, b], the agents' states, and bytes per agent.

    `common` is the seed's random start; everybody begins with it where the method does not ask for local models.
    """
    split = rules.parts(method, model)
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
