"""How agents are gone over: all at once, one after another, or in groups that bound the memory."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fewjoule.energy.counts import count_once
from fewjoule.errors import LARGEST_COUNT
from fewjoule.methods.method import Method
from fewjoule.models.model import Model
from fewjoule.simulation.rules import NUMBER_BYTES, loss_of, told
from fewjoule.simulation.work import shapes, turn_flops
from fewjoule.tasks.samples import AgentData
from fewjoule.training.mesh import busy_devices, in_groups, over_devices
from fewjoule.training.store import remembered

TOGETHER_BYTES = 20 << 20
"""What agents that are computed at once may read and write, as `count_once` adds it up (several times what is in memory
at a time). Beyond it they no longer fit in a core's cache: 100 agents with mini-batches of 100 digits were 1.3 times
faster in groups of 10 than of 25, or than all at once. Groups of one were slower (0.7 times for
sinusoids of 20 samples, whose best groups have 20 to 200)."""
KEPT_BYTES = 1 << 30
"""Of messages and models of a round. Beyond it groups keep sums alone, and the trace has no spread."""


class How(NamedTuple):
    """How agents are gone over. All ways give the same numbers but for the order of sums."""

    alone: bool = False  # each compiled as it would be alone, one after another: the bits of a federation
    apart: bool = False  # the agents' models differ in shape: each has a program of its own
    group: int | None = None  # agents computed at once; None for all
    sums: bool = False  # groups keep sums of their messages, so that memory does not grow with the agents
    devices: int = 1  # that the agents of a round are split over

    def each(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function of every row of its arrays, stacked."""
        if self.alone or self.group == 1:
            return lambda *arrays: jax.lax.map(lambda row: function(*row), arrays)
        at_once = jax.vmap(function)
        of_some = at_once if self.group is None else partial(in_groups, at_once, self.group)

        def split(*arrays: Any) -> Any:
            rows = len(jax.tree.leaves(arrays)[0])
            return over_devices(of_some, rows, [True] * len(arrays), self.devices)(*arrays)

        return of_some if self.devices == 1 else split

    def splits(self, method: Method) -> bool:
        """Whether every device adds up the messages of its own agents, so that devices meet once in a round; where the
        server needs each message they are gathered instead."""
        return self.devices > 1 and method.combine == "mean" and method.learn is None

    def by_itself(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function; with `alone`, rounding as it does when it is compiled alone: the body of a loop is never merged
        with what stands around it. A loop of one turn would be taken apart, so it has two."""
        if not self.alone:
            return function

        def first_of_two(*arrays: Any) -> Any:
            twice = jax.tree.map(lambda a: jnp.stack([a, a]), arrays)
            return jax.tree.map(lambda a: a[0], self.each(function)(*twice))

        return first_of_two


def how_to_go(method: Method, model: Model, data: AgentData, rows: int, seeds: int, keeps_models: bool) -> How:
    """The way for `rows` agents in a round, with data of these shapes, and so many seeds at once.

    `keeps_models` says that every agent's model is wanted after a round. So do methods that need all messages (a
    median, a trimmed mean, all of them): theirs are kept, and memory grows with agents times weights.
    """
    most, devices = at_once(method, model, data, seeds), 1
    if seeds == 1:
        busy = busy_devices(round_flops(method, model, data, rows))
        devices = min(range(1, busy + 1), key=lambda n: -(-rows // n))
    if rows <= most:
        return How(devices=devices)
    sums = method.combine == "mean" and method.learn is None and not keeps_models
    kept = 2 * NUMBER_BYTES * model.size * rows * seeds
    sums = sums and kept > KEPT_BYTES
    return How(group=equal_groups(rows, most), sums=sums, devices=1 if sums else devices)


def round_flops(method: Method, model: Model, data: AgentData, rows: int) -> int:
    """Of all agents in a round, with what they do before the first."""
    return rows * sum(turn_flops(method, model, data))


def equal_groups(rows: int, most: int) -> int:
    """The length of the fewest groups of at most `most` rows, all equally long, so that few rows are fillers."""
    return -(-rows // -(-rows // most))


@remembered
def at_once(method: Method, model: Model, data: AgentData, seeds: int) -> int:
    """How many agents with data of these shapes are computed at once, for so many seeds."""
    if not method.rounds:
        return LARGEST_COUNT
    s = shapes(method, model, data)

    def turn(state: Any, broadcast: Any, data: AgentData, key: Any) -> Any:
        return method.agent(loss_of(method, model), state, told(broadcast, 0), data, key)

    return max(1, TOGETHER_BYTES // (count_once(turn, s.agent_state, s.broadcast, data, s.key).bytes * seeds))
