"""The server's side of a run: what to ask next, what came back, and the state on disk after every complete exchange.

The exchanges of a run stand in a plan: upload of the local models, probe, the rounds, and the close, in which agents
get the meta-model and report their losses. Only complete exchanges count; after a kill the last incomplete one is asked
again, and agents that had answered it answer with the same bytes.
"""

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from pydantic import Field

from fewjoule.errors import InputError
from fewjoule.federation import blocks, journal, trust, wire
from fewjoule.federation.broadcasts import arrays_of
from fewjoule.federation.records import Records
from fewjoule.federation.spec import Spec, contract, named, rebuild
from fewjoule.federation.state import State, pack, read_state, refusal, write_state
from fewjoule.federation.wire import Message
from fewjoule.methods.method import Broadcast, Method, Start
from fewjoule.randomness import agent_id
from fewjoule.simulation.learning import learn
from fewjoule.simulation.rules import broadcast_bytes, combine, probe_bytes, server_step, start_of, weights_of
from fewjoule.simulation.run import Trace
from fewjoule.training.program import COMPILER_OPTIONS

_SAVED = ("losses", "start", "spread", "samples")


class ServerRunner:
    """The server of one run, continuing from the state in `folder` if there is one."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        self.spec, self.contract = spec, contract(spec)
        self._path = folder / spec.run.hex() / "server.state"
        self._rows = self._path.with_name("server.rows")
        self._replies: dict[str, Message] = {}
        self._lengths: dict[str, int] = {}
        self._requests: dict[int, bytes] = {}  # of the exchange at hand, by kind
        self._began = 0.0
        self.waiting: dict[str, str] = {}  # agents that are late with their answer, for people to look at
        self._begin()
        at, recorded = Annotated[int, Field(ge=0, le=len(self.contract.plan))], Annotated[int, Field(ge=0, le=2**53)]
        types = {"spec": str, "exchange": at, "recorded": recorded, "sources": list[str]}
        arrays = self._save().arrays  # a saved state has the same as a fresh one
        forms = {name: blocks.form_of(array) for name, array in arrays.items()}
        forms["pending"] = blocks.Form("uint8", (-blocks.LARGEST_SIDE,))
        saved = read_state(self._path, blocks.SERVER, spec.run, types, forms)
        if saved is not None:
            self._load(saved)

    def _begin(self) -> None:
        shapes, agents = self.contract.shapes, len(self.spec.agents)
        self.exchange = 0
        self.records = Records(len(self.contract.plan), agents)
        self._recorded = 0  # bytes in the rows' file
        self._pending = b""  # rows that are not in it yet
        self.losses = np.full(2, np.nan)  # at the meta-model, at the start
        self.start = np.full(self.contract.shared_size, np.nan, np.float32)
        self.spread = np.zeros((), np.float32)
        self.samples = np.zeros(agents)  # of each agent, where the method weighs by them
        self._holds = np.ones(agents, bool)  # the last broadcast; before the first round, the random start
        self._server: Any = _zeros(shapes.server_state)
        self._broadcast: Broadcast = _zeros(shapes.broadcast)
        if self.contract.method.start == "random":
            self._set_start(jnp.zeros((agents, self.contract.shared_size)))

    @property
    def trace(self) -> np.ndarray:
        """[rounds, fields of a trace]"""
        return self.records.trace[self.contract.before : -1]

    @property
    def complete(self) -> bool:
        return self.exchange >= len(self.contract.plan)

    @property
    def at(self) -> tuple[int, int]:
        """Kind and round of the exchange that is due."""
        return self.contract.plan[self.exchange]

    def due(self) -> tuple[str, ...]:
        """The agents that must answer the exchange at hand and have not."""
        agents = self.spec.agents
        if self.at[0] == blocks.UPLOAD and isinstance(self.contract.method.start, int):
            agents = (agents[self.contract.method.start],)
        return tuple(name for name in agents if name not in self._replies)

    def request(self, name: str) -> bytes:
        """The message that this agent gets in the exchange at hand; always the same bytes."""
        kind, round = self.at
        if kind == blocks.ROUND and self.contract.down_codec and self._holds[self.spec.agents.index(name)]:
            kind = blocks.CHANGE
        if kind not in self._requests:
            self._began = self._began or time.perf_counter()
            arrays: tuple[np.ndarray, ...] = ()
            if kind in (blocks.ROUND, blocks.CHANGE):
                arrays = arrays_of(self.contract, self._broadcast, kind)
            elif kind == blocks.PROBE:
                arrays = (self.start,)
            elif kind == blocks.CLOSE:
                arrays = (self.meta, self.contract.whole(self.start))
            self._requests[kind] = wire.encode(Message(kind, self.spec.run, round, 0, arrays))
        return self._requests[kind]

    def accept_agreement(self, name: str, data: bytes) -> None:
        """Note what the agent's offline training cost, and how many samples it has where that is its weight."""
        message = wire.decode(data, kind=blocks.AGREE, run=self.spec.run, forms=(), round=0, agent=agent_id(name))
        trust.check_reading(message.report, len(data))
        i, told = self.spec.agents.index(name), message.report.samples
        if self.contract.method.weighting == "samples":
            if told < 1 or self.samples[i] not in (0, told):
                raise wire.MessageError(f"it has {told:g} samples, at least 1 and as many as before were due.")
            self.samples[i] = told
        self.records.note_agreement(i, message.report, (len(data), len(self.spec.text.encode())))

    @property
    def _weights(self) -> Array | None:
        return weights_of(self.contract.method, jnp.asarray(self.samples, jnp.float32))

    def accept(self, name: str, data: bytes) -> None:
        """Take one agent's answer, or `MessageError` with the reason. A repeated one is ignored."""
        if name in self._replies:
            return
        kind, round = self.at
        forms = self.contract.reply_forms(kind)
        message = wire.decode(data, kind=kind, run=self.spec.run, forms=forms, round=round, agent=agent_id(name))
        trust.check_reading(message.report, len(data))
        message = message._replace(arrays=self._decoded(kind, message.arrays))
        if kind != blocks.CLOSE:  # a loss that overflowed is news, not an attack
            values = sum(a.size for a in message.arrays)
            wire.check_values(message.arrays, self.spec.largest_rms * float(np.sqrt(values)))
        self._replies[name], self._lengths[name] = message, len(data)

    def _decoded(self, kind: int, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """What the codecs make of coded arrays."""
        agreed = self.contract
        try:
            if kind == blocks.ROUND and agreed.codec is not None:
                parts = zip(arrays, jax.tree.leaves(agreed.shapes.message), strict=True)
                return tuple(agreed.codec.decode(a.tobytes(), due.size) if due.ndim else a for a, due in parts)
            if kind == blocks.UPLOAD and agreed.first_codec is not None:
                change = agreed.first_codec.decode(arrays[0].tobytes(), agreed.shared_size)
                return (np.asarray(agreed.common) + change,)
        except InputError as error:
            raise wire.MessageError(str(error)) from None
        return arrays

    def outliers(self) -> dict[str, str]:
        """Agents whose answers are out of all proportion to the others', and why; their answers are dropped."""
        kind, agreed = self.at[0], self.contract
        answers = {name: message.arrays for name, message in self._replies.items()}
        ratio, method = self.spec.largest_ratio, agreed.method
        found: dict[str, str] = {}
        if kind == blocks.UPLOAD:
            found = trust.outliers(answers, np.asarray(agreed.common), ratio, models=True)
        elif kind == blocks.ROUND:
            are_models = method.sends == "model" and agreed.codec is None
            found = trust.outliers(answers, np.asarray(self._broadcast.model), ratio, models=are_models)
        elif kind == blocks.PROBE:  # losses and curvatures differ more than models do
            found = trust.outliers(answers, np.zeros(1), ratio**2, models=False)
        for name in found:
            del self._replies[name]
        return found

    def finish(self, absent: dict[str, str]) -> None:
        """Close the exchange with the answers there are and go on to the next one; `save` it before anybody is asked.

        `absent` gives the reason for every agent that is left out.
        """
        kind, round = self.at
        self._note(kind, round)
        self.records.skip(self.exchange, wire.EXCHANGES[kind], self.contract.round_of(self.exchange), absent)
        answers = [self._replies[name] for name in self.spec.agents if name in self._replies]
        {
            blocks.UPLOAD: self._uploaded,
            blocks.PROBE: self._probed,
            blocks.ROUND: self._rounded,
            blocks.CLOSE: self._closed,
        }[kind](answers)
        now = time.perf_counter()
        self.records.seconds[self.exchange], self._began = now - self._began, now
        self._pending += journal.encode_row(self.spec.run, self.records.row(self.exchange))
        self.exchange += 1
        self._replies, self._requests = {}, {}

    def save(self) -> None:
        """Write the state. After an `OSError` it can be called again; nothing is lost."""
        if len(self._pending) > journal.MOST_PENDING_BYTES:
            self._recorded, self._pending = journal.append(self._rows, self._recorded, self._pending), b""
        write_state(self._path, blocks.SERVER, self.spec.run, self._save())

    def _note(self, kind: int, round: int) -> None:
        """Write every answer down, with the bytes that the link model charges its agent for receiving."""
        charged = np.zeros(len(self.spec.agents))  # handing out the meta-model is not part of a run's cost
        if kind == blocks.PROBE:
            charged += probe_bytes(self.contract.method, self.contract.model, self.contract.shapes.probe)[1]
        elif kind == blocks.ROUND:
            charged += broadcast_bytes(self.contract.method, self._broadcast, round == 0, self._holds)
        for i, name in enumerate(self.spec.agents):
            if name in self._replies:
                payload = (self._lengths[name], len(self.request(name)))
                self.records.note(self.exchange, i, self._replies[name].report, payload, float(charged[i]))

    def _uploaded(self, answers: list[Message]) -> None:
        models, weights = [message.arrays[0] for message in answers], self._weights
        if isinstance(self.contract.method.start, int):  # one agent's model stands for all, at every position
            models = models * len(self.spec.agents)
        elif weights is not None:
            weights = weights[np.array([name in self._replies for name in self.spec.agents])]
        self._set_start(jnp.asarray(np.stack(models)), weights)

    def _set_start(self, models: Array, weights: Array | None = None) -> None:
        start = _start(self.contract.method, models, self.contract.common, weights)
        self.start, self.spread = np.asarray(start.model), np.asarray(start.spread, np.float32)
        if self.contract.method.probe is None:
            self._server, self._broadcast = _init(self.contract.method, start, None)

    def _probed(self, answers: list[Message]) -> None:
        rows = [rebuild(self.contract.shapes.probe, message.arrays) for message in answers]
        probes = jax.tree.map(lambda *each: jnp.stack(each), *rows)
        start = Start(jnp.asarray(self.start), jnp.asarray(self.spread), self.contract.common)
        self._server, self._broadcast = _init(self.contract.method, start, probes)

    def _rounded(self, answers: list[Message]) -> None:
        nothing = [np.zeros(form.shape, form.dtype) for form in jax.tree.leaves(self.contract.shapes.message)]
        rows = [self._replies[n].arrays if n in self._replies else nothing for n in self.spec.agents]
        messages = rebuild(self.contract.shapes.message, [np.stack(each) for each in zip(*rows, strict=True)])
        everybody = len(answers) == len(self.spec.agents)
        here = None if everybody else jnp.asarray([name in self._replies for name in self.spec.agents])
        before, method = self._broadcast, self.contract.method
        server, after = _step(method, self._server, messages, self._weights, here)
        row = {
            "loss": np.mean([message.report.loss for message in answers]),
            "spread": _spread(answers),
            "step": np.linalg.norm(np.asarray(after.model) - np.asarray(before.model)),
            "radius": float(before.scalars) if isinstance(before.scalars, jax.Array | np.ndarray) else np.nan,
            "active": np.mean([message.report.active for message in answers]),
            "present": len(answers),
        }
        if method.learn is not None and self.at[1] == method.rounds - 1:
            said = combine(messages, self._weights, here, method.combine)
            after = after._replace(model=self._learned(said))
        self.records.trace[self.exchange] = [row[name] for name in Trace._fields]
        self._server, self._broadcast = server, after  # last: what fails before this can be done again
        self._holds = np.array([name in self._replies for name in self.spec.agents])

    def _closed(self, answers: list[Message]) -> None:
        if answers:
            self.losses = np.stack([message.arrays[0] for message in answers]).mean(0).astype(np.float64)

    @property
    def meta(self) -> np.ndarray:
        """The meta-model as the method left it."""
        method = self.contract.method
        if method.learn is not None and not method.rounds:
            return np.asarray(self._learned(None))
        return self.contract.whole(self._broadcast.model if method.final is None else method.final(self._server))

    def _learned(self, said: Any) -> Array:
        """What a server that learns by itself makes of what all agents said."""
        agreed, seed = self.contract, jnp.uint32(self.spec.seed)
        return learn(agreed.method, agreed.model, jnp.asarray(self.start), said, seed)

    def status(self) -> dict[str, Any]:
        """Where the run stands, for people to look at, in plain values; None for what is not known."""
        done = int(np.isfinite(self.trace[:, Trace._fields.index("present")]).sum())
        row = self.trace[done - 1].tolist() if done else [np.nan] * len(Trace._fields)
        known = {name: value for name, value in zip(Trace._fields, row, strict=True) if not np.isnan(value)}
        return {
            "exchange": self.exchange,
            "round": done,
            "rounds": self.contract.method.rounds,
            "present": int(known.get("present", 0)),
            "loss": known.get("loss"),
            "spread": known.get("spread"),
            "payload_bytes": self.records.payload_bytes(),
            "joules": self.records.joules(),  # per kind
            "waiting": dict(self.waiting),
        }

    def result(self) -> bytes:
        """Everything a run folder needs, as one checked block of bytes."""
        values = {"spec": self.spec.text, "sources": self.records.sources, "skipped": self.records.skipped}
        arrays = {name: getattr(self, name) for name in _SAVED} | self.records.arrays()
        meta, begun = self.contract.rates(self._broadcast), self.exchange >= self.contract.before
        return pack(blocks.RESULT, self.spec.run, State(values, arrays | meta | ({"meta": self.meta} if begun else {})))

    def _save(self) -> State:
        values = {
            "spec": self.spec.text,
            "exchange": self.exchange,
            "recorded": self._recorded,
            "sources": self.records.sources,
        }
        arrays = {name: getattr(self, name) for name in _SAVED} | self.records.once()
        arrays |= {"pending": np.frombuffer(self._pending, np.uint8), "holds": self._holds}
        return State(values, arrays | named("server", self._server) | named("broadcast", self._broadcast))

    def _load(self, saved: State) -> None:
        self.exchange, self._recorded = saved.values["exchange"], saved.values["recorded"]
        for name in _SAVED:
            setattr(self, name, saved.arrays[name].copy())
        self.records.take(saved.arrays)
        self.records.sources = saved.values["sources"]
        self._pending, self._holds = saved.arrays["pending"].tobytes(), saved.arrays["holds"].copy()
        data = journal.read(self._rows, self._recorded) + self._pending
        try:
            rows = list(journal.decode_rows(data, self.spec.run, *self.records.row_types()))
            if [row.values["exchange"] for row in rows] != list(range(self.exchange)):
                raise blocks.BlockError(f"its rows are not those of {self.exchange} exchanges")
        except blocks.BlockError as error:
            raise refusal(self._rows, error) from None
        for row in rows:
            self.records.take_row(row)
        shapes, arrays = self.contract.shapes, saved.arrays
        self._server = rebuild(shapes.server_state, [arrays[n] for n in named("server", shapes.server_state)])
        self._broadcast = rebuild(shapes.broadcast, [arrays[n] for n in named("broadcast", shapes.broadcast)])


def _zeros(shapes: Any) -> Any:
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def _spread(answers: list[Message]) -> float:
    """Largest distance of an agent's model from their mean; NaN where agents send something else."""
    if not all(message.report.sends_model for message in answers):
        return float("nan")
    models = np.stack([message.arrays[0] for message in answers])
    return float(np.linalg.norm(models - models.mean(0), axis=-1).max())


# Compiled once per method in a process.


_start = jax.jit(start_of, static_argnums=0, compiler_options=COMPILER_OPTIONS)
_step = jax.jit(server_step, static_argnums=0, compiler_options=COMPILER_OPTIONS)


@partial(jax.jit, static_argnums=0, compiler_options=COMPILER_OPTIONS)
def _init(method: Method, start: Start, probes: Any) -> tuple[Any, Broadcast]:
    return method.init(start, probes)
