"""One round of those who take part, from the broadcast that opens it to the next one.

The agents of a round are rows: all agents, or a cohort gathered from them, with fillers at the end where cohorts differ
in size. The rows are computed at once, one after another, or in groups that bound the memory.
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
from fewjoule.simulation.how import How
from fewjoule.simulation.run import Trace
from fewjoule.tasks.samples import AgentData
from fewjoule.training.mesh import split_rows, total


class Rows(NamedTuple):
    """Those who take part in a round: arrays [rows, ...]."""

    states: Any  # a tuple of one state per agent where they are `apart`
    data: AgentData
    keys: Array
    weights: Array | None  # what each counts in a mean; None where all count alike
    here: Array | None  # bool, False for those who are not there; None where all are
    holds: Array | None = None  # bool, who holds the broadcast before; None where all do


class Round(NamedTuple):
    """What a round gives."""

    server: Any
    broadcast: Broadcast
    states: Any
    said: Any  # what the server got of the messages, where the method learns from it
    models: Array | None  # [rows, d], the agents' own; None where groups keep sums
    trace: Trace
    size_bytes: tuple[Array, Array]  # [rows] sent and received


class Sums(NamedTuple):
    """Of those who were there: all that the server needs of them where it takes a mean."""

    messages: Any  # each times its weight
    weight: Array
    loss: Array
    active: Array
    present: Array


def one_round(
    method: Method, model: Model, how: How, seed: Array, first: Any, server: Any, broadcast: Broadcast, rows: Rows,
    everybody: Callable[[Any], tuple[Any, Any]] | None = None,
) -> Round:  # fmt: skip
    """A round; `first` says whether it is the first. `everybody` makes messages of all agents, and who sent one, out of
    the rows', for methods with combine="all"."""
    heard = rules.told(broadcast, seed)
    if how.sums:
        states, up, sums = _in_groups(method, model, how, heard, rows)
        after, trace = concluded(method, server, broadcast, sums)
        said = models = None
    elif how.splits(method):
        states, up, models, spread, sums = _split(method, model, how, heard, rows)
        after, trace = concluded(method, server, broadcast, sums, spread)
        said = None
    else:
        states, messages, info = _turns(method, model, how, heard, rows)
        there = jnp.ones(len(rows.keys)) if rows.here is None else rows.here.astype(jnp.float32)
        sent, senders = (messages, rows.here) if everybody is None else everybody(messages)
        after = how.by_itself(partial(rules.server_step, method))(server, sent, rows.weights, senders)
        said = None if method.learn is None else rules.combine(sent, rows.weights, senders, method.combine)
        over_present = partial(rules.mean_over, here=rows.here)
        up, models = rules.message_bytes(jax.tree.map(lambda m: m[0], messages), info), info.model
        spread = (jnp.linalg.norm(models - over_present(models), axis=-1) * there).max()
        states = states if how.apart or rows.here is None else where_here(rows.here, states, rows.states)
        traced = over_present(info.loss), spread, over_present(info.active), there.sum()
        after, trace = _unless_nobody(server, broadcast, after, rows.here is not None, *traced)
    here = jnp.ones(len(rows.keys), jnp.int32) if rows.here is None else rows.here.astype(jnp.int32)
    down = rules.broadcast_bytes(method, broadcast, first, True if rows.holds is None else rows.holds)
    return Round(*after, states, said, models, trace, (up * here, down * here))


def summed(method: Method, model: Model, how: How, broadcast: Broadcast, rows: Rows) -> tuple[Any, Array, Sums]:
    """States, bytes [rows] and sums of the rows' part of a round, from the broadcast as they use it."""
    states, messages, info = _turns(method, model, how, broadcast, rows)
    up = jnp.broadcast_to(rules.message_bytes(jax.tree.map(lambda m: m[0], messages), info), rows.keys.shape)
    (loss, active), count = rules.sum_over((info.loss, info.active), rows.here)
    states = states if rows.here is None else where_here(rows.here, states, rows.states)
    return states, up, Sums(*rules.sum_over(messages, rows.here, rows.weights), loss, active, count)


def concluded(
    method: Method, server: Any, broadcast: Broadcast, sums: Sums, spread: Any = jnp.nan
) -> tuple[tuple[Any, Broadcast], Trace]:
    """The server's part of a round from sums alone, and the trace; its spread would need every agent's model."""
    after = method.server(server, jax.tree.map(lambda total: total / jnp.maximum(sums.weight, 1), sums.messages))
    loss, active = (total / jnp.maximum(sums.present, 1) for total in (sums.loss, sums.active))
    return _unless_nobody(server, broadcast, after, True, loss, jnp.asarray(spread), active, sums.present)


def _unless_nobody(
    server: Any, broadcast: Broadcast, after: Any, may_be_empty: bool, loss: Array, spread: Array, active: Array,
    count: Array,
) -> tuple[tuple[Any, Broadcast], Trace]:  # fmt: skip
    """Server and broadcast after a round, unchanged where nobody was there, and the round's trace."""
    if may_be_empty:
        after = jax.tree.map(lambda new, old: jnp.where(count > 0, new, old), after, (server, broadcast))
    radius = broadcast.scalars if isinstance(broadcast.scalars, jax.Array) else jnp.full((), jnp.nan)
    nobody, moved = jnp.where(count > 0, 0, jnp.nan), jnp.linalg.norm(after[1].model - broadcast.model)
    return after, Trace(loss + nobody, spread + nobody, moved, radius, active + nobody, count)


def _turns(method: Method, model: Model, how: How, broadcast: Broadcast, rows: Rows) -> Any:
    """Every row's state, message and info."""

    def turn(state: Any, data: AgentData, key: Array) -> Any:
        return method.agent(rules.loss_of(method, model), state, broadcast, data, key)

    if not how.apart:
        return how.each(turn)(rows.states, rows.data, rows.keys)
    own_data = [jax.tree.map(lambda a, i=i: a[i], rows.data) for i in range(len(rows.states))]
    all_turns = [turn(*own) for own in zip(rows.states, own_data, rows.keys, strict=True)]
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *[rest for _, *rest in all_turns])
    return (tuple(state for state, *_ in all_turns), *stacked)


def _split(
    method: Method, model: Model, how: How, broadcast: Broadcast, rows: Rows
) -> tuple[Any, Array, Array, Array, Sums]:
    """States, bytes [rows], models [rows, d], spread [devices] and sums; devices meet once. The spread is the largest
    of the rows of every device, so that the largest of all can wait until the last round is over."""

    def part(rows: Rows, broadcast: Broadcast) -> tuple[Any, Array, Array, Array, Sums]:
        states, messages, info = _turns(method, model, how._replace(devices=1), broadcast, rows)
        up = jnp.broadcast_to(rules.message_bytes(jax.tree.map(lambda m: m[0], messages), info), rows.keys.shape)
        (loss, active, models), count = rules.sum_over((info.loss, info.active, info.model), rows.here)
        sums, models = total((Sums(*rules.sum_over(messages, rows.here, rows.weights), loss, active, count), models))
        there = 1 if rows.here is None else rows.here
        apart = jnp.linalg.norm(info.model - models / jnp.maximum(sums.present, 1), axis=-1) * there
        states = states if rows.here is None else where_here(rows.here, states, rows.states)
        return states, up, info.model, apart.max(keepdims=True), sums

    parts: tuple[Any, Array, Array, Array, Sums] = split_rows(part, how.devices, (True, True, True, True, False))(
        rows, broadcast
    )
    return parts


def _in_groups(method: Method, model: Model, how: How, broadcast: Broadcast, rows: Rows) -> tuple[Any, Array, Sums]:
    """States, bytes [rows] and sums of all rows, group by group.

    Groups are equally long. The last one may begin among the rows of the one before it, which then count as absent.
    """
    count, size = len(rows.keys), min(how.group or 1, len(rows.keys))

    def cut(tree: Any, start: Array) -> Any:
        return jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), tree)

    def group(number: Array, kept: Any) -> tuple[Any, Sums]:
        start = jnp.minimum(number * size, count - size)
        (states, before), part = cut(kept, start), cut(rows._replace(states=None), start)
        fresh = start + jnp.arange(size) >= number * size
        part = part._replace(states=states, here=fresh if part.here is None else fresh & part.here)
        states, up, sums = summed(method, model, how._replace(group=None), broadcast, part)
        new = (states, jnp.where(part.here, up, before))
        return jax.tree.map(lambda a, b: jax.lax.dynamic_update_slice_in_dim(a, b, start, 0), kept, new), sums

    def go(number: Array, carry: tuple[Any, Sums]) -> tuple[Any, Sums]:
        kept, sums = group(number, carry[0])
        return kept, jax.tree.map(jnp.add, carry[1], sums)

    kept = (rows.states, jnp.zeros(count, jnp.int32))
    nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(group, jnp.zeros((), int), kept)[1])
    (states, up), sums = jax.lax.fori_loop(0, -(-count // size), go, (kept, nothing))
    return states, up, sums


def where_here(here: Array, new: Any, old: Any) -> Any:
    """Rows of `new` where the agent is here, else of `old`."""
    return jax.tree.map(lambda n, o: jnp.where(here.reshape((-1,) + (1,) * (n.ndim - 1)), n, o), new, old)
