"""What a run agreed on, and the exact form of every message that follows from it.

The operator writes a `Spec`; server and agents build the same method and model from it with `contract`. The 16 bytes
of `Spec.run` are a hash of all of it, so a message or a state file of a run that differs in anything is a stranger.
"""

import dataclasses
import hashlib
import itertools
import json
import secrets
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, get_args

import jax
import numpy as np
import pydantic
from jax import Array

from fewjoule._version import __version__
from fewjoule.codecs import Codec
from fewjoule.errors import InputError, is_whole, positive, unknown
from fewjoule.federation import blocks
from fewjoule.federation.blocks import Form, form_of
from fewjoule.methods import Method, method
from fewjoule.methods.method import Broadcast
from fewjoule.models.model import Model
from fewjoule.models.nets import model_from_spec
from fewjoule.randomness import agent_id
from fewjoule.simulation.rules import check_agents, common_start, shared_size, whole
from fewjoule.simulation.work import Shapes, data_for, shapes
from fewjoule.studies.settings import FederationSettings, LocalSettings, Study, make_study, read_source
from fewjoule.tasks.samples import check_names

POLICIES = get_args(FederationSettings.model_fields["policy"].annotation)
LARGEST_TEXT = 1 << 20
LARGEST_WEIGHTS = 1 << 28
MOST_ANSWERS = 1 << 22
"""Rounds times agents: the server keeps a row of numbers of each."""


@dataclass(frozen=True)
class Spec:
    """One method with one seed over these agents.

    `policy` says what happens when an agent is absent or its message is refused: `wait` for it, `skip` it while at
    least `quorum` answered, or `stop`. `deadline_seconds` is per round. A message is refused where the root mean
    square of its values is above `largest_rms`, or where it is `largest_ratio` times larger than the agents' messages
    usually are (`trust.outliers`). `classes` are the names that text targets may have, numbered in this
    order at every agent. `nonce` tells two runs with equal settings apart.
    """

    method: dict[str, Any]
    model: dict[str, str]
    agents: tuple[str, ...]
    seed: int = 0
    policy: str = "wait"
    deadline_seconds: float = 60.0
    quorum: int = 1
    largest_rms: float = 1e4
    largest_ratio: float = 100.0
    classes: tuple[str, ...] = ()
    local: dict[str, Any] = field(default_factory=dict)
    nonce: str = ""
    fewjoule: str = __version__
    wire: int = blocks.VERSION

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise unknown("policy", str(self.policy), POLICIES)
        positive("deadline_seconds", self.deadline_seconds)
        positive("largest_rms", self.largest_rms)
        positive("largest_ratio", self.largest_ratio)
        if not self.agents:
            raise InputError("a run needs agents, got none.")
        check_names(self.agents)
        if len({agent_id(name) for name in self.agents}) != len(self.agents):
            raise InputError("two agents' names have the same hash; rename one of them.")
        if len(set(self.classes)) != len(self.classes):
            raise InputError(f"classes must differ, got {', '.join(self.classes)}.")
        if not is_whole(self.quorum):
            raise InputError(f"quorum must be a whole number, got {self.quorum!r}.")
        if not 1 <= self.quorum <= len(self.agents):
            raise InputError(f"quorum must be from 1 to the number of agents, {len(self.agents)}, got {self.quorum}.")
        if not is_whole(self.seed) or not 0 <= self.seed < 2**32:
            raise InputError(f"seed must be a whole number from 0 to 2**32 - 1, got {self.seed!r}.")

    @cached_property
    def text(self) -> str:
        """As JSON with sorted keys: equal specs give equal text."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, default=_plain)

    @cached_property
    def run(self) -> bytes:
        return hashlib.blake2b(self.text.encode(), digest_size=16).digest()


def load_federated_study(source: str) -> Study:
    """A study by built-in name or file, with all its methods; `[federation]` has defaults where it is missing."""
    table, where = read_source(source)
    table.pop("quick", None)
    if isinstance(methods := table.get("methods"), list):  # a ceiling is trained on tasks that no agent has
        table["methods"] = [m for m in methods if not (isinstance(m, dict) and m.get("ceiling"))]
    return make_study({"federation": {}, **table}, where)


def specs_of(study: Study, agents: tuple[str, ...]) -> list[Spec]:
    """One spec per method and seed, in the order of the study; each is built once here, so mistakes show before."""
    assert study.federation is not None
    built = study.build_model()
    model = {"spec": built.spec, "init": study.model.init, "loss": built.loss_name}
    same: dict[str, Any] = {"model": model, "local": study.local.model_dump(), "agents": agents}
    same |= study.federation.model_dump() | {"classes": tuple(study.federation.classes)}
    specs = []
    for entry, seed in itertools.product(study.methods, study.seeds):
        chosen = {"method": entry.method, **entry.settings}
        if "questions" in chosen:
            chosen = entry.build().describe()  # out of a file they are read here, and agents get the numbers
        specs.append(Spec(method=chosen, seed=seed, nonce=secrets.token_hex(8), **same))
        contract(specs[-1])
    return specs


def read_spec(text: str) -> Spec:
    """The spec in this text, as an agent or the server got it; `InputError` with the reason where it is none."""
    if not isinstance(text, str) or len(text) > LARGEST_TEXT:
        raise InputError("a spec must be a text of at most 1 MiB.")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"a spec must be JSON: {error}.") from None
    names = {f.name for f in dataclasses.fields(Spec)}
    if not isinstance(values, dict) or not {"fewjoule", "wire"} <= set(values):
        raise InputError(f"a spec must be a table with the keys {', '.join(sorted(names))}.")
    if (_release(values["fewjoule"]), values["wire"]) != (_release(__version__), blocks.VERSION):
        theirs, wire = (str(values[key])[:40] for key in ("fewjoule", "wire"))
        raise InputError(
            f"the run uses fewjoule {theirs} with wire version {wire}, here is {__version__} with {blocks.VERSION}; "
            "install one release on all sites."
        )
    if set(values) != names:
        raise InputError(f"a spec must have exactly the keys {', '.join(sorted(names))}.")
    try:
        return pydantic.TypeAdapter(Spec).validate_json(text, strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        if isinstance(refusal := first.get("ctx", {}).get("error"), InputError):
            raise refusal from None
        place = ".".join(str(part) for part in first["loc"])
        raise InputError(f"a spec's {place or 'text'} cannot be used: {first['msg']}.") from None


def _release(version: Any) -> list[str]:
    """Releases that differ behind this compute the same: 0.1 of 0.1.3."""
    return str(version).split(".")[:2]


class Contract(NamedTuple):
    """Method and model of a spec, with the shapes of everything that crosses or is stored."""

    spec: Spec
    method: Method
    model: Model
    shapes: Shapes
    plan: tuple[tuple[int, int], ...]  # (kind, round) of every exchange, in order

    @property
    def codec(self) -> Codec | None:
        """Of the messages in a round."""
        return self.method.codecs[0]

    @property
    def first_codec(self) -> Codec | None:
        """Of the upload before the first round."""
        return self.method.codecs[1]

    @property
    def down_codec(self) -> Codec | None:
        """Of the broadcasts."""
        return self.method.codecs[2]

    @property
    def before(self) -> int:
        """Number of exchanges before the first round."""
        return len(self.plan) - 1 - self.method.rounds

    def rates(self, broadcast: Broadcast) -> dict[str, np.ndarray]:
        """The learning rates [d] that new devices fine-tune with after the last broadcast; none where nobody learns
        them."""
        return {} if self.method.rates is None else {"rates": np.asarray(self.method.rates(broadcast))}

    def round_of(self, exchange: int) -> int:
        """As people count and the ledger does: 0 before the first round, then 1, 2, ...; the close is of the last."""
        return min(max(0, exchange - self.before + 1), self.method.rounds)

    def whole(self, shared: Any) -> np.ndarray:
        """The model [d] of a new device that gets these shared weights."""
        common = common_start(self.method, self.model, self.spec.seed)
        return np.asarray(whole(self.method, self.model, shared, common))

    @property
    def common(self) -> Array:
        """What is shared of the seed's random start [b], which every site draws itself."""
        return common_start(self.method, self.model, self.spec.seed)[: self.shared_size]

    @property
    def shared_size(self) -> int:
        """How many weights of the model travel."""
        return shared_size(self.method, self.model)

    def request_forms(self, kind: int) -> tuple[Form, ...]:
        """The arrays that the server sends. In place of a round's model, a change has the bytes of a difference."""
        vector = form_of(self.shapes.vector)
        if kind == blocks.ROUND:
            return forms(sent(self.shapes.broadcast))
        if kind == blocks.CHANGE and self.down_codec is not None:
            most = self.down_codec.most_bytes(self.shared_size)
            return (Form("uint8", (-most,)), *self.request_forms(blocks.ROUND)[1:])
        return {blocks.UPLOAD: (), blocks.PROBE: (form_of(self.shapes.shared),), blocks.CLOSE: (vector, vector)}[kind]

    def reply_forms(self, kind: int) -> tuple[Form, ...]:
        """The arrays that an agent sends; bytes of a codec have a bound on their length only, and a
        number beside a coded vector goes as it is."""
        plain = {
            blocks.AGREE: (),
            blocks.UPLOAD: (form_of(self.shapes.shared),),
            blocks.PROBE: forms(self.shapes.probe),
            blocks.ROUND: forms(self.shapes.message),
            blocks.CHANGE: forms(self.shapes.message),
            blocks.CLOSE: (Form("float32", (2,)),),
        }[kind]
        codec = {blocks.ROUND: self.codec, blocks.CHANGE: self.codec, blocks.UPLOAD: self.first_codec}.get(kind)
        if codec is None:
            return plain
        return tuple(Form("uint8", (-codec.most_bytes(form.shape[0]),)) if form.shape else form for form in plain)


def contract(spec: Spec) -> Contract:
    """Build what the spec names; the method's and the model's own checks speak where it cannot be."""
    settings = {k: v for k, v in spec.method.items() if k != "method"}
    try:
        chosen = method(str(spec.method.get("method")), **settings)
        model = model_from_spec(**spec.model)
        LocalSettings.model_validate(spec.local)
    except (TypeError, pydantic.ValidationError) as error:
        raise InputError(f"the run's method, model or local training has a wrong setting: {error}.") from None
    if chosen.rounds * len(spec.agents) > MOST_ANSWERS:
        raise InputError(
            f"rounds times agents must be at most {MOST_ANSWERS} in a federation, got {chosen.rounds} times "
            f"{len(spec.agents)}; lower rounds."
        )
    if model.size > LARGEST_WEIGHTS:
        raise InputError(f"a model in a federation has at most {LARGEST_WEIGHTS} weights, got {model.size}.")
    if isinstance(chosen.start, int) and chosen.start >= len(spec.agents):
        raise InputError(f"agent must be below the number of agents, {len(spec.agents)}, got {chosen.start}.")
    check_agents(chosen, spec.quorum if spec.policy == "skip" else len(spec.agents))
    plan = [(blocks.UPLOAD, 0)] if chosen.start != "random" else []
    plan += [(blocks.PROBE, 0)] if chosen.probe is not None else []
    plan += [(blocks.ROUND, r) for r in range(chosen.rounds)] + [(blocks.CLOSE, chosen.rounds)]
    any_data = data_for(model, 2)  # messages do not depend on how many samples there are
    return Contract(spec, chosen, model, shapes(chosen, model, any_data, len(spec.agents)), tuple(plan))


def forms(tree: Any) -> tuple[Form, ...]:
    return tuple(form_of(leaf) for leaf in jax.tree.leaves(tree))


def leaves(tree: Any) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(leaf) for leaf in jax.tree.leaves(tree))


def named(name: str, tree: Any) -> dict[str, Any]:
    """The leaves of a pytree by name, as a state keeps them: name0, name1, ..."""
    return {f"{name}{i}": leaf for i, leaf in enumerate(jax.tree.leaves(tree))}


def rebuild(template: Any, arrays: Any) -> Any:
    """The pytree of `template` with these arrays as its leaves."""
    return jax.tree.unflatten(jax.tree.structure(template), [np.asarray(a) for a in arrays])


def sent(broadcast: Broadcast) -> Broadcast:
    """What agents get of a broadcast: the model as they decode it and the scalars."""
    return Broadcast(broadcast.model, broadcast.scalars)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, np.generic | np.ndarray | Array):
        return np.asarray(value).tolist()
    raise InputError(f"a run's settings must be plain values, got {type(value).__name__}.")
