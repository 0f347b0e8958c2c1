"""The ledger: every joule of a run in a row that says what it paid for and how it is known.

Columns: method, seed, agent, round, phase, kind, source, joules, seconds, bits, flops. Conventions:

- `agent` is the agent's name, or "all" for one amount that covers all agents (a reading of a vectorised run).
- `round` is 0 before the first round (offline pretraining, the first upload of the local models), 1, 2, ... for the
  rounds, and -1 for one amount that covers all rounds together.
- `kind` is "measured" (a counter was read), "modelled" (CPU time or operation counts times a device's numbers) or
  "analytic" (a formula of the link).
- `joules` is always known. `seconds`, `bits` and `flops` are None (an empty cell) where they are not known or have no
  meaning; they are never 0 for that reason.

Sums are per kind. Adding different kinds up needs the word `mix_kinds=True`.
"""

import csv
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from fewjoule.errors import InputError, unknown

KINDS = ("measured", "modelled", "analytic")
PHASES = ("pretraining", "computation", "uplink", "downlink", "adaptation")
ALL_AGENTS = "all"
BEFORE_FIRST_ROUND = 0
ALL_ROUNDS = -1


class Row(NamedTuple):
    """One amount of energy. Units: joules, seconds, bits, floating-point operations."""

    method: str
    seed: int
    agent: str
    round: int
    phase: str
    kind: str
    source: str
    joules: float
    seconds: float | None
    bits: int | float | None
    flops: int | float | None


class Line(NamedTuple):
    """One line of `Ledger.summary`; `phase` is a phase, "without pretraining" or "with pretraining"."""

    phase: str
    kind: str
    joules: float


class Ledger:
    """Rows of energy, in the order they were added."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._rows: list[Row] = list(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and self._rows == other._rows

    def __repr__(self) -> str:
        return f"Ledger({len(self)} rows)"

    def add(
        self,
        *,
        method: str,
        seed: int,
        phase: str,
        kind: str,
        source: str,
        joules: float,
        agent: str = ALL_AGENTS,
        round: int = ALL_ROUNDS,
        seconds: float | None = None,
        bits: int | float | None = None,
        flops: int | float | None = None,
    ) -> Row:
        """Put one amount on the ledger and return its row."""
        if phase not in PHASES:
            raise unknown("phase", phase, PHASES)
        if kind not in KINDS:
            raise unknown("kind", kind, KINDS)
        if not source:
            raise InputError("source must say where the joules come from, got an empty text.")
        for what, text in (("method", method), ("agent", agent), ("source", source)):
            if "\n" in text or "\r" in text:
                raise InputError(f"{what} must be one line of text, got {text!r}.")
        if round < ALL_ROUNDS:
            raise InputError(f"round must be -1 (all), 0 (before the first) or above, got {round}.")
        row = Row(
            method=method,
            seed=int(seed),
            agent=agent,
            round=int(round),
            phase=phase,
            kind=kind,
            source=source,
            joules=float(_amount("joules", joules)),
            seconds=None if seconds is None else float(_amount("seconds", seconds)),
            bits=None if bits is None else _amount("bits", bits),
            flops=None if flops is None else _amount("flops", flops),
        )
        self._rows.append(row)
        return row

    def extend(self, rows: Iterable[Row]) -> None:
        """Put the rows of another ledger on this one."""
        self._rows.extend(rows)

    def select(
        self,
        *,
        method: str | None = None,
        seed: int | None = None,
        agent: str | None = None,
        round: int | None = None,
        phase: str | Iterable[str] | None = None,
        kind: str | None = None,
    ) -> "Ledger":
        """The rows that match everything given."""
        phases = PHASES if phase is None else (phase,) if isinstance(phase, str) else tuple(phase)
        for name in phases:
            if name not in PHASES:
                raise unknown("phase", name, PHASES)
        if kind is not None and kind not in KINDS:
            raise unknown("kind", kind, KINDS)
        return Ledger(
            row
            for row in self._rows
            if (method is None or row.method == method)
            and (seed is None or row.seed == seed)
            and (agent is None or row.agent == agent)
            and (round is None or row.round == round)
            and row.phase in phases
            and (kind is None or row.kind == kind)
        )

    def by_kind(self) -> dict[str, float]:
        """Joules of each kind that occurs."""
        sums: dict[str, list[float]] = {}
        for row in self._rows:
            sums.setdefault(row.kind, []).append(row.joules)
        return {kind: math.fsum(sums[kind]) for kind in KINDS if kind in sums}

    def total(
        self,
        *,
        method: str | None = None,
        seed: int | None = None,
        agent: str | None = None,
        round: int | None = None,
        phase: str | Iterable[str] | None = None,
        kind: str | None = None,
        mix_kinds: bool = False,
    ) -> float:
        """Joules of the matching rows. Rows of different kinds are added up only on the word `mix_kinds=True`."""
        chosen = self.select(method=method, seed=seed, agent=agent, round=round, phase=phase, kind=kind).by_kind()
        if len(chosen) > 1 and not mix_kinds:
            raise InputError(
                f"these rows are of different kinds ({', '.join(chosen)}); choose one with kind=..., or add them up "
                "knowingly with mix_kinds=True."
            )
        return math.fsum(chosen.values())

    def summary(self) -> list[Line]:
        """Joules per phase and kind, then the sums per kind with offline pretraining left out and included."""
        lines = []
        for phase in PHASES:
            lines += [Line(phase, kind, joules) for kind, joules in self.select(phase=phase).by_kind().items()]
        rest = self.select(phase=[phase for phase in PHASES if phase != "pretraining"])
        lines += [Line("without pretraining", kind, joules) for kind, joules in rest.by_kind().items()]
        lines += [Line("with pretraining", kind, joules) for kind, joules in self.by_kind().items()]
        return lines

    def split_by_agent(self, flops: Mapping[str, float]) -> "Ledger":
        """A copy in which each amount of "all" agents is shared out in proportion to the agents' operation counts.

        The shares are labelled modelled, whatever the kind of the whole: nobody measured them. The copy replaces the
        wholes, so that nothing is counted twice.
        """
        whole = math.fsum(flops.values())
        if not flops or whole <= 0 or min(flops.values()) < 0:
            raise InputError(f"flops must be numbers of at least 0, not all 0, got {dict(flops)}.")
        split = Ledger()
        for row in self._rows:
            if row.agent != ALL_AGENTS:
                split._rows.append(row)
                continue
            for agent, count in flops.items():
                split._rows.append(
                    row._replace(
                        agent=agent,
                        kind="modelled",
                        source=f"{row.source}; share of {agent} by operation counts",
                        joules=row.joules * (count / whole),
                        bits=None if row.bits is None else row.bits * (count / whole),
                        flops=None if row.flops is None else row.flops * (count / whole),
                    )
                )
        return split

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write all rows; every number is written so that it reads back as the same number."""
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(Row._fields)
            writer.writerows(self._rows)

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> "Ledger":
        """Read what `to_csv` wrote."""
        ledger = cls()
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            if tuple(header) != Row._fields:
                raise InputError(f"{path}: the first line must be {','.join(Row._fields)}, got {','.join(header)!r}.")
            for cells in reader:
                try:
                    ledger._read(cells)
                except (InputError, ValueError) as error:
                    raise InputError(f"{path}, line {reader.line_num}: {error}") from error
        return ledger

    def _read(self, cells: list[str]) -> None:
        if len(cells) != len(Row._fields):
            raise InputError(f"a row has {len(Row._fields)} cells, got {len(cells)}.")
        method, seed, agent, round_, phase, kind, source, joules, seconds, bits, flops = cells
        self.add(
            method=method,
            seed=int(seed),
            agent=agent,
            round=int(round_),
            phase=phase,
            kind=kind,
            source=source,
            joules=float(joules),
            seconds=float(seconds) if seconds else None,
            bits=_number(bits),
            flops=_number(flops),
        )


def _amount(what: str, value: int | float) -> int | float:
    if isinstance(value, bool) or not math.isfinite(value) or value < 0:
        raise InputError(f"{what} must be a finite number of at least 0, got {value}.")
    return int(value) if hasattr(value, "__index__") else float(value)


def _number(cell: str) -> int | float | None:
    if not cell:
        return None
    return int(cell) if cell.lstrip("-").isdecimal() else float(cell)
