"""What the server keeps of every agent in every exchange: tables of numbers, saved with its state and its result."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fewjoule.federation.wire import METER_KINDS, AgentReport

REPORTED = ("loss", "distance", "active", "joules", "seconds", "bytes_sent", "bytes_received")
COLUMNS = (
    "present", *REPORTED, "kind", "source", "payload_up", "payload_down", "charged_up", "charged_down"
)  # fmt: skip
"""Of the table; `kind` and `source` are positions in `METER_KINDS` and in `Records.sources`."""


@dataclass
class Records:
    """NaN stands for what is not known, and for agents that were absent."""

    table: np.ndarray  # [exchanges, agents, columns]
    pretraining: np.ndarray  # [agents, 4]: joules, seconds, kind, source
    baseline: np.ndarray  # [agents, 2]: network bytes sent and received before the first exchange
    sources: list[str] = field(default_factory=list)

    @classmethod
    def empty(cls, exchanges: int, agents: int) -> "Records":
        table = np.full((exchanges, agents, len(COLUMNS)), np.nan)
        return cls(table, np.full((agents, 4), np.nan), np.full((agents, 2), np.nan))

    @classmethod
    def load(cls, arrays: Mapping[str, np.ndarray], sources: list[str]) -> "Records":
        return cls(arrays["table"].copy(), arrays["pretraining"].copy(), arrays["baseline"].copy(), sources)

    def arrays(self) -> dict[str, np.ndarray]:
        """What `load` takes."""
        return {"table": self.table, "pretraining": self.pretraining, "baseline": self.baseline}

    def column(self, name: str) -> np.ndarray:
        """[exchanges, agents]"""
        return self.table[..., COLUMNS.index(name)]

    def note_agreement(self, agent: int, report: AgentReport) -> None:
        """What the agent's offline training cost, the first time it says so."""
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

    def joules(self) -> dict[str, float]:
        """By kind, offline training included; kinds with nothing are left out."""
        amounts = np.concatenate([self.column("joules").ravel(), self.pretraining[:, 0]])
        kinds = np.concatenate([self.column("kind").ravel(), self.pretraining[:, 2]])
        sums = {kind: float(np.nansum(amounts[kinds == code])) for code, kind in enumerate(METER_KINDS) if kind}
        return {kind: amount for kind, amount in sums.items() if amount}

    def _kind_and_source(self, report: AgentReport) -> tuple[int, int]:
        if report.source not in self.sources:
            self.sources.append(report.source)
        return METER_KINDS.index(report.kind), self.sources.index(report.source)
