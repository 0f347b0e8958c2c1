"""The one interface of all methods: what an agent does in a round, and what the server does with the mean message.

The simulator runs `agent` under `vmap` and `scan`; a federation runs it alone on its device. All functions are pure.

    start vector (average of the local models, random, or one agent's) ── probe ──> agents' scalars (optional)
    init(start, probes) -> server state, broadcast
    rounds times:   agent(loss, state, broadcast, data, key) -> state, message, info        on every agent present
                    server(state, mean of the messages)      -> state, broadcast
    the meta-model is `broadcast.model` after the last round
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jax import Array

from fewjoule.errors import InputError
from fewjoule.tasks.samples import AgentData, Samples

Loss = Callable[[Array, Samples], Array]
"""Mean loss of a flat vector of weights on samples."""


class Start(NamedTuple):
    """What the server knows before the first round."""

    model: Array  # [d] the start vector
    spread: Array  # scalar: largest squared distance of a local model from their average (0 for a random start)


class Broadcast(NamedTuple):
    """What the server sends to every agent; `scalars` are a few numbers beside the model, such as the radius."""

    model: Array  # [d]
    scalars: Any = ()


class Info(NamedTuple):
    """What the trace keeps of one agent's round; nothing of it is sent."""

    loss: Array  # on the mini-batch, where the agent took its gradient
    model: Array  # [d] the agent's own model at the end of the round
    active: Array  # 1 where a projection moved the agent, else 0


def _stateless(local: Array) -> Any:
    return ()


@dataclass(frozen=True)
class Method:
    """A method with its settings. Two methods with equal name and settings are equal and share compiled programs.

    `start` is "average" (every agent uploads its local model once), "random" (nothing is uploaded) or the position
    of one agent (which uploads its local model).
    """

    name: str
    rounds: int
    settings: tuple[tuple[str, Any], ...]
    start: str | int
    init: Callable[[Start, Any], tuple[Any, Broadcast]] = field(compare=False)
    agent: Callable[[Loss, Any, Broadcast, AgentData, Array], tuple[Any, Any, Info]] = field(compare=False)
    server: Callable[[Any, Any], tuple[Any, Broadcast]] = field(compare=False)
    agent_init: Callable[[Array], Any] = field(compare=False, default=_stateless)
    probe: Callable[[Loss, Array, AgentData, Array], Any] | None = field(compare=False, default=None)
    needs_validation: bool = field(compare=False, default=False)

    def describe(self) -> dict[str, Any]:
        """Name and settings as plain values, enough to build the method again with `fewjoule.method`."""
        return {"method": self.name, **dict(self.settings)}


def settings_of(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """A factory's arguments in hashable form, lists as tuples."""
    return tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in values.items())


def positive_int(name: str, value: Any, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    if value < least:
        raise InputError(f"{name} must be at least {least}, got {value}.")


def positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0 or value == float("inf"):
        raise InputError(f"{name} must be a finite number above 0, got {value!r}.")


def check_batch(batch: Any) -> None:
    if batch is not None:
        positive_int("batch", batch)


def check_start(start: Any) -> None:
    if start not in ("average", "random"):
        raise InputError(f"start must be 'average' or 'random', got {start!r}.")
