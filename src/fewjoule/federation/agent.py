"""One agent's side of a run: bytes in, bytes out, state on disk before every answer.

The agent calls the method's own functions, as the simulator does. Its state is written before its answer leaves, so a
process that dies can be started again at any moment: a round already answered is answered again with the same bytes,
a round not finished is computed again with the same random key.
"""

import hashlib
import json
import threading
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.energy.metering import SHORTEST_SECONDS
from fewjoule.errors import InputError
from fewjoule.federation import blocks, wire
from fewjoule.federation.blocks import AGENT, BlockError, Form
from fewjoule.federation.broadcasts import heard
from fewjoule.federation.consent import Check
from fewjoule.federation.personal import write_personal
from fewjoule.federation.spec import Contract, contract, leaves, named, read_spec, rebuild
from fewjoule.federation.state import State, read_state, refusal, write_state
from fewjoule.federation.wire import AgentReport, Message, MessageError
from fewjoule.methods.method import Broadcast, Method
from fewjoule.models.model import Model, OwnModel, check_alike, check_fit
from fewjoule.models.parts import parts_of
from fewjoule.randomness import agent_id, key_for, round_key
from fewjoule.simulation import rules
from fewjoule.simulation.work import vector_of
from fewjoule.tasks.samples import AgentData, Agents
from fewjoule.training.local import train_locally
from fewjoule.training.program import COMPILER_OPTIONS
from fewjoule.training.start import random_start

Home = Callable[[Contract], tuple[AgentData, Array | OwnModel | None]]
"""What an agent has for a run: its samples, with classes numbered as the run does, and the model that it trained
before, if any: in the run's architecture, or an `OwnModel` of its own where the method only asks it."""

Meter = Callable[[Callable[[], Any]], tuple[Any, AgentReport]]
"""Runs a piece of work, a short one many times, and returns its result with joules, seconds, kind and source of what
it cost once."""

Traffic = Callable[[], tuple[float, float]]
"""Bytes that this process has sent to and received from the server so far."""


class AgentRunner:
    """An agent with its data, answering one run at a time."""

    def __init__(
        self,
        name: str,
        home: Home,
        folder: Path,
        *,
        meter: Meter = lambda work: (work(), AgentReport()),
        traffic: Traffic = lambda: (0.0, 0.0),
        consent: Check = lambda spec, agreed: None,
    ) -> None:
        self.name, self.id = name, agent_id(name)
        self._home, self._folder = home, folder
        self._meter, self._traffic, self._consent = meter, traffic, consent
        self._short: dict[Any, AgentReport] = {}  # what programs cost that are too short to be metered every round
        self._lock = threading.Lock()
        self._contract: Contract | None = None

    @property
    def agreed(self) -> Contract | None:
        """What this agent agreed to last."""
        return self._contract

    def agree(self, text: str) -> bytes:
        """Take part in the run that this spec describes, from its state on disk if there is one."""
        with self._lock:
            agreed = self._contract = self._agree(text)
            told = float(self._data.train.mask.sum()) if agreed.method.weighting == "samples" else 0.0
            return self._reply(agreed, blocks.AGREE, 0, (), self._pretraining._replace(samples=told))

    def handle(self, data: bytes) -> bytes:
        """Answer one request of the server. A repeated one gets the same answer, a late one is refused."""
        with self._lock:
            if self._contract is None:
                raise MessageError(f"agent {self.name!r} has agreed to no run yet.")
            kind, spec = wire.kind_of(data), self._contract.spec
            changes = (blocks.CHANGE,) if self._contract.down_codec else ()
            if kind not in (*wire.EXCHANGES, *changes):
                raise MessageError(f"message refused: it is {blocks.KINDS.get(kind, 'unknown')}, not a request.")
            forms = self._contract.request_forms(kind)
            message = wire.decode(data, kind=kind, run=spec.run, forms=forms, agent=0)
            self._check(self._contract, message.arrays)
            if kind in (blocks.ROUND, blocks.CHANGE):
                return self._round(self._contract, message, blocks.digest(data))
            return self._once(self._contract, message)

    def _check(self, agreed: Contract, arrays: Any) -> None:
        wire.check_values(arrays, agreed.spec.largest_rms * np.sqrt(agreed.model.size))

    def _agree(self, text: str) -> Contract:
        spec = read_spec(text)
        if self.name not in spec.agents:
            raise InputError(f"agent {self.name!r} is not one of this run: {', '.join(spec.agents)}.")
        known = self._contract is not None and self._contract.spec.run == spec.run
        agreed = self._contract if known and self._contract is not None else contract(spec)
        self._consent(spec, agreed)
        if known:
            return agreed
        data, own = self._home(agreed)
        one = Agents(jax.tree.map(lambda a: jnp.asarray(a)[None], data), (self.name,))
        check_fit(agreed.model, one)
        if agreed.method.needs_validation and not bool(data.validation.mask.sum() > 0):
            raise InputError(
                f"{agreed.method.name} needs validation samples; put x_test and y_test into "
                f"the data of agent {self.name!r}."
            )
        path = self._folder / spec.run.hex() / "agent.state"
        owner = agreed.model
        if isinstance(own, OwnModel):
            _check_own(agreed, own, f"the model of agent {self.name!r}")
            owner, own = own.model, jnp.asarray(own.vector)
        local, pretraining = self._local(agreed, owner, one, data, own)
        used = own if own is not None and rules.uses_local(agreed.method) else ()
        digest = _digest("", (data, used)).hex()
        local = parts_of(owner, agreed.method.head).body_first(local)
        template = jax.eval_shape(
            lambda v: agreed.method.agent_init(rules.own_model(agreed.method, owner, v), v[: agreed.shared_size]), local
        )
        shapes = named("state", template)
        forms = {name: blocks.form_of(leaf) for name, leaf in shapes.items()}
        forms["answer"] = Form("uint8", (-wire.size(agreed.reply_forms(blocks.ROUND)),))
        held = {"held": np.asarray(agreed.common)} if agreed.down_codec else {}  # the broadcast before, to be changed
        forms |= {name: blocks.form_of(array) for name, array in held.items()}
        types = {"agent": str, "data": str, "round": int, "answered": str}
        saved = read_state(path, AGENT, spec.run, types, forms)
        if saved is None:  # written now, so that other data is noticed from here on
            uploaded = self._uploaded(agreed, local)[0]
            state = agreed.method.agent_init(rules.own_model(agreed.method, owner, local), uploaded)
            values = {"agent": self.name, "data": digest, "round": -1, "answered": ""}
            saved = State(values, {"answer": _bytes(b""), **held, **named("state", jax.device_get(state))})
            write_state(path, AGENT, spec.run, saved)
        if saved.values["agent"] != self.name:
            why = f"it is the state of agent {saved.values['agent']!r}, this is agent {self.name!r}"
            raise refusal(path, BlockError(why))
        if saved.values["data"] != digest:
            raise InputError(
                f"the data or the model of agent {self.name!r} changed since it joined this run; put them back as they "
                "were, or start a new run."
            )
        self._path, self._data, self._local_model, self._pretraining = path, data, local, pretraining
        self._data_digest = digest
        self._state = rebuild(template, [saved.arrays[name] for name in shapes])
        self._done, self._answered = saved.values["round"], saved.values["answered"]
        self._answer = saved.arrays["answer"].tobytes()
        self._held = saved.arrays.get("held", np.zeros(0, np.float32))
        self._root = key_for(spec.seed, "round")
        return agreed

    def _local(
        self, agreed: Contract, owner: Model, one: Agents, data: AgentData, own: Array | None
    ) -> tuple[Array, AgentReport]:
        """The agent's own model: given by its owner, or trained here once for all runs with these settings."""
        spec = agreed.spec
        if not rules.uses_local(agreed.method):
            return random_start(agreed.model, spec.seed), AgentReport()
        settings = json.dumps([spec.model, spec.local, spec.seed], sort_keys=True)
        same = _digest(settings, (data.train, () if own is None else own))  # also for other methods and runs
        path = self._folder / "local" / f"{same.hex()}.state"
        forms = {"model": blocks.form_of(vector_of(owner))}
        saved = read_state(path, AGENT, same, {"report": AgentReport}, forms)
        if saved is not None:
            return jnp.asarray(saved.arrays["model"]), AgentReport(**saved.values["report"])
        if own is not None:
            local, report = own, AgentReport()
        else:
            reports = []

            def around(work: Callable[[], Any]) -> Any:
                result, spent = self._meter(work)
                reports.append(spent)
                return result

            trained = train_locally(agreed.model, one, seed=spec.seed, around=around, **spec.local)
            local, report = trained.models[0], reports[-1]
        if not bool(jnp.isfinite(local).all()):
            raise InputError(f"the local model of agent {self.name!r} is not finite; lower the step of its training.")
        write_state(path, AGENT, same, State({"report": report._asdict()}, {"model": np.asarray(local)}))
        return local, report

    def _uploaded(self, agreed: Contract, local: Array) -> tuple[Array, np.ndarray, float]:
        """What is shared of the local model as the server gets it, what is sent for it, and the bytes charged."""
        codec, local = agreed.first_codec, local[: agreed.shared_size]
        if agreed.method.upload is None or agreed.method.start == "random" or codec is None:
            return local, np.asarray(local), float(rules.NUMBER_BYTES * agreed.shared_size)
        key = jax.random.fold_in(key_for(agreed.spec.seed, "codec"), self.id)
        upload = agreed.method.upload(local, agreed.common, key)
        return upload.model, _bytes(codec.to_bytes(upload.packed, local.size)), float(upload.size_bytes)

    def _round(self, agreed: Contract, message: Message, digest: bytes) -> bytes:
        round = message.round
        if round == self._done:
            if digest.hex() != self._answered:
                raise MessageError(f"round {round + 1} was already answered to another broadcast.")
            return self._answer
        if round < self._done:
            raise MessageError(f"round {round + 1} is late: agent {self.name!r} has finished round {self._done + 1}.")
        if agreed.spec.policy != "skip" and round != self._done + 1:
            raise MessageError(
                f"round {round + 1} does not follow round {self._done + 1}, the last of this agent's state: it lost "
                "rounds (a loss of power?), so a new run is needed."
            )
        if message.kind == blocks.CHANGE and round != self._done + 1:
            raise MessageError(
                f"round {round + 1} came as a change of a broadcast that agent {self.name!r} does not hold: its state "
                f"is of round {self._done + 1}; the next one comes whole."
            )
        broadcast = heard(agreed, message, self._held)
        self._check(agreed, (broadcast.model,))
        held = {"held": np.asarray(broadcast.model)} if agreed.down_codec else {}
        broadcast = rules.told(broadcast, agreed.spec.seed)
        arguments = (self._state, broadcast, self._data, self._root, np.uint32(round), np.uint32(self.id))
        result, report = self._run(_step, (agreed.method, agreed.model), *arguments)
        state, reply, packed, charged, facts = jax.device_get(result)
        arrays, codec = leaves(reply), agreed.codec
        if codec is not None:
            coded = zip(packed, arrays, strict=True)
            arrays = tuple(_bytes(codec.to_bytes(packed, a.size)) if a.ndim else a for packed, a in coded)
        loss, distance, active, sends_model = facts.tolist()
        report = report._replace(
            loss=loss, distance=distance, active=active, charged_bytes=float(charged), sends_model=bool(sends_model)
        )
        answer = self._reply(agreed, blocks.ROUND, round, arrays, report)
        values = {"agent": self.name, "data": self._data_digest, "round": round, "answered": digest.hex()}
        stored = State(values, {"answer": _bytes(answer), **held, **named("state", state)})
        write_state(self._path, AGENT, agreed.spec.run, stored)
        self._state, self._done, self._answered, self._answer = state, round, digest.hex(), answer
        self._held = held.get("held", self._held)
        return answer

    def _once(self, agreed: Contract, message: Message) -> bytes:
        """Requests that change nothing: the local model, the probe, the losses at the end."""
        arrays: tuple[np.ndarray, ...]
        if message.kind == blocks.UPLOAD:
            _, uploaded, charged = self._uploaded(agreed, self._local_model)
            arrays, report = (uploaded,), AgentReport(charged_bytes=charged)
        elif message.kind == blocks.PROBE:
            if agreed.method.probe is None:
                raise MessageError(f"{agreed.method.name} has no probe.")
            key = jax.random.fold_in(key_for(agreed.spec.seed, "probe"), self.id)
            start = jnp.asarray(message.arrays[0])
            probe, report = self._run(_probe, (agreed.method, agreed.model), start, self._data, key)
            charged = float(rules.probe_bytes(agreed.method, agreed.model, probe)[0])
            arrays, report = leaves(probe), report._replace(charged_bytes=charged)
        else:
            write_personal(self._path.parent, agreed, self.name, self._state, message.arrays[0])
            pair = jnp.stack([jnp.asarray(a) for a in message.arrays])
            losses, report = self._run(_losses, (agreed.model,), pair, self._data)
            arrays = (np.asarray(losses, np.float32),)
        return self._reply(agreed, message.kind, message.round, arrays, report)

    def _run(self, program: Any, static: tuple[Any, ...], *arrays: Any) -> tuple[Any, AgentReport]:
        """What the program makes of these arrays, and what its execution alone cost.

        Programs change nothing but what they return, so a meter may repeat a short one to read it. It does that once:
        repeated in every round it would cost the device more than the rounds.
        """
        compiled = _compiled(program, static, jax.tree.map(_shape, arrays))

        def work() -> Any:
            return jax.block_until_ready(compiled(*arrays))  # type: ignore[no-untyped-call]

        if compiled in self._short:
            return work(), self._short[compiled]
        result, report = self._meter(work)
        if 0 < report.seconds < SHORTEST_SECONDS:
            self._short[compiled] = report
        return result, report

    def _reply(
        self, agreed: Contract, kind: int, round: int, arrays: tuple[np.ndarray, ...], report: AgentReport
    ) -> bytes:
        sent_bytes, received_bytes = self._traffic()
        report = report._replace(bytes_sent=sent_bytes, bytes_received=received_bytes)
        return wire.encode(Message(kind, agreed.spec.run, round, self.id, arrays, report))


def _check_own(agreed: Contract, own: OwnModel, what: str) -> None:
    if not agreed.method.asks and own.model is not agreed.model:
        raise InputError(f"{what} must be {agreed.model.spec}: {agreed.method.name} needs models of one architecture.")
    check_alike(own.model, agreed.model, what)


def _digest(settings: str, arrays: Any) -> bytes:
    """16 bytes that stand for these settings and arrays."""
    total = hashlib.blake2b(settings.encode(), digest_size=16)
    for leaf in jax.tree.leaves(arrays):
        array = np.ascontiguousarray(leaf)
        total.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return total.digest()


def _bytes(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


@lru_cache
def _compiled(program: Any, static: tuple[Any, ...], shapes: tuple[Any, ...]) -> Any:
    """Compiled once per method and model in a process, before the meter starts: a device does not spend it."""
    return program.lower(*static, *shapes).compile()


def _shape(array: Any) -> Any:
    return jax.ShapeDtypeStruct(jnp.shape(array), jnp.result_type(array))  # type: ignore[no-untyped-call]


@partial(jax.jit, static_argnums=(0, 1), compiler_options=COMPILER_OPTIONS)
def _step(
    method: Method, model: Model, state: Any, broadcast: Broadcast, data: AgentData, root: Array, round: Any, agent: Any
) -> Any:
    """The agent's part of a round: its state, its message plain and coded, the bytes charged for it, and four facts
    for the report."""
    key = round_key(root, round, agent)
    state, message, info = method.agent(rules.loss_of(method, model), state, broadcast, data, key)
    parts = jax.tree.leaves(message)
    sends_model = info.packed is None and len(parts) == 1 and parts[0].shape == info.model.shape
    same = jnp.array_equal(parts[0], info.model) if sends_model else jnp.zeros((), bool)
    distance = jnp.linalg.norm(info.model[: broadcast.model.size] - broadcast.model)
    facts = jnp.stack([info.loss, distance, info.active, same.astype(jnp.float32)])
    return state, message, info.packed, jnp.asarray(rules.message_bytes(message, info)), facts


@partial(jax.jit, static_argnums=(0, 1), compiler_options=COMPILER_OPTIONS)
def _probe(method: Method, model: Model, start: Array, data: AgentData, key: Array) -> Any:
    assert method.probe is not None
    return method.probe(rules.loss_of(method, model), start, data, key)


@partial(jax.jit, static_argnums=0, compiler_options=COMPILER_OPTIONS)
def _losses(model: Model, vectors: Array, data: AgentData) -> Array:
    return jax.vmap(lambda vector: rules.loss_at(model, vector, data))(vectors)
