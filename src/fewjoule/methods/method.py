"""The one interface of all methods: what an agent does in a round, and what the server does with the mean message.

The simulator runs `agent` under `vmap` and `scan`; a federation runs it alone on its device. All functions are pure.

    start vector (average of the local models, random, or one agent's) ── probe ──> agents' scalars (optional)
    init(start, probes) -> server state, broadcast
    rounds times:   agent(loss, state, broadcast, data, key) -> state, message, info        on every agent present
                    server(state, mean of the messages)      -> state, broadcast
    the meta-model is `broadcast.model` after the last round, or `final(server state)` where the method has it

With codecs (`fewjoule.methods.coded`), messages are what the receiver decodes, and `packed` beside them is what the
codec's `to_bytes` puts on the air.
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
    common: Array | None = None  # [d] the seed's random start, which both ends can draw without a message


class Broadcast(NamedTuple):
    """What the server sends to every agent; `scalars` are a few numbers beside the model, such as the radius."""

    model: Array  # [d]
    scalars: Any = ()
    packed: Any = None  # what a codec makes of the model; None where float32 is sent
    size_bytes: Array | None = None  # of the coded model on the air; None where float32 is sent


class Upload(NamedTuple):
    """The first upload of one agent's own model through a codec."""

    model: Array  # [d] as the server decodes it
    packed: Any
    size_bytes: Array


class Info(NamedTuple):
    """What the trace keeps of one agent's round; nothing of it is sent."""

    loss: Array  # on the mini-batch, where the agent took its gradient
    model: Array  # [d] the agent's own model at the end of the round
    active: Array  # 1 where a projection moved the agent, else 0
    packed: Any = None  # what a codec makes of the message; None where float32 is sent
    size_bytes: Array | None = None  # of the coded message on the air; None where float32 is sent


def _stateless(local: Array, uploaded: Array | None = None) -> Any:
    return ()


@dataclass(frozen=True)
class Method:
    """A method with its settings. Two methods with equal name and settings are equal and share compiled programs.

    `start` is "average" (every agent uploads its local model once), "random" (nothing is uploaded) or the position
    of one agent (which uploads its local model). `sends` says what a message is: a "model", which a codec sends as the
    difference from the last broadcast, or a "change" (a gradient, a difference), which it sends as it is.
    """

    name: str
    rounds: int
    settings: tuple[tuple[str, Any], ...]
    start: str | int
    init: Callable[[Start, Any], tuple[Any, Broadcast]] = field(compare=False)
    agent: Callable[[Loss, Any, Broadcast, AgentData, Array], tuple[Any, Any, Info]] = field(compare=False)
    server: Callable[[Any, Any], tuple[Any, Broadcast]] = field(compare=False)
    agent_init: Callable[..., Any] = field(compare=False, default=_stateless)  # (local model, it as uploaded) -> state
    probe: Callable[[Loss, Array, AgentData, Array], Any] | None = field(compare=False, default=None)
    needs_validation: bool = field(compare=False, default=False)
    needs_local: bool = field(compare=False, default=False)  # although nothing is uploaded before the first round
    sends: str = field(compare=False, default="model")
    down_coded: bool = field(compare=False, default=False)  # broadcasts are differences from the one before
    upload: Callable[[Array, Array, Array], Upload] | None = field(compare=False, default=None)
    """(local model, common start, key) -> the first upload; None uploads float32."""
    final: Callable[[Any], Array] | None = field(compare=False, default=None)
    """The meta-model from the last server state, where the last broadcast is not it."""

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
