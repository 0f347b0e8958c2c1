"""The one interface of all methods: what an agent does in a round, and what the server does with the mean message.

The simulator runs `agent` under `vmap` and `scan`; a federation runs it alone on its device. All functions are pure.

    start vector (average of the local models, random, or one agent's) ── probe ──> agents' scalars (optional)
    init(start, probes) -> server state, broadcast
    rounds times:   agent(loss, state, broadcast, data, key) -> state, message, info        on every agent present
                    server(state, mean of the messages)      -> state, broadcast     or their median: see `Combine`
    the meta-model is `broadcast.model` after the last round, or `final(server state)` where the method has it, or
    what the server learns by itself from the last round's messages, `learn(model, start, messages, key)`

A method whose `head` is not 0 shares the body of the model alone (`fewjoule.models.parts`). Its agents' vectors [d]
have the body first, [:b]; the server knows only [b], so `broadcast.model` and the messages are of that length. A new
device has the head of the seed's random start, which costs no bits.

With codecs (`fewjoule.methods.coded`), messages are what the receiver decodes, and `packed` beside them is what the
codec's `to_bytes` puts on the air.
"""

import inspect
import re
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass, replace
from fractions import Fraction
from functools import lru_cache, wraps
from typing import Annotated, Any, NamedTuple, ParamSpec
from weakref import WeakKeyDictionary

import numpy as np
from jax import Array

from fewjoule.errors import LARGEST_COUNT, InputError, check_settings, not_negative, positive
from fewjoule.randomness import key_for
from fewjoule.tasks.samples import AgentData
from fewjoule.training.descent import Loss
from fewjoule.training.store import UnknownOriginError, fingerprint
from fewjoule.training.tuning import ALL_WEIGHTS, Tuning

P = ParamSpec("P")


class Start(NamedTuple):
    """What the server knows before the first round."""

    model: Array  # [d] the start vector, or [b] of it that is shared
    spread: Array  # scalar: largest squared distance of a local model from their average (0 for a random start)
    common: Array | None = None  # the same part of the seed's random start, which both ends can draw without a message


class Broadcast(NamedTuple):
    """What the server sends to every agent; `scalars` are numbers beside the model, such as the radius.

    `shared` is not sent: both ends have it from the seed.
    """

    model: Array  # [d], or [b] of it that is shared
    scalars: Any = ()
    packed: Any = None  # what a codec makes of the model; None where float32 is sent
    size_bytes: Any = None  # of the coded model on the air; None where float32 is sent
    shared: Any = None  # a random key that is the same for the server and all agents; set where an agent is called


def shared_key(seed: int | Array) -> Array:
    """The key that both ends have from the seed: `Broadcast.shared`."""
    return key_for(seed, "questions")


class Everyone(NamedTuple):
    """What `server` and `learn` get with combine="all": every agent's message, and who sent one."""

    messages: Any  # [agents, ...], zeros of those absent
    present: Array  # [agents] float32, 1 or 0


class Upload(NamedTuple):
    """The first upload of one agent's own model through a codec."""

    model: Array  # as the server decodes it
    packed: Any
    size_bytes: Array


class Info(NamedTuple):
    """What the trace keeps of one agent's round; nothing of it is sent."""

    loss: Array  # on the mini-batch, where the agent took its gradient
    model: Array  # [d] the agent's own model at the end of the round
    active: Any = np.float32(0)  # 1 where a projection moved the agent, else 0
    packed: Any = None  # what a codec makes of the message; None where float32 is sent
    size_bytes: Any = None  # of the coded message on the air; None where float32 is sent


Turn = tuple[Any, Any, Info]
"""What an agent's round gives: its state, its message, and `Info` for the trace."""
Agent = Callable[[Loss, Any, Broadcast, AgentData, Array], Turn]


def model_alone(start: Start, probes: Any) -> tuple[Array, Broadcast]:
    """The `init` of a server whose state is the model it broadcasts."""
    return start.model, Broadcast(start.model)


def nothing_kept(local: Array, uploaded: Array | None = None) -> tuple[()]:
    """The `agent_init` of agents without a state."""
    return ()


def own_model_kept(local: Array, uploaded: Array | None = None) -> Array:
    """The `agent_init` of agents that go on from their own model."""
    return local


@dataclass(frozen=True, eq=False)
class Method:
    """A method with its settings. Compiled programs are kept per object; see `factory`, which writes `settings`.

    `start` is "average" (every agent uploads its local model once), "random" (nothing is uploaded) or the position
    of one agent (which uploads its local model). `sends` says what a message is: a "model", which a codec sends as the
    difference from the last broadcast, or a "change" (a gradient, a difference), which it sends as it is. `weighting`
    says what an agent counts in the means over agents: see `Weighting`; `combine` which kind of mean: see `Combine`.
    With "all", which a method sets for itself, the server gets `Everyone`.

    With `asks`, an agent's own model is a function of inputs, not a vector: `agent_init` gets a `Partial` of the
    model's `apply` and its weights. So the agents' models may differ in architecture, from the meta-model too.
    """

    name: str
    rounds: int
    start: str | int
    agent: Agent
    server: Callable[[Any, Any], tuple[Any, Broadcast]]
    init: Callable[[Start, Any], tuple[Any, Broadcast]] = model_alone
    agent_init: Callable[..., Any] = nothing_kept  # (local model, it as uploaded) -> state
    settings: tuple[tuple[str, Any], ...] = ()
    probe: Callable[[Loss, Array, AgentData, Array], Any] | None = None
    head: int = 0  # how many last layers of the model stay with the agent and never travel; see `models.parts`
    tuning: Tuning = ALL_WEIGHTS  # what a new device does with the meta-model
    needs_validation: bool = False
    judged_adapted: bool = False  # a run's loss is that after the agents' inner steps; before them it may rise
    needs_local: bool = False  # although nothing is uploaded before the first round
    asks: bool = False  # the agents' own models for outputs, not for weights
    sends: str = "model"
    weighting: str = "agents"
    combine: str = "mean"
    codecs: tuple[Any, Any, Any] = (None, None, None)
    """Of messages, of the first upload and of broadcasts; None sends float32."""
    upload: Callable[[Array, Array, Array], Upload] | None = None
    """(local model, common start, key) -> the first upload; None uploads float32."""
    final: Callable[[Any], Array] | None = None
    """The meta-model from the last server state, where the last broadcast is not it."""
    personal: Callable[[Any, Broadcast], Array] | None = None
    """(agent's state, broadcast after the last round) -> the agent's own model [d], where it keeps one."""
    rates: Callable[[Broadcast], Array] | None = None
    """(broadcast after the last round) -> learning rates [d] of a new device's fine-tuning, where they are learned."""
    learn: Callable[[Any, Array, Any, Array], Array] | None = None
    """(model, start vector, what `server` got in the last round or None, key) -> the meta-model: arithmetic of the
    server alone, charged to it."""

    @property
    def origin(self) -> str | None:
        """The factory of this package that made it, and the settings; None where somebody else did, or changed it."""
        return _ORIGINS.get(self)

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v!r}' for k, v in self.settings)})"

    def describe(self) -> dict[str, Any]:
        """Name and settings as plain values, enough to build the method again with `fewjoule.method`."""
        plain = {k: asdict(v) if is_dataclass(v) else v for k, v in self.settings}  # type: ignore[arg-type]
        return {"method": self.name, **plain}

    @property
    def sent_in_words(self) -> str:
        """What the agents send in a whole run, for people."""
        if self.asks:
            settings = dict(self.settings)
            questions = settings["questions"]
            number = settings["number"] if isinstance(questions, str) else len(questions)
            return f"each agent sends {number} answers of its own model, once"
        if isinstance(self.start, int):
            return "one agent sends its weights, once"
        opening = int(self.start != "random")
        if not self.rounds + opening:
            return "no agent sends anything"
        part = "the shared part of its weights" if self.head else "its weights"
        packed = ", compressed" if any(self.codecs[:2]) else ""
        if self.sends == "model" or not self.rounds:
            return f"each agent sends {part} {_times(self.rounds + opening)}{packed}"
        updates = "one update" if self.rounds == 1 else f"{self.rounds} updates"
        before = f"{part} once, then {updates}" if opening else f"{updates} to {part}"
        return f"each agent sends {before}{packed}"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


_ORIGINS: WeakKeyDictionary[Method, str] = WeakKeyDictionary()
"""Not a field, which `replace` would copy to another method."""


def made_by(maker: Callable[..., Any], settings: tuple[Any, ...], method: Method) -> Method:
    """The method, with its `origin` if the maker is this package's."""
    if maker.__module__.startswith("fewjoule."):
        with suppress(UnknownOriginError):
            _ORIGINS[method] = f"{maker.__module__}.{maker.__qualname__} {fingerprint(settings)}"
    return method


def factory(build: Callable[P, Method]) -> Callable[P, Method]:
    """Make a function of settings a factory of methods.

    It checks the settings by their types (`rounds: Count`), writes them into the method, and gives one object for equal
    settings, so that programs compiled for it are found again. A method that is built without it is an object of its
    own each time, and never meets another's programs.
    """
    signature = inspect.signature(build, eval_str=True)
    make: Callable[..., Method] = build
    checks = {name: getattr(p.annotation, "__metadata__", ()) for name, p in signature.parameters.items()}
    reals = [name for name, own in checks.items() if positive in own or not_negative in own]

    def make_with(**settings: Any) -> Method:
        built = make(**settings)
        weighting, combine = settings.get("weighting", "agents"), settings.get("combine", built.combine)
        if weighting == "samples" and share_cut(combine):
            raise InputError(
                f"combine={combine!r} counts all agents alike, since an agent could claim any number of samples; set "
                "weighting='agents', or combine='mean'."
            )
        method = replace(built, settings=tuple(settings.items()), weighting=weighting, combine=combine)
        return made_by(build, method.settings, method)

    kept = lru_cache(maxsize=None, typed=True)(make_with)

    @wraps(build)
    def checked(*args: P.args, **kwargs: P.kwargs) -> Method:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        settings = {name: _plain(value) for name, value in bound.arguments.items()}
        check_settings(signature, settings)
        # learning_rate=2**31, out of a file, is a real number although no integer of JAX
        settings |= {name: float(settings[name]) for name in reals if settings[name] > LARGEST_COUNT}
        hashable = all(isinstance(value, Hashable) for value in settings.values())
        return kept(**settings) if hashable else make_with(**settings)  # the function refuses it with its own words

    return checked


def _plain(value: Any) -> Any:
    """A setting in hashable form: NumPy's values as Python's, lists as tuples."""
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return tuple(_plain(v) for v in value) if isinstance(value, list | tuple) else value


def _check_start(name: str, value: Any) -> None:
    if value not in ("average", "random"):
        raise InputError(f"{name} must be 'average' or 'random', got {value!r}.")


def _check_weighting(name: str, value: Any) -> None:
    if value not in ("agents", "samples"):
        raise InputError(f"{name} must be 'agents' or 'samples', got {value!r}.")


def share_cut(combine: str) -> Fraction:
    """The share of the agents that is left out at each end, weight by weight: 0 for a mean or all, 1/2 for a median."""
    return Fraction({"mean": "0", "all": "0", "median": "1/2"}.get(combine, combine.removeprefix("trimmed:")))


def _check_combine(name: str, value: Any) -> None:
    if value in ("mean", "median"):
        return
    if not isinstance(value, str) or not re.fullmatch(r"trimmed:0?\.?\d{1,9}", value) or not share_cut(value) < 1 / 2:
        raise InputError(
            f"{name} must be 'mean', 'median' or 'trimmed:SHARE' with a share from 0 to below 0.5, such as "
            f"'trimmed:0.1', got {value!r}."
        )


Combine = Annotated[str, _check_combine]
"""What the server takes of the agents' messages, weight by weight: their "mean", their "median", or with "trimmed:0.1"
the mean without the lowest and the highest tenth. The last two hold where some agents send anything at all."""
Weighting = Annotated[str, _check_weighting]
"""What an agent counts in a mean: all "agents" alike, as in Elgabli et al., or by its "samples", McMahan's n_k / n."""
StartAt = Annotated[str, _check_start]
"""Where the server begins: at the "average" of the agents' own models, or at the common "random" start."""
