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

import inspect
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import lru_cache, wraps
from typing import Any, NamedTuple, ParamSpec

import numpy as np
from jax import Array

from fewjoule.errors import InputError
from fewjoule.errors import check_batch as check_batch
from fewjoule.errors import positive as positive
from fewjoule.errors import positive_int as positive_int
from fewjoule.tasks.samples import AgentData
from fewjoule.training.descent import Loss as Loss

P = ParamSpec("P")


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
    size_bytes: Any = None  # of the coded model on the air; None where float32 is sent


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
    size_bytes: Any = None  # of the coded message on the air; None where float32 is sent


def _stateless(local: Array, uploaded: Array | None = None) -> Any:
    return ()


@dataclass(frozen=True, eq=False)
class Method:
    """A method with its settings. Compiled programs are kept per object; see `one_per_settings`.

    `start` is "average" (every agent uploads its local model once), "random" (nothing is uploaded) or the position
    of one agent (which uploads its local model). `sends` says what a message is: a "model", which a codec sends as the
    difference from the last broadcast, or a "change" (a gradient, a difference), which it sends as it is.
    """

    name: str
    rounds: int
    settings: tuple[tuple[str, Any], ...]
    start: str | int
    init: Callable[[Start, Any], tuple[Any, Broadcast]]
    agent: Callable[[Loss, Any, Broadcast, AgentData, Array], tuple[Any, Any, Info]]
    server: Callable[[Any, Any], tuple[Any, Broadcast]]
    agent_init: Callable[..., Any] = _stateless  # (local model, it as uploaded) -> state
    probe: Callable[[Loss, Array, AgentData, Array], Any] | None = None
    needs_validation: bool = False
    needs_local: bool = False  # although nothing is uploaded before the first round
    sends: str = "model"
    codecs: tuple[Any, Any, Any] = (None, None, None)
    """Of messages, of the first upload and of broadcasts; None sends float32."""
    upload: Callable[[Array, Array, Array], Upload] | None = None
    """(local model, common start, key) -> the first upload; None uploads float32."""
    final: Callable[[Any], Array] | None = None
    """The meta-model from the last server state, where the last broadcast is not it."""

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in self.settings)})"

    def describe(self) -> dict[str, Any]:
        """Name and settings as plain values, enough to build the method again with `fewjoule.method`."""
        plain = {k: asdict(v) if is_dataclass(v) else v for k, v in self.settings}  # type: ignore[arg-type]
        return {"method": self.name, **plain}


def one_per_settings(factory: Callable[P, Method]) -> Callable[P, Method]:
    """Make a factory give one object for equal settings, so that programs compiled for it are found again.

    A method that is built without it is an object of its own each time, and never meets another's programs.
    """
    signature = inspect.signature(factory)
    make: Callable[..., Method] = factory
    kept = lru_cache(maxsize=None, typed=True)(make)

    @wraps(factory)
    def build(*args: P.args, **kwargs: P.kwargs) -> Method:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        settings = {name: _plain(value) for name, value in bound.arguments.items()}
        hashable = all(isinstance(value, Hashable) for value in settings.values())
        return kept(**settings) if hashable else make(**settings)  # the factory refuses it with its own words

    return build


def _plain(value: Any) -> Any:
    """A setting in hashable form: NumPy's values as Python's, lists as tuples."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return tuple(_plain(v) for v in value) if isinstance(value, list | tuple) else value


def settings_of(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """A factory's arguments in hashable form."""
    return tuple((name, _plain(value)) for name, value in values.items())


def check_start(start: Any) -> None:
    if start not in ("average", "random"):
        raise InputError(f"start must be 'average' or 'random', got {start!r}.")
