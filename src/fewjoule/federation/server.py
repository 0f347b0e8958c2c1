"""The server's side of a run: what to ask next, what came back, and the state on disk after every complete exchange.

The exchanges of a run stand in a plan: upload of the local models, probe, the rounds, and the close, in which agents
get the meta-model and report their losses. Only complete exchanges count; after a kill the last incomplete one is asked
again, and agents that had answered it answer with the same bytes.
"""

import math
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.errors import InputError
from fewjoule.federation import wire
from fewjoule.federation.spec import Spec, contract, leaves, rebuild, sent
from fewjoule.federation.state import RESULT, SERVER, State, pack, read_state, write_state
from fewjoule.federation.wire import Message, Reading
from fewjoule.methods.method import Broadcast, Method, Start
from fewjoule.models.model import Model
from fewjoule.randomness import agent_id, key_for
from fewjoule.simulate.rules import start_of

COLUMNS = (
    "present", "loss", "distance", "active", "joules", "seconds", "bytes_sent", "bytes_received", "kind", "source",
    "payload_up", "payload_down", "charged_up", "charged_down",
)  # fmt: skip
"""What is kept of every agent in every exchange; `kind` and `source` are positions in lists."""

TRACE = ("loss", "spread", "step", "radius", "active", "present")


class Progress(NamedTuple):
    """Where a run stands, for people to look at."""

    exchange: int
    exchanges: int
    round: int
    rounds: int
    present: int
    loss: float
    spread: float
    payload_bytes: int
    joules: dict[str, float]  # per kind


class ServerRunner:
    """The server of one run, continuing from the state in `folder` if there is one."""

    def __init__(self, spec: Spec, folder: Path) -> None:
        self.spec, self.contract = spec, contract(spec)
        self._path = folder / spec.run.hex() / "server.state"
        self._replies: dict[str, Message] = {}
        self._lengths: dict[str, int] = {}
        self._request, self._began = b"", 0.0
        saved = read_state(self._path, SERVER, spec.run)
        if saved is None:
            self._begin()
        else:
            self._load(saved)

    def _begin(self) -> None:
        plan, agents = len(self.contract.plan), len(self.spec.agents)
        self.exchange = 0
        self.table = np.full((plan, agents, len(COLUMNS)), np.nan)
        self.seconds = np.full(plan, np.nan)  # of every exchange, from the end of the one before
        self.trace = np.full((self.contract.method.rounds, len(TRACE)), np.nan)
        self.pretraining = np.full((agents, 4), np.nan)  # joules, seconds, kind, source
        self.baseline = np.full((agents, 2), np.nan)  # network bytes sent and received before the first exchange
        self.sources: list[str] = []
        self.skipped: list[dict[str, Any]] = []
        self.start: np.ndarray | None = None
        self.losses: list[float] = []
        self._server: Any = None
        self._broadcast: Broadcast | None = None
        if self.contract.method.start == "random":
            nobody = jnp.zeros((agents, self.contract.model.size))
            self._set_start(self._start_of(nobody))

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
        if self.at[0] == wire.UPLOAD and isinstance(self.contract.method.start, int):
            agents = (agents[self.contract.method.start],)
        return tuple(name for name in agents if name not in self._replies)

    def request(self) -> bytes:
        """The message that every agent gets in the exchange at hand; always the same bytes."""
        if not self._request:
            self._began = self._began or time.perf_counter()
            self._request = self._encoded()
        return self._request

    def _encoded(self) -> bytes:
        kind, round = self.at
        arrays: tuple[np.ndarray, ...] = ()
        if kind == wire.ROUND:
            assert self._broadcast is not None
            arrays = leaves(sent(self._broadcast))
        elif kind == wire.PROBE:
            assert self.start is not None
            arrays = (self.start,)
        elif kind == wire.CLOSE:
            assert self.start is not None
            arrays = (self.meta, self.start)
        return wire.encode(Message(kind, self.spec.run, round, 0, arrays))

    def accept_agreement(self, name: str, data: bytes) -> None:
        """Note what the agent's offline training cost, the first time it says so."""
        message = wire.decode(
            data, kind=wire.AGREE, run=self.spec.run, forms=(), round=0, agent=agent_id(name)
        )  # fmt: skip
        row = self.spec.agents.index(name)
        reading = message.reading
        self.baseline[row] = (reading.bytes_sent, reading.bytes_received)
        if np.isnan(self.pretraining[row, 0]) and reading.kind:
            self.pretraining[row] = (reading.joules, reading.seconds, *self._kind_and_source(reading))

    def accept(self, name: str, data: bytes) -> None:
        """Take one agent's answer, or `MessageError` with the reason. A repeated one is ignored."""
        if name in self._replies:
            return
        kind, round = self.at
        forms = self.contract.reply_forms(kind)
        message = wire.decode(data, kind=kind, run=self.spec.run, forms=forms, round=round, agent=agent_id(name))
        message = message._replace(arrays=self._decoded(kind, message.arrays))
        if kind != wire.CLOSE:  # a loss that overflowed is news, not an attack
            values = sum(a.size for a in message.arrays)
            wire.check_values(message.arrays, self.spec.largest_rms * float(np.sqrt(values)))
        self._replies[name], self._lengths[name] = message, len(data)

    def _decoded(self, kind: int, arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        """What the codecs make of coded arrays."""
        try:
            if kind == wire.ROUND and self.contract.codec is not None:
                shapes = [tuple(leaf.shape) for leaf in jax.tree.leaves(self.contract.message)]
                return tuple(
                    self.contract.codec.decode(array.tobytes(), math.prod(shape)).reshape(shape)
                    for array, shape in zip(arrays, shapes, strict=True)
                )
            if kind == wire.UPLOAD and self.contract.first_codec is not None:
                change = self.contract.first_codec.decode(arrays[0].tobytes(), self.contract.model.size)
                return (np.asarray(self.contract.model.init(key_for(self.spec.seed, "start"))) + change,)
        except InputError as error:
            raise wire.MessageError(str(error)) from None
        return arrays

    def finish(self, absent: dict[str, str]) -> None:
        """Close the exchange with the answers there are, write the state and go on to the next one.

        `absent` gives the reason for every agent that is left out.
        """
        kind, round = self.at
        present = [name for name in self.spec.agents if name in self._replies]
        self._note(kind, present, len(self.request()))
        for name, reason in absent.items():
            self.skipped.append({"exchange": wire.KINDS[kind], "round": round, "agent": name, "reason": reason})
        {
            wire.UPLOAD: self._uploaded,
            wire.PROBE: self._probed,
            wire.ROUND: self._rounded,
            wire.CLOSE: self._closed,
        }[kind](present)
        now = time.perf_counter()
        self.seconds[self.exchange], self._began = now - self._began, now
        self.exchange += 1
        self._replies, self._request = {}, b""
        write_state(self._path, SERVER, self.spec.run, self._save())

    def _uploaded(self, present: list[str]) -> None:
        models = [self._replies[name].arrays[0] for name in present]
        if isinstance(self.contract.method.start, int):  # one agent's model stands for all, at every position
            models = models * len(self.spec.agents)
        self._set_start(self._start_of(jnp.asarray(np.stack(models))))

    def _start_of(self, models: Any) -> Start:
        return _start(self.contract.method, self.contract.model, models, jnp.uint32(self.spec.seed))

    def _set_start(self, start: Start) -> None:
        self.start, self._spread = np.asarray(start.model), np.asarray(start.spread, np.float32)
        if self.contract.method.probe is None:
            self._server, self._broadcast = _init(self.contract.method, start, None)

    def _probed(self, present: list[str]) -> None:
        rows = [rebuild(self.contract.probe, self._replies[name].arrays) for name in present]
        probes = jax.tree.map(lambda *each: jnp.stack(each), *rows)
        common = self.contract.model.init(key_for(self.spec.seed, "start"))
        start = Start(jnp.asarray(self.start), jnp.asarray(self._spread), common)
        self._server, self._broadcast = _init(self.contract.method, start, probes)

    def _rounded(self, present: list[str]) -> None:
        assert self._broadcast is not None
        nothing = [np.zeros(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(self.contract.message)]
        rows = [self._replies[n].arrays if n in self._replies else nothing for n in self.spec.agents]
        stacked = [np.stack(each) for each in zip(*rows, strict=True)]
        messages = jax.tree.unflatten(jax.tree.structure(self.contract.message), stacked)
        here = None if len(present) == len(self.spec.agents) else [name in self._replies for name in self.spec.agents]
        before = self._broadcast
        self._server, self._broadcast = _step(
            self.contract.method, self._server, messages, None if here is None else jnp.asarray(here)
        )
        readings = [self._replies[name].reading for name in present]
        radius = float(before.scalars) if isinstance(before.scalars, jax.Array | np.ndarray) else np.nan
        self.trace[self.at[1]] = (
            np.mean([r.loss for r in readings]),
            self._spread_of(present),
            np.linalg.norm(np.asarray(self._broadcast.model) - np.asarray(before.model)),
            radius,
            np.mean([r.active for r in readings]),
            len(present),
        )

    def _spread_of(self, present: list[str]) -> float:
        """Largest distance of an agent's model from their mean; NaN where agents send something else."""
        if not all(self._replies[name].reading.sends_model for name in present):
            return float("nan")
        models = np.stack([self._replies[name].arrays[0] for name in present])
        return float(np.linalg.norm(models - models.mean(0), axis=-1).max())

    def _closed(self, present: list[str]) -> None:
        pairs = np.stack([self._replies[name].arrays[0] for name in present])
        self.losses = [float(v) for v in pairs.mean(0)]  # at the meta-model, at the start

    def _note(self, kind: int, present: Iterable[str], asked: int) -> None:
        for name in present:
            message = self._replies[name]
            r = message.reading
            code, source = self._kind_and_source(r)
            answered = self._lengths[name]
            self.table[self.exchange, self.spec.agents.index(name)] = (
                1, r.loss, r.distance, r.active, r.joules, r.seconds, r.bytes_sent, r.bytes_received, code, source,
                answered, asked, r.charged_bytes, self._charged_down(kind),
            )  # fmt: skip

    def _charged_down(self, kind: int) -> float:
        """Bytes that the link model charges an agent for receiving, by the simulator's rule."""
        if kind == wire.PROBE:
            return 4.0 * self.contract.model.size  # where the probe is taken
        if kind != wire.ROUND:
            return 0.0  # handing out the meta-model is not part of a run's cost
        assert self._broadcast is not None
        coded, method = self._broadcast.size_bytes, self.contract.method
        known = method.start == "random" or (method.probe is not None and coded is None)
        model = 4.0 * self.contract.model.size if coded is None else float(coded)
        return (0.0 if known and self.at[1] == 0 else model) + 4.0 * sum(
            a.size for a in leaves(self._broadcast.scalars)
        )

    def _kind_and_source(self, reading: Reading) -> tuple[int, int]:
        if reading.source not in self.sources:
            self.sources.append(reading.source)
        return wire.METER_KINDS.index(reading.kind), self.sources.index(reading.source)

    @property
    def meta(self) -> np.ndarray:
        """The meta-model as the method left it."""
        assert self._broadcast is not None
        final = self.contract.method.final
        return np.asarray(self._broadcast.model if final is None else final(self._server))

    def progress(self) -> Progress:
        rounds = self.contract.method.rounds
        done = int(np.isfinite(self.trace[:, 5]).sum())
        loss, spread, present = (self.trace[done - 1, i] if done else np.nan for i in (0, 1, 5))
        joules = {}
        for code, kind in enumerate(wire.METER_KINDS):
            if kind:
                amount = np.nansum(np.where(self.table[:, :, 8] == code, self.table[:, :, 4], 0))
                amount += np.nansum(np.where(self.pretraining[:, 2] == code, self.pretraining[:, 0], 0))
                if amount:
                    joules[kind] = float(amount)
        payload = int(np.nansum(self.table[:, :, 10:12]))
        plan = len(self.contract.plan)
        here = 0 if np.isnan(present) else int(present)
        return Progress(self.exchange, plan, done, rounds, here, float(loss), float(spread), payload, joules)

    def result(self) -> bytes:
        """Everything a run folder needs, as one checked block of bytes."""
        saved = self._save()
        meta = {"meta": self.meta} if self._broadcast is not None else {}
        return pack(RESULT, self.spec.run, State(saved.values, saved.arrays | meta))

    def _save(self) -> State:
        values = {
            "exchange": self.exchange,
            "seed": self.spec.seed,
            "sources": self.sources,
            "skipped": self.skipped,
            "losses": [repr(v) for v in self.losses],
            "begun": self._broadcast is not None,
            "spec": self.spec.text(),
        }
        arrays = {
            "table": self.table,
            "trace": self.trace,
            "pretraining": self.pretraining,
            "baseline": self.baseline,
            "seconds": self.seconds,
        }
        if self.start is not None:
            arrays |= {"start": self.start, "spread": self._spread}
        if self._broadcast is not None:
            arrays |= {f"server{i}": a for i, a in enumerate(leaves(self._server))}
            arrays |= {f"broadcast{i}": a for i, a in enumerate(leaves(self._broadcast))}
        return State(values, arrays)

    def _load(self, saved: State) -> None:
        self._begin()
        self.exchange = int(saved.values["exchange"])
        self.sources, self.skipped = list(saved.values["sources"]), list(saved.values["skipped"])
        self.losses = [float(v) for v in saved.values["losses"]]
        self.table, self.trace = saved.arrays["table"].copy(), saved.arrays["trace"].copy()
        self.seconds = saved.arrays["seconds"].copy()
        self.pretraining, self.baseline = saved.arrays["pretraining"].copy(), saved.arrays["baseline"].copy()
        if "start" in saved.arrays:
            self.start, self._spread = saved.arrays["start"], saved.arrays["spread"]
        if saved.values["begun"]:
            count = len(jax.tree.leaves(self.contract.server_state))
            self._server = rebuild(self.contract.server_state, [saved.arrays[f"server{i}"] for i in range(count)])
            count = len(jax.tree.leaves(self.contract.broadcast))
            self._broadcast = rebuild(self.contract.broadcast, [saved.arrays[f"broadcast{i}"] for i in range(count)])


# Compiled once per method in a process.


@partial(jax.jit, static_argnums=(0, 1))
def _start(method: Method, model: Model, models: Array, seed: Array) -> Start:
    return start_of(method, model, models, seed)


@partial(jax.jit, static_argnums=0)
def _init(method: Method, start: Start, probes: Any) -> tuple[Any, Broadcast]:
    return method.init(start, probes)


@partial(jax.jit, static_argnums=0)
def _step(method: Method, state: Any, messages: Any, here: Array | None) -> tuple[Any, Broadcast]:
    """The method's step with the mean over those present, taken by the same operations as in the simulator."""

    def over_present(each: Array) -> Array:
        if here is None:
            return each.mean(0)
        kept = jnp.where(here.reshape((-1,) + (1,) * (each.ndim - 1)), each, 0)
        return kept.sum(0) / jnp.maximum(here.astype(jnp.float32).sum(), 1)

    return method.server(state, jax.tree.map(over_present, messages))
