"""What a run agreed on, and the exact form of every message that follows from it.

The operator writes a `Spec`; server and agents build the same method and model from it with `contract`. The 16 bytes
of `Spec.run` are a hash of all of it, so a message or a state file of a run that differs in anything is a stranger.
"""

import dataclasses
import hashlib
import json
import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule._version import __version__
from fewjoule.codecs import Codec
from fewjoule.errors import InputError, positive, unknown
from fewjoule.federation import wire
from fewjoule.federation.wire import Form
from fewjoule.methods import Method, method
from fewjoule.methods.method import Broadcast, Start
from fewjoule.models.model import Model
from fewjoule.models.nets import model_from_spec
from fewjoule.randomness import agent_id
from fewjoule.tasks.samples import AgentData, Samples

POLICIES = ("wait", "skip", "stop")
LARGEST_TEXT = 1 << 20
LARGEST_WEIGHTS = 1 << 28


@dataclass(frozen=True)
class Spec:
    """One method with one seed over these agents.

    `policy` says what happens when an agent is absent or its message is refused: `wait` for it, `skip` it while at
    least `quorum` answered, or `stop`. `deadline_seconds` is per round. A message is refused where the root mean
    square of its values is above `largest_rms`. `nonce` tells two runs with equal settings apart.
    """

    method: dict[str, Any]
    model: dict[str, str]
    agents: tuple[str, ...]
    seed: int = 0
    policy: str = "wait"
    deadline_seconds: float = 60.0
    quorum: int = 1
    largest_rms: float = 1e4
    local: dict[str, Any] = field(default_factory=dict)
    nonce: str = ""
    fewjoule: str = __version__
    wire: int = wire.VERSION

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise unknown("policy", str(self.policy), POLICIES)
        positive("deadline_seconds", self.deadline_seconds)
        positive("largest_rms", self.largest_rms)
        if not self.agents or len(set(self.agents)) != len(self.agents):
            raise InputError(f"a run needs agents with different names, got {list(self.agents)}.")
        if len({agent_id(name) for name in self.agents}) != len(self.agents):
            raise InputError("two agents' names have the same hash; rename one of them.")
        if isinstance(self.quorum, bool) or not isinstance(self.quorum, int):
            raise InputError(f"quorum must be a whole number, got {self.quorum!r}.")
        if not 1 <= self.quorum <= len(self.agents):
            raise InputError(f"quorum must be from 1 to the number of agents, {len(self.agents)}, got {self.quorum}.")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise InputError(f"seed must be a whole number from 0 to 2**32 - 1, got {self.seed!r}.")

    def text(self) -> str:
        """As JSON with sorted keys: equal specs give equal text."""
        return self._text

    @cached_property
    def _text(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True, default=_plain)

    @cached_property
    def run(self) -> bytes:
        return hashlib.blake2b(self.text().encode(), digest_size=16).digest()


def read_spec(text: str) -> Spec:
    """The spec in this text, as an agent or the server got it; `InputError` with the reason where it is none."""
    if not isinstance(text, str) or len(text) > LARGEST_TEXT:
        raise InputError("a spec must be a text of at most 1 MiB.")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"a spec must be JSON: {error}.") from None
    names = {f.name for f in dataclasses.fields(Spec)}
    if not isinstance(values, dict) or set(values) != names:
        raise InputError(f"a spec must have exactly the keys {', '.join(sorted(names))}.")
    for key, kind in (("method", dict), ("model", dict), ("local", dict), ("agents", list), ("policy", str)):
        if not isinstance(values[key], kind):
            raise InputError(f"{key} of a spec must be a {kind.__name__}, got {type(values[key]).__name__}.")
    if not all(isinstance(name, str) for name in values["agents"]):
        raise InputError("the agents of a spec must be names.")
    if (values["fewjoule"], values["wire"]) != (__version__, wire.VERSION):
        raise InputError(
            f"the run uses fewjoule {values['fewjoule']} with wire version {values['wire']}, here is {__version__} "
            f"with {wire.VERSION}; install one release on all sites."
        )
    return Spec(**{**values, "agents": tuple(values["agents"])})


class Contract(NamedTuple):
    """Method and model of a spec, with templates (shapes and types only) of everything that crosses or is stored."""

    spec: Spec
    method: Method
    model: Model
    server_state: Any
    broadcast: Any
    agent_state: Any
    message: Any
    probe: Any
    plan: tuple[tuple[int, int], ...]  # (kind, round) of every exchange, in order

    @property
    def codec(self) -> Codec | None:
        """Of the messages in a round."""
        codec: Codec | None = self.method.codecs[0]
        return codec

    @property
    def first_codec(self) -> Codec | None:
        """Of the upload before the first round."""
        codec: Codec | None = self.method.codecs[1]
        return codec

    def request_forms(self, kind: int) -> tuple[Form, ...]:
        """The arrays that the server sends."""
        vector = Form("float32", (self.model.size,))
        if kind == wire.ROUND:
            return forms(sent(self.broadcast))
        return {wire.UPLOAD: (), wire.PROBE: (vector,), wire.CLOSE: (vector, vector)}[kind]

    def reply_forms(self, kind: int) -> tuple[Form, ...]:
        """The arrays that an agent sends; bytes of a codec have a bound on their length only."""
        if kind == wire.ROUND and self.codec is not None:
            return tuple(_coded(self.codec, math.prod(form.shape)) for form in forms(self.message))
        if kind == wire.ROUND:
            return forms(self.message)
        if kind == wire.UPLOAD and self.first_codec is not None:
            return (_coded(self.first_codec, self.model.size),)
        if kind == wire.PROBE:
            return forms(self.probe)
        vector = Form("float32", (self.model.size,))
        return {wire.AGREE: (), wire.UPLOAD: (vector,), wire.CLOSE: (Form("float32", (2,)),)}[kind]


def contract(spec: Spec) -> Contract:
    """Build what the spec names; the method's and the model's own checks speak where it cannot be."""
    settings = {k: v for k, v in spec.method.items() if k != "method"}
    try:
        chosen = method(str(spec.method.get("method")), **settings)
        model = model_from_spec(**spec.model)
    except TypeError as error:
        raise InputError(f"the run's method or model has a setting of a wrong type: {error}.") from None
    if model.size > LARGEST_WEIGHTS:
        raise InputError(f"a model in a federation has at most {LARGEST_WEIGHTS} weights, got {model.size}.")
    if isinstance(chosen.start, int) and chosen.start >= len(spec.agents):
        raise InputError(f"agent must be below the number of agents, {len(spec.agents)}, got {chosen.start}.")
    plan = [(wire.UPLOAD, 0)] if chosen.start != "random" else []
    plan += [(wire.PROBE, 0)] if chosen.probe is not None else []
    plan += [(wire.ROUND, r) for r in range(chosen.rounds)] + [(wire.CLOSE, chosen.rounds)]
    return Contract(spec, chosen, model, *_templates(chosen, model, len(spec.agents)), tuple(plan))


@lru_cache
def _templates(chosen: Method, model: Model, agents: int) -> tuple[Any, Any, Any, Any, Any]:
    """Shapes and types of the server's state, a broadcast, an agent's state, a message and a probe."""
    vector = _like((model.size,), jnp.float32)
    start = Start(vector, _like((), jnp.float32), vector)
    data = _any_data(model)
    key = jax.eval_shape(lambda: jax.random.key(0))
    probe = stacked = None
    if chosen.probe is not None:
        probe = jax.eval_shape(lambda v, d, k: chosen.probe(model.loss, v, d, k), vector, data, key)  # type: ignore[misc]
        stacked = jax.tree.map(lambda p: _like((agents, *p.shape), p.dtype), probe)
    server_state, broadcast = jax.eval_shape(chosen.init, start, stacked)
    agent_state = jax.eval_shape(chosen.agent_init, vector, vector)
    _, message, _ = jax.eval_shape(
        lambda s, b, d, k: chosen.agent(model.loss, s, sent(b), d, k), agent_state, broadcast, data, key
    )
    return server_state, broadcast, agent_state, message, probe


def _coded(codec: Codec, size: int) -> Form:
    """Bytes of a coded vector."""
    return Form("uint8", (-codec.most_bytes(size),))


def forms(tree: Any) -> tuple[Form, ...]:
    return wire.forms_of(jax.tree.leaves(tree))


def leaves(tree: Any) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(leaf) for leaf in jax.tree.leaves(tree))


def rebuild(template: Any, arrays: Any) -> Any:
    """The pytree of `template` with these arrays as its leaves."""
    return jax.tree.unflatten(jax.tree.structure(template), [np.asarray(a) for a in arrays])


def sent(broadcast: Broadcast) -> Broadcast:
    """What agents get of a broadcast: the model as they decode it and the scalars."""
    return Broadcast(broadcast.model, broadcast.scalars)


def received(contract: Contract, arrays: Any) -> Broadcast:
    """The broadcast from the arrays of a round's request."""
    tree: Broadcast = rebuild(sent(contract.broadcast), arrays)
    return tree


def _any_data(model: Model) -> AgentData:
    """Samples of the right shape for the model; messages do not depend on how many there are."""
    kind, _, rest = model.spec.partition(":")
    first = rest.split("-")[0]
    features = int(first) if kind == "mlp" else math.prod(int(n) for n in first.split("x"))
    x = _like((2, features), jnp.float32)
    out = jax.eval_shape(model.apply, _like((model.size,), jnp.float32), x)
    y = _like((2,), jnp.int32) if model.loss_name == "cross_entropy" else out
    samples = Samples(x, y, _like((2,), jnp.float32))
    return AgentData(samples, samples)


def _like(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, np.generic | np.ndarray | Array):
        return np.asarray(value).tolist()
    raise InputError(f"a run's settings must be plain values, got {type(value).__name__}.")
