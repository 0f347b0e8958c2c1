"""The compiled program of a simulated run: all rounds under `scan`, all agents and seeds under `vmap`.

From agents' data and models, checked by `simulate`, to meta-models, traces and bytes.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.methods.method import Broadcast, Method
from fewjoule.models.model import Model
from fewjoule.randomness import key_for, round_key
from fewjoule.simulation import rules
from fewjoule.simulation.run import Trace
from fewjoule.tasks.samples import AgentData

SEEDS = "seeds"
"""The axis that all seeds run along at once."""


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5, 6))
def rounds_program(
    method: Method, model: Model, owners: tuple[Model, ...] | None, per_seed: bool, present: int | None,
    kept: tuple[int, ...] | None, one_by_one: bool,
    data: AgentData, ids: Array, models: Any, availability: Array | None, seeds: Array,
) -> dict[str, Any]:  # fmt: skip
    each, alone = (_in_turn, _alone) if one_by_one else (jax.vmap, lambda function: function)
    together = len(seeds) > 1 and not one_by_one

    def of_first_seed(values: Array) -> Array:
        return jax.lax.all_gather(values, SEEDS)[0] if together else values

    def mean_loss(vector: Array, data: AgentData) -> Array:
        return each(lambda samples: model.loss(vector, samples))(data.train).mean()

    def turns(states: Any, broadcast: Broadcast, data: AgentData, keys: Array) -> Any:
        """Every agent's round; one by one where their models differ in shape."""

        def turn(state: Any, data: AgentData, key: Array) -> Any:
            return method.agent(model.loss, state, broadcast, data, key)

        if owners is None:
            return each(turn)(states, data, keys)
        all_turns = [turn(own, jax.tree.map(lambda a, i=i: a[i], data), keys[i]) for i, own in enumerate(states)]
        stacked = jax.tree.map(lambda *a: jnp.stack(a), *[rest for _, *rest in all_turns])
        return (tuple(state for state, *_ in all_turns), *stacked)

    def one_seed(seed: Array, data: AgentData, models: Any) -> tuple[dict[str, Any], Any]:
        if owners is None:
            received, states, first_up = _first_upload(method, model, models, ids, seed, each)
        else:
            received, first_up = None, jnp.full(len(ids), rules.weight_bytes(method), jnp.int32)
            pairs = zip(owners, models, strict=True)
            states = tuple(method.agent_init(rules.own_model(method, own, vector)) for own, vector in pairs)
        weights = rules.weights_of(method, data.train.mask.sum(-1))
        start = alone(partial(rules.start_of, method, model))(received, seed, weights)
        first_down = jnp.zeros(len(ids), jnp.int32)
        probes = None
        if method.probe is not None:
            keys = jax.vmap(lambda i: jax.random.fold_in(key_for(seed, "probe"), i))(ids)
            probes = each(lambda d, k: method.probe(model.loss, start.model, d, k))(data, keys)  # type: ignore[misc]
            up, down = rules.probe_bytes(model, jax.tree.map(lambda p: p[0], probes))
            first_up, first_down = first_up + up, first_down + down
        server, broadcast = alone(method.init)(start, probes)

        def one_round(carry: tuple[Any, ...], at: tuple[Any, ...]) -> tuple[Any, Any]:
            server, broadcast, states, paths = carry
            index, keys, available, held, slot = at
            new_states, messages, info = turns(states, rules.told(broadcast, seed), data, keys)
            here = jnp.ones(len(ids)) if available is None else available.astype(jnp.float32)
            count = here.sum()
            over_present = partial(rules.mean_over, here=available)
            new_server, new_broadcast = alone(partial(rules.server_step, method))(server, messages, weights, available)
            said = None if method.learn is None else rules.combine(messages, weights, available, method.combine)
            if available is not None and owners is None:
                new_states = jax.tree.map(
                    lambda new, old: jnp.where(here.reshape((-1,) + (1,) * (new.ndim - 1)) > 0, new, old),
                    new_states, states,
                )  # fmt: skip
            if available is not None:
                new_server, new_broadcast = jax.tree.map(
                    lambda new, old: jnp.where(count > 0, new, old), (new_server, new_broadcast), (server, broadcast)
                )
            distances = jnp.linalg.norm(info.model - over_present(info.model), axis=-1) * here
            radius = broadcast.scalars if isinstance(broadcast.scalars, jax.Array) else jnp.full((), jnp.nan)
            nobody = jnp.where(count > 0, 0, jnp.nan)
            trace = Trace(
                over_present(info.loss) + nobody,
                distances.max() + nobody,
                jnp.linalg.norm(new_broadcast.model - broadcast.model),
                radius,
                over_present(info.active) + nobody,
                count,
            )
            up = rules.message_bytes(jax.tree.map(lambda m: m[0], messages), info)
            down = rules.broadcast_bytes(method, broadcast, index == 0, True if held is None else held)
            size_bytes = (up * here.astype(jnp.int32), down * here.astype(jnp.int32))
            if paths is not None:
                now = jax.tree.map(of_first_seed, (new_broadcast.model, info.model))
                paths = jax.tree.map(lambda path, models: path.at[slot].set(models), paths, now)
            return (new_server, new_broadcast, new_states, paths), (trace, size_bytes, said)

        # All keys before the first round: one large draw is far cheaper than many small ones inside the loop.
        keys = _round_keys(key_for(seed, "round"), method.rounds, ids)
        there = availability
        if present is not None:
            draws = _round_keys(key_for(seed, "participation"), method.rounds, ids)
            there = jnp.argsort(jnp.argsort(jax.vmap(jax.vmap(jax.random.uniform))(draws))) < present
        slots, paths = None, None
        if kept is not None:
            slots = np.searchsorted(kept, np.arange(1, method.rounds + 1))  # rounds between write to the next one's
            paths = (jnp.zeros((len(kept) + 1, model.size)), jnp.zeros((len(kept) + 1, len(ids), model.size)))
        rounds = (jnp.arange(method.rounds), keys, there, None if there is None else rules.holders(there), slots)
        (server, broadcast, _, paths), (trace, size_bytes, said) = jax.lax.scan(
            one_round, (server, broadcast, states, paths), rounds
        )
        meta = broadcast.model if method.final is None else method.final(server)
        out: dict[str, Any] = {
            "meta": meta,
            "messages": jax.tree.map(lambda a: a[-1], said) if method.rounds else None,
            "start": start.model,
            "trace": trace,
            "start_loss": mean_loss(start.model, data),
            "final_loss": mean_loss(meta, data),
            "finite": jnp.isfinite(meta).all(),
            "size_bytes": (
                jnp.concatenate([first_up[None], size_bytes[0]]),
                jnp.concatenate([first_down[None], size_bytes[1]]),
            ),
        }
        if paths is not None:
            paths = (jnp.concatenate([of_first_seed(start.model)[None], paths[0][:-1]]), paths[1][:-1])
        return out, paths

    if len(seeds) == 1:  # an axis of one would cost a fifth of the speed
        own = jax.tree.map(lambda a: a[0], data) if per_seed else data
        out, paths = one_seed(seeds[0], own, jax.tree.map(lambda a: a[0], models))
        out = jax.tree.map(lambda a: a[None], out)
    elif one_by_one:
        own_data = data if per_seed else jax.tree.map(lambda a: jnp.broadcast_to(a, (len(seeds), *a.shape)), data)
        out, paths = _in_turn(one_seed)(seeds, own_data, models)
        paths = jax.tree.map(lambda path: path[0], paths)
    else:
        over_seeds = jax.vmap(one_seed, (0, 0 if per_seed else None, 0), (0, None), axis_name=SEEDS)
        out, paths = over_seeds(seeds, data, models)
    return {**out, "paths": paths}


def _in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of every row of its arrays, one after the other."""
    return lambda *arrays: jax.lax.map(lambda row: function(*row), arrays)


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, rounding as it does when it is compiled alone: the body of a loop is never merged with what stands
    around it. A loop of one turn would be taken apart, so it has two."""

    def first_of_two(*arrays: Any) -> Any:
        twice = jax.tree.map(lambda a: jnp.stack([a, a]), arrays)
        return jax.tree.map(lambda a: a[0], _in_turn(function)(*twice))

    return first_of_two


def _round_keys(root: Array, rounds: int, ids: Array) -> Array:
    """The key of every agent in every round [rounds, agents]."""
    return jax.vmap(lambda k: jax.vmap(lambda i: round_key(root, k, i))(ids))(jnp.arange(rounds))


def _first_upload(
    method: Method, model: Model, models: Array, ids: Array, seed: Array, each: Callable[..., Any]
) -> tuple[Array, Any, Array]:
    """The local models as the server receives them, the agents' states, and bytes per agent."""
    told, senders = rules.weight_bytes(method), jnp.full(len(ids), method.start == "average", jnp.int32)
    if isinstance(method.start, int):
        senders = senders.at[method.start].set(1)
    if method.upload is None or method.start == "random":
        states = jax.vmap(lambda local: method.agent_init(rules.own_model(method, model, local)))(models)
        return models, states, told + senders * rules.NUMBER_BYTES * model.size
    common, root = model.init(key_for(seed, "start")), key_for(seed, "codec")
    keys = jax.vmap(lambda i: jax.random.fold_in(root, i))(ids)
    sent = each(lambda local, key: method.upload(local, common, key))(models, keys)
    return sent.model, jax.vmap(method.agent_init)(models, sent.model), told + senders * sent.size_bytes
