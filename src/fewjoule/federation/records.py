"""What the server keeps of every agent in every exchange: tables of numbers, written row by row, one per exchange."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from typing_extensions import TypedDict  # pydantic takes typing's from Python 3.12 on

from fewjoule.federation import blocks
from fewjoule.federation.blocks import Form
from fewjoule.federation.state import State
from fewjoule.federation.wire import METER_KINDS, AgentReport
from fewjoule.simulation.run import Trace

REPORTED = ("loss", "distance", "active", "joules", "seconds", "bytes_sent", "bytes_received")
COLUMNS = (
    "present", *REPORTED, "kind", "source", "payload_up", "payload_down", "charged_up", "charged_down"
)  # fmt: skip
"""Of the table; `kind` and `source` are positions in `METER_KINDS` and in `Records.sources`."""
_BY_EXCHANGE = ("table", "trace", "seconds")
_ONCE = ("pretraining", "baseline", "agreement")
SOURCES_PER_AGENT = 4
_MANY = "a source that changes again and again"


class Skipped(TypedDict):
    """Who was left out of an exchange, and why; rounds count as in the ledger, from 1."""

    exchange: str
    round: int
    agent: str
    reason: str


class Records:
    """NaN stands for what is not known, and for agents that were absent."""

    def __init__(self, exchanges: int, agents: int) -> None:
        self.table = np.full((exchanges, agents, len(COLUMNS)), np.nan)
        self.trace = np.full((exchanges, len(Trace._fields)), np.nan)  # known for rounds
        self.seconds = np.full((exchanges, 1), np.nan)  # of every exchange, from the end of the one before
        self.pretraining = np.full((agents, 4), np.nan)  # joules, seconds, kind, source
        self.baseline = np.full((agents, 2), np.nan)  # network bytes sent and received before the first exchange
        self.agreement = np.zeros((agents, 2))  # payload bytes up and down, each time that the agent was asked to agree
        self.sources: list[str] = []
        self._skipped: dict[int, list[Skipped]] = {}

    @property
    def skipped(self) -> list[Skipped]:
        return [one for each in self._skipped.values() for one in each]

    def skip(self, exchange: int, name: str, round: int, absent: dict[str, str]) -> None:
        """Who was left out of an exchange of this name, and why."""
        if absent:
            self._skipped[exchange] = [
                {"exchange": name, "round": round, "agent": agent, "reason": why} for agent, why in absent.items()
            ]

    def once(self) -> dict[str, np.ndarray]:
        """What does not grow with the exchanges."""
        return {name: getattr(self, name) for name in _ONCE}

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in (*_BY_EXCHANGE, *_ONCE)}

    def take(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Have these arrays, as `once` or `arrays` gave them."""
        for name in (*_BY_EXCHANGE, *_ONCE):
            if name in arrays:
                setattr(self, name, arrays[name].copy())

    def row(self, exchange: int) -> State:
        values = {"exchange": exchange, "skipped": self._skipped.get(exchange, [])}
        return State(values, {name: getattr(self, name)[exchange] for name in _BY_EXCHANGE})

    def row_types(self) -> tuple[dict[str, Any], dict[str, Form]]:
        """What `take_row` needs: the types of a row's values and the forms of its arrays."""
        forms = {name: blocks.form_of(getattr(self, name)[0]) for name in _BY_EXCHANGE}
        return {"exchange": int, "skipped": list[Skipped]}, forms

    def take_row(self, row: State) -> None:
        exchange = row.values["exchange"]
        for name in _BY_EXCHANGE:
            getattr(self, name)[exchange] = row.arrays[name]
        self._skipped[exchange] = row.values["skipped"]

    def column(self, name: str) -> np.ndarray:
        """[exchanges, agents]"""
        return self.table[..., COLUMNS.index(name)]

    def note_agreement(self, agent: int, report: AgentReport, payload: tuple[int, int]) -> None:
        """What agreeing moved (`payload` is the length of the answer and of the spec), and, the first time, what the
        agent's offline training cost and its counters: later they hold what the run itself has moved."""
        self.agreement[agent] += payload
        if np.isnan(self.baseline[agent, 0]):
            self.baseline[agent] = (report.bytes_sent, report.bytes_received)
        if np.isnan(self.pretraining[agent, 0]) and report.kind:
            self.pretraining[agent] = (report.joules, report.seconds, *self._kind_and_source(report))

    def note(
        self, exchange: int, agent: int, report: AgentReport, payload: tuple[int, int], charged_down: float
    ) -> None:
        """One agent's answer; `payload` is its length and that of the request."""
        told = [getattr(report, name) for name in REPORTED]
        charged = (report.charged_bytes, charged_down)
        self.table[exchange, agent] = (1, *told, *self._kind_and_source(report), *payload, *charged)

    def payload_bytes(self) -> int:
        """Of all messages so far, both ways."""
        table = np.nansum(self.column("payload_up")) + np.nansum(self.column("payload_down"))
        return int(table + self.agreement.sum())

    def joules(self) -> dict[str, float]:
        """By kind, offline training included; kinds with nothing are left out."""
        amounts = np.concatenate([self.column("joules").ravel(), self.pretraining[:, 0]])
        kinds = np.concatenate([self.column("kind").ravel(), self.pretraining[:, 2]])
        sums = {kind: float(np.nansum(amounts[kinds == code])) for code, kind in enumerate(METER_KINDS) if kind}
        return {kind: amount for kind, amount in sums.items() if amount}

    def _kind_and_source(self, report: AgentReport) -> tuple[int, int]:
        source = report.source
        if source not in self.sources:
            if len(self.sources) >= SOURCES_PER_AGENT * len(self.baseline):  # an agent that names a new one every round
                source = _MANY
            self.sources += [source] if source not in self.sources else []
        return METER_KINDS.index(report.kind), self.sources.index(source)
