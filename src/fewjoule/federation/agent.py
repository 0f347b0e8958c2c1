"""One agent's side of a run: bytes in, bytes out, state on disk before every answer.

The agent calls the method's own functions, as the simulator does. Its state is written before its answer leaves, so a
process that dies can be started again at any moment: a round already answered is answered again with the same bytes,
a round not finished is computed again with the same random key.
"""

import hashlib
import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.errors import InputError
from fewjoule.federation import wire
from fewjoule.federation.spec import Contract, contract, leaves, read_spec, rebuild, received
from fewjoule.federation.state import AGENT, State, read_state, write_state
from fewjoule.federation.wire import Message, MessageError, Reading
from fewjoule.methods.method import Broadcast, Method
from fewjoule.models.model import Model, check_fit
from fewjoule.randomness import agent_id, key_for, round_key
from fewjoule.tasks.samples import AgentData, Agents
from fewjoule.training.local import train_locally

Meter = Callable[[Callable[[], Any]], tuple[Any, Reading]]
"""Runs a piece of work and returns its result with joules, seconds, kind and source of what it cost."""

Traffic = Callable[[], tuple[float, float]]
"""Bytes that this process has sent to and received from the server so far."""


def no_meter(work: Callable[[], Any]) -> tuple[Any, Reading]:
    return work(), Reading()


def no_traffic() -> tuple[float, float]:
    return 0.0, 0.0


class AgentRunner:
    """An agent with its data, answering one run at a time. `own` is the model it trained before, if any."""

    def __init__(
        self,
        name: str,
        data: AgentData,
        folder: Path,
        *,
        own: Array | None = None,
        meter: Meter = no_meter,
        traffic: Traffic = no_traffic,
    ) -> None:
        self.name, self.id = name, agent_id(name)
        self._data, self._own, self._folder = data, own, folder
        self._meter, self._traffic = meter, traffic
        self._lock = threading.Lock()
        self._contract: Contract | None = None

    def agree(self, text: str) -> bytes:
        """Take part in the run that this spec describes, from its state on disk if there is one."""
        with self._lock:
            self._agree(text)
            return self._reply(wire.AGREE, 0, (), self._pretraining)

    def handle(self, data: bytes) -> bytes:
        """Answer one request of the server. A repeated one gets the same answer, a late one is refused."""
        with self._lock:
            if self._contract is None:
                raise MessageError(f"agent {self.name!r} has agreed to no run yet.")
            kind, round = wire.peek(data)
            if kind == wire.AGREE:
                raise MessageError("an agree message carries a spec, not arrays.")
            spec = self._contract.spec
            forms = self._contract.request_forms(kind)
            message = wire.decode(data, kind=kind, run=spec.run, forms=forms, agent=0)
            wire.check_values(message.arrays, spec.largest_rms * np.sqrt(self._contract.model.size))
            if kind == wire.ROUND:
                return self._round(round, message, wire.digest(data))
            return self._once(kind, round, message)

    def _agree(self, text: str) -> None:
        spec = read_spec(text)
        if self._contract is not None and self._contract.spec.run == spec.run:
            return
        if self.name not in spec.agents:
            raise InputError(f"agent {self.name!r} is not one of this run: {', '.join(spec.agents)}.")
        agreed = contract(spec)
        one = Agents(jax.tree.map(lambda a: jnp.asarray(a)[None], self._data), (self.name,))
        check_fit(agreed.model, one)
        if agreed.method.needs_validation and not bool(self._data.validation.mask.sum() > 0):
            raise InputError(
                f"{agreed.method.name} needs validation samples; put x_test and y_test into "
                f"the data of agent {self.name!r}."
            )
        self._folder_of_run = self._folder / spec.run.hex()
        local, self._pretraining = self._local(agreed, one)
        self._local_model = local
        saved = read_state(self._folder_of_run / "agent.state", AGENT, spec.run)
        if saved is None:
            self._state = agreed.method.agent_init(local, self._upload(agreed, local)[0])
            self._done, self._answered, self._answer = -1, b"", b""
        else:
            self._state = rebuild(
                agreed.agent_state, [saved.arrays[f"state{i}"] for i in range(saved.values["leaves"])]
            )
            self._done = int(saved.values["round"])
            self._answered = bytes.fromhex(saved.values["answered"])
            self._answer = saved.arrays["answer"].tobytes()
        self._root = key_for(spec.seed, "round")
        self._root_data = np.asarray(jax.random.key_data(self._root)).tolist()
        self._step: Any = None
        self._contract = agreed

    def _local(self, agreed: Contract, one: Agents) -> tuple[Array, Reading]:
        """The agent's own model: given by its owner, or trained here once for all runs with these settings."""
        spec = agreed.spec
        if agreed.method.start == "random" and not agreed.method.needs_local:
            return jnp.zeros(agreed.model.size), Reading()
        same = _digest(agreed, self._data, self._own)  # other methods and runs start from the same model
        path = self._folder / "local" / f"{same.hex()}.state"
        saved = read_state(path, AGENT, same)
        if saved is not None:
            return jnp.asarray(saved.arrays["model"]), Reading(*saved.values["reading"])
        if self._own is not None:
            if self._own.shape != (agreed.model.size,):
                raise InputError(
                    f"agent {self.name!r} brings a model of {self._own.size} weights, the run's {agreed.model} "
                    f"has {agreed.model.size}; give a model of the run's architecture."
                )
            local, reading = self._own, Reading()
        else:
            readings = []

            def around(work: Callable[[], Any]) -> Any:
                result, spent = self._meter(work)
                readings.append(spent)
                return result

            trained = train_locally(agreed.model, one, seed=spec.seed, around=around, **spec.local)
            reading = readings[-1]
            local = trained.models[0]
        if not bool(jnp.isfinite(local).all()):
            raise InputError(f"the local model of agent {self.name!r} is not finite; lower the step of its training.")
        write_state(path, AGENT, same, State({"reading": list(reading)}, {"model": np.asarray(local)}))
        return local, reading

    def _upload(self, agreed: Contract, local: Array) -> tuple[Array, np.ndarray, float]:
        """The local model as the server gets it, what is sent for it, and the bytes charged."""
        codec = agreed.first_codec
        if agreed.method.upload is None or agreed.method.start == "random" or codec is None:
            return local, np.asarray(local), 4.0 * agreed.model.size
        common = agreed.model.init(key_for(agreed.spec.seed, "start"))
        key = jax.random.fold_in(key_for(agreed.spec.seed, "codec"), self.id)
        upload = agreed.method.upload(local, common, key)
        return upload.model, _bytes(codec.to_bytes(upload.packed, local.size)), float(upload.size_bytes)

    def _round(self, round: int, message: Message, digest: bytes) -> bytes:
        assert self._contract is not None
        if round == self._done:
            if digest != self._answered:
                raise MessageError(f"round {round} was already answered to another broadcast.")
            return self._answer
        if round < self._done:
            raise MessageError(f"round {round} is late: agent {self.name!r} has finished round {self._done}.")
        agreed = self._contract
        if agreed.spec.policy != "skip" and round != self._done + 1:
            raise MessageError(
                f"round {round} does not follow round {self._done}, the last of this agent's state: it lost rounds "
                "(a loss of power?), so a new run is needed."
            )
        broadcast = received(agreed, message.arrays)
        arguments = (self._state, broadcast, self._data, self._root, np.uint32(round), np.uint32(self.id))
        if self._step is None:  # shapes are the same in all rounds of a run
            self._step = _compiled(_step, (agreed.method, agreed.model), arguments)
        result, reading = self._meter(lambda: _waited(self._step, *arguments))
        state, reply, packed, size_bytes, facts = jax.device_get(result)
        arrays, codec = leaves(reply), agreed.codec
        if codec is not None:
            coded = zip(packed, arrays, strict=True)
            arrays = tuple(_bytes(codec.to_bytes(packed, array.size)) for packed, array in coded)
        loss, distance, active, sends_model = facts.tolist()
        charged = sum(a.nbytes for a in arrays) if size_bytes is None else size_bytes
        reading = reading._replace(
            loss=loss, distance=distance, active=active, charged_bytes=float(charged), sends_model=bool(sends_model)
        )
        answer = self._reply(wire.ROUND, round, arrays, reading)
        kept = leaves(state)
        values = {
            "agent": self.name,
            "round": round,
            "key": self._root_data,  # with the round and the agent's name it gives the round's key
            "answered": digest.hex(),
            "leaves": len(kept),
        }
        stored = {"answer": np.frombuffer(answer, np.uint8)} | {f"state{i}": a for i, a in enumerate(kept)}
        write_state(self._folder_of_run / "agent.state", AGENT, self._contract.spec.run, State(values, stored))
        self._state, self._done, self._answered, self._answer = state, round, digest, answer
        return answer

    def _once(self, kind: int, round: int, message: Message) -> bytes:
        """Requests that change nothing: the local model, the probe, the losses at the end."""
        assert self._contract is not None
        agreed = self._contract
        if kind == wire.UPLOAD:
            _, sent, charged = self._upload(agreed, self._local_model)
            return self._reply(kind, round, (sent,), Reading(charged_bytes=charged))
        if kind == wire.PROBE:
            if agreed.method.probe is None:
                raise MessageError(f"{agreed.method.name} has no probe.")
            key = jax.random.fold_in(key_for(agreed.spec.seed, "probe"), self.id)
            start = jnp.asarray(message.arrays[0])
            probing = _compiled(_probe, (agreed.method, agreed.model), (start, self._data, key))
            found, reading = self._meter(lambda: _waited(probing, start, self._data, key))
            probe = leaves(found)
            reading = reading._replace(charged_bytes=float(sum(a.nbytes for a in probe)))
            return self._reply(kind, round, probe, reading)
        pair = jnp.stack([jnp.asarray(a) for a in message.arrays])
        judging = _compiled(_losses, (agreed.model,), (pair, self._data))
        losses, reading = self._meter(lambda: _waited(judging, pair, self._data))
        return self._reply(kind, round, (np.asarray(losses, np.float32),), reading)

    def _reply(self, kind: int, round: int, arrays: tuple[np.ndarray, ...], reading: Reading) -> bytes:
        assert self._contract is not None
        sent, received = self._traffic()
        reading = reading._replace(bytes_sent=sent, bytes_received=received)
        return wire.encode(Message(kind, self._contract.spec.run, round, self.id, arrays, reading))


def _digest(agreed: Contract, data: AgentData, own: Array | None) -> bytes:
    """16 bytes that stand for everything a local model depends on."""
    spec = agreed.spec
    settings = json.dumps([spec.model, spec.local, spec.seed], sort_keys=True).encode()
    total = hashlib.blake2b(settings, digest_size=16)
    for leaf in jax.tree.leaves((data.train, () if own is None else own)):
        total.update(np.ascontiguousarray(leaf).tobytes())
    return total.digest()


def _bytes(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


# Compiled once per method and model in a process, and before the meter starts: compiling is not what a device spends.
_programs: dict[Any, Any] = {}


def _compiled(program: Any, static: tuple[Any, ...], arrays: tuple[Any, ...]) -> Any:
    shapes = jax.tree.map(lambda a: (jnp.shape(a), jnp.result_type(a)), arrays)
    leaves, structure = jax.tree.flatten(shapes)
    key = (program, static, structure, tuple(leaves))
    if key not in _programs:
        _programs[key] = program.lower(*static, *arrays).compile()
    return _programs[key]


def _waited(program: Any, *arrays: Any) -> Any:
    return jax.block_until_ready(program(*arrays))  # type: ignore[no-untyped-call]


@partial(jax.jit, static_argnums=(0, 1))
def _step(
    method: Method, model: Model, state: Any, broadcast: Broadcast, data: AgentData, root: Array, round: Any, agent: Any
) -> Any:
    """The agent's part of a round: its state, its message plain and coded, the message's size, and four facts for
    the reading."""
    key = round_key(root, round, agent)
    state, message, info = method.agent(model.loss, state, broadcast, data, key)
    parts = jax.tree.leaves(message)
    sends_model = info.packed is None and len(parts) == 1 and parts[0].shape == info.model.shape
    same = jnp.array_equal(parts[0], info.model) if sends_model else jnp.zeros((), bool)
    distance = jnp.linalg.norm(info.model - broadcast.model)
    facts = jnp.stack([info.loss, distance, info.active, same.astype(jnp.float32)])
    return state, message, info.packed, info.size_bytes, facts


@partial(jax.jit, static_argnums=(0, 1))
def _probe(method: Method, model: Model, start: Array, data: AgentData, key: Array) -> Any:
    assert method.probe is not None
    return method.probe(model.loss, start, data, key)


@partial(jax.jit, static_argnums=0)
def _losses(model: Model, vectors: Array, data: AgentData) -> Array:
    return jax.vmap(lambda vector: model.loss(vector, data.train))(vectors)
