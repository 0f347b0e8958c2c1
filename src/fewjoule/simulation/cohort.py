"""One round of those who take part, from the broadcast that opens it to the next one; and how agents are gone over.

The agents of a round are rows: all agents, or a cohort gathered from them, with fillers at the end where cohorts differ
in size. The rows are computed at once, one after another, or in chunks that bound the memory.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fewjoule.methods.method import Broadcast, Method
from fewjoule.models.model import Model
from fewjoule.simulation import rules
from fewjoule.simulation.run import Trace
from fewjoule.tasks.samples import AgentData


class How(NamedTuple):
    """How agents are gone over. All ways give the same numbers but for the order of sums."""

    in_turn: bool = False  # one after another, not all at once
    alone: bool = False  # each compiled as it would be alone, which gives the bits of a federation
    apart: bool = False  # the agents' models differ in shape: each has a program of its own
    chunk: int | None = None  # agents computed at once; None for all
    sums: bool = False  # chunks keep sums of their messages, so that memory does not grow with the agents

    def each(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of every row of its arrays, stacked."""
        if not self.in_turn and self.chunk is None:
            return jax.vmap(function)
        size = None if self.in_turn else self.chunk
        return lambda *arrays: jax.lax.map(lambda row: function(*row), arrays, batch_size=size)

    def by_itself(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function; with `alone`, rounding as it does when it is compiled alone: the body of a loop is never merged
        with what stands around it. A loop of one turn would be taken apart, so it has two."""
        if not self.alone:
            return function

        def first_of_two(*arrays: Any) -> Any:
            twice = jax.tree.map(lambda a: jnp.stack([a, a]), arrays)
            return jax.tree.map(lambda a: a[0], self.each(function)(*twice))

        return first_of_two


class Rows(NamedTuple):
    """Those who take part in a round: arrays [rows, ...]."""

    states: Any  # a tuple of one state per agent where they are `apart`
    data: AgentData
    keys: Array
    weights: Array | None  # what each counts in a mean; None where all count alike
    here: Array | None  # bool, False for those who are not there; None where all are


class Round(NamedTuple):
    """What a round gives."""

    server: Any
    broadcast: Broadcast
    states: Any
    said: Any  # what the server got of the messages, where the method learns from it
    models: Array | None  # [rows, d], the agents' own; None where chunks keep sums
    trace: Trace
    size_bytes: tuple[Array, Array]  # [rows] sent and received


def one_round(
    method: Method, model: Model, how: How, seed: Array, first: Any, server: Any, broadcast: Broadcast, rows: Rows,
    everybody: Callable[[Any], tuple[Any, Any]] | None = None,
) -> Round:  # fmt: skip
    """A round; `first` says whether it is the first. `everybody` makes messages of all agents, and who sent one, out of
    the rows', for methods with combine="all"."""
    heard = rules.told(broadcast, seed)
    if how.sums:
        states, (total, weight), traced, up = _in_chunks(method, model, how, heard, rows)
        (loss, active), count = traced
        loss, active, spread = loss / jnp.maximum(count, 1), active / jnp.maximum(count, 1), jnp.full((), jnp.nan)
        after = method.server(server, jax.tree.map(lambda t: t / jnp.maximum(weight, 1), total))
        said = models = None
    else:
        states, messages, info = _turns(method, model, how, heard, rows)
        there = jnp.ones(len(rows.keys)) if rows.here is None else rows.here.astype(jnp.float32)
        sent, senders = (messages, rows.here) if everybody is None else everybody(messages)
        after = how.by_itself(partial(rules.server_step, method))(server, sent, rows.weights, senders)
        said = None if method.learn is None else rules.combine(sent, rows.weights, senders, method.combine)
        over_present = partial(rules.mean_over, here=rows.here)
        loss, active, count, models = over_present(info.loss), over_present(info.active), there.sum(), info.model
        spread = (jnp.linalg.norm(models - over_present(models), axis=-1) * there).max()
        up = rules.message_bytes(jax.tree.map(lambda m: m[0], messages), info)
    if rows.here is not None:
        after = jax.tree.map(lambda new, old: jnp.where(count > 0, new, old), after, (server, broadcast))
        states = states if how.apart else _where(rows.here, states, rows.states)
    radius = broadcast.scalars if isinstance(broadcast.scalars, jax.Array) else jnp.full((), jnp.nan)
    nobody = jnp.where(count > 0, 0, jnp.nan)
    moved = jnp.linalg.norm(after[1].model - broadcast.model)
    trace = Trace(loss + nobody, spread + nobody, moved, radius, active + nobody, count)
    here = jnp.ones(len(rows.keys), jnp.int32) if rows.here is None else rows.here.astype(jnp.int32)
    down = rules.broadcast_bytes(method, broadcast, first)
    return Round(*after, states, said, models, trace, (up * here, down * here))


def _turns(method: Method, model: Model, how: How, broadcast: Broadcast, rows: Rows) -> Any:
    """Every row's state, message and info."""

    def turn(state: Any, data: AgentData, key: Array) -> Any:
        return method.agent(model.loss, state, broadcast, data, key)

    if not how.apart:
        return how.each(turn)(rows.states, rows.data, rows.keys)
    own_data = [jax.tree.map(lambda a, i=i: a[i], rows.data) for i in range(len(rows.states))]
    all_turns = [turn(*own) for own in zip(rows.states, own_data, rows.keys, strict=True)]
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *[rest for _, *rest in all_turns])
    return (tuple(state for state, *_ in all_turns), *stacked)


def _in_chunks(method: Method, model: Model, how: How, broadcast: Broadcast, rows: Rows) -> Any:
    """States, the sums of messages and of their weights, those of (loss, active) and who was there, and bytes [rows].

    Chunks are equally long. The last one may begin among the rows of the one before it, which then count as absent.
    """
    count, size = len(rows.keys), min(how.chunk or 1, len(rows.keys))
    alike = how._replace(chunk=None)

    def chunk(number: Array, kept: tuple[Any, Array]) -> tuple[Any, Any]:
        start = jnp.minimum(number * size, count - size)
        states, bytes_before = (jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), k) for k in kept)
        part: Rows = jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), rows._replace(states=None))
        fresh = start + jnp.arange(size) >= number * size
        fresh = fresh if part.here is None else fresh & part.here
        new, messages, info = _turns(method, model, alike, broadcast, part._replace(states=states))
        up = jnp.broadcast_to(rules.message_bytes(jax.tree.map(lambda m: m[0], messages), info), (size,))
        new, up = _where(fresh, (new, up), (states, bytes_before))
        kept = jax.tree.map(lambda a, b: jax.lax.dynamic_update_slice_in_dim(a, b, start, 0), kept, (new, up))
        traced = jax.tree.map(lambda a: rules.sum_over(a, fresh)[0], (info.loss, info.active))
        return kept, (rules.sum_over(messages, fresh, part.weights), (traced, fresh.sum().astype(jnp.float32)))

    def go(number: Array, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        kept, sums = chunk(number, carry[0])
        return kept, jax.tree.map(jnp.add, carry[1], sums)

    kept = (rows.states, jnp.zeros(count, jnp.int32))
    _, sums = jax.eval_shape(chunk, jnp.zeros((), jnp.int32), kept)
    nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), sums)
    (states, up), (messages, traced) = jax.lax.fori_loop(0, -(-count // size), go, (kept, nothing))
    return states, messages, traced, up


def _where(here: Array, new: Any, old: Any) -> Any:
    """Rows of `new` where the agent is here, else of `old`."""
    return jax.tree.map(lambda n, o: jnp.where(here.reshape((-1,) + (1,) * (n.ndim - 1)), n, o), new, old)
