"""The ledger: every joule of a run in a row that says what it paid for and how it is known.

Columns: method, seed, agent, round, phase, kind, source, joules, seconds, bits, flops. Conventions:

- `agent` is the agent's name, "all" for one amount that covers all agents (a reading of a vectorised run), or "server"
  for what the server learns by itself (phase "server").
- `round` is 0 before the first round (offline pretraining, the first upload of the local models), 1, 2, ... for the
  rounds, and -1 for one amount that covers all rounds together.
- `kind` is "measured" (a counter was read), "modelled" (CPU time or operation counts times a device's numbers) or
  "analytic" (a formula of the link).
- `joules` is always known. `seconds`, `bits` and `flops` are None (an empty cell) where they are not known or have no
  meaning; they are never 0 for that reason.

Sums are per kind. Adding different kinds up needs the word `mix_kinds=True`.
"""

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, get_args

from fewjoule.energy import show
from fewjoule.energy.limits import AMOUNT, amount
from fewjoule.errors import InputError, unknown
from fewjoule.files import read_csv, write_csv
from fewjoule.tasks.samples import ALL_AGENTS

Kind = Literal["measured", "modelled", "analytic"]
Phase = Literal["pretraining", "computation", "uplink", "downlink", "server", "adaptation"]
KINDS: tuple[str, ...] = get_args(Kind)
PHASES: tuple[str, ...] = get_args(Phase)
TRAINING = ("computation", "uplink", "downlink")
"""The phases that the agents pay for; pretraining (the local models exist already) and adaptation stand apart."""
WITH_SERVER = (*TRAINING, "server")
"""The same with what the server learns by itself, on mains power. Totals are shown with and without it."""
SERVER = "server"
"""The name that stands for the server where an agent's would."""
RADIO = ("uplink", "downlink")
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


class Spent(NamedTuple):
    """What a method spent in one phase, as known in one way: means over the seeds, all agents together.

    `seconds` is the time that passes. What nobody knows is None. `sources` are in the order of the ledger.
    """

    method: str
    phase: str
    kind: str
    joules: float
    seconds: float | None
    bits: float | None
    flops: float | None
    sources: tuple[str, ...]


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
        return f"{self._caption()}\n{show.text_table(show.HEADER, show.cells(self.spent(seeds=self._seeds())))}"

    def _repr_html_(self) -> str:
        return show.html_table(show.HEADER, show.cells(self.spent(seeds=self._seeds())), self._caption())

    def plot(self) -> Any:
        """Joules by method and phase, per seed: an Altair chart."""
        return show.chart(self.spent(seeds=self._seeds()))

    def _seeds(self) -> int:
        return len({row.seed for row in self._rows}) or 1

    def _caption(self) -> str:
        seeds = self._seeds()
        each = f", means over {seeds} seeds" if seeds > 1 else ""
        whole = " + ".join(f"{show.si_text(j / seeds, 'J')} {kind}" for kind, j in self.by_kind().items())
        return f"Ledger of {len(self)} rows{each}: {whole or 'nothing spent'}"

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
        _check_name("phase", phase)
        _check_name("kind", kind)
        if not source:
            raise InputError("source must say where the joules come from, got an empty text.")
        for what, text in (("method", method), ("agent", agent), ("source", source)):
            if "\n" in text or "\r" in text:
                raise InputError(f"{what} must be one line of text, got {text!r}.")
        if round < ALL_ROUNDS:
            raise InputError(f"round must be -1 (all), 0 (before the first) or above, got {round}.")
        row = Row(
            method, int(seed), agent, int(round), phase, kind, source,
            joules=amount("joules", joules),
            seconds=None if seconds is None else amount("seconds", seconds),
            bits=None if bits is None else _count("bits", bits),
            flops=None if flops is None else _count("flops", flops),
        )  # fmt: skip
        self._rows.append(row)
        return row

    def add_reading(
        self, reading: Mapping[str, Any], *, phase: str, shares: int = 1, of: str | None = None, **fields: Any
    ) -> Row:
        """Put a meter's reading (joules, seconds, kind, source) over all agents and rounds on the ledger.

        One of `shares` equal parts, where the reading covers several seeds or new tasks; `of` names what they are, and
        the source says it. The other `fields` are those of `add`: method, seed, and the flops of the part.
        """
        return self.add(
            phase=phase,
            round=BEFORE_FIRST_ROUND if phase == "pretraining" else ALL_ROUNDS,
            kind=reading["kind"],
            source=reading["source"] + (f"; one reading shared by {shares} {of}s" if of else ""),
            joules=reading["joules"] / shares,
            seconds=reading["seconds"] / shares,
            **fields,
        )

    def select(self, **wanted: Any) -> "Ledger":
        """The rows that match every column given, which may be any up to `kind`; `phase` may be several phases.

        None is as good as not given.
        """
        for column in wanted:
            if column not in _CHOSEN_BY:
                raise unknown("column", column, _CHOSEN_BY)
        chosen = {column: [value] for column, value in wanted.items() if value is not None}
        if "phase" in chosen and not isinstance(wanted["phase"], str):
            chosen["phase"] = list(wanted["phase"])
        for column in _NAMES:
            for name in chosen.get(column, ()):
                _check_name(column, name)
        return Ledger(row for row in self._rows if all(getattr(row, column) in chosen[column] for column in chosen))

    def by_kind(self) -> dict[str, float]:
        """Joules of each kind that occurs."""
        sums = {kind: [row.joules for row in self._rows if row.kind == kind] for kind in KINDS}
        return {kind: math.fsum(joules) for kind, joules in sums.items() if joules}

    def by_agent(self) -> dict[str, dict[str, float]]:
        """Joules of each agent by kind; an amount of all agents together stands under "all"."""
        agents = dict.fromkeys(row.agent for row in self._rows)
        return {agent: self.select(agent=agent).by_kind() for agent in agents}

    def total(self, *, mix_kinds: bool = False, **wanted: Any) -> float:
        """Joules of the rows that `select` gives, of different kinds only on the word `mix_kinds=True`."""
        chosen = self.select(**wanted).by_kind()
        if len(chosen) > 1 and not mix_kinds:
            raise InputError(
                f"these rows are of different kinds ({', '.join(chosen)}); choose one with kind=..., or add them up "
                "knowingly with mix_kinds=True."
            )
        return math.fsum(chosen.values())

    def spent(self, *, seeds: int = 1) -> list[Spent]:
        """What each method spent by phase and kind, as means over `seeds`, in the order of `PHASES` and `KINDS`.

        Agents work and send at the same time, each in a band of its own, so a round takes as long as its slowest agent.
        """
        groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
        for row in self._rows:
            groups[row.method, row.phase, row.kind].append(row)
        methods = dict.fromkeys(row.method for row in self._rows)
        keys = [(method, phase, kind) for method in methods for phase in PHASES for kind in KINDS]
        return [_spent(key, groups[key], seeds) for key in keys if key in groups]

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
                share, source = count / whole, f"{row.source}; share of {agent} by operation counts"
                bits, operations = (None if value is None else value * share for value in (row.bits, row.flops))
                part = row._replace(agent=agent, kind="modelled", source=source, joules=row.joules * share)
                split._rows.append(part._replace(bits=bits, flops=operations))
        return split

    def to_csv(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write all rows, whole or not at all, so that every number reads back as the same number.

        An existing file is refused unless `force` says to replace it.
        """
        write_csv(os.fspath(path), Row._fields, self._rows, force=force)

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> "Ledger":
        """Read what `to_csv` wrote."""
        ledger = cls()
        for line, cells in read_csv(os.fspath(path), Row._fields):
            try:
                ledger.add(**_fields(cells))
            except (ValueError, OverflowError) as error:
                raise InputError(f"{path}, line {line}: {error}") from error
        return ledger


def _spent(key: tuple[str, str, str], rows: list[Row], seeds: int) -> Spent:
    def mean(amounts: Iterable[float | None]) -> float | None:
        known = [amount for amount in amounts if amount is not None]
        return math.fsum(known) / seeds if known else None

    times: dict[tuple[int, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        if row.seconds is not None:
            times[row.seed, row.round][row.agent] += row.seconds
    return Spent(
        *key,
        joules=math.fsum(row.joules for row in rows) / seeds,
        seconds=mean(max(agents.values()) for agents in times.values()),
        bits=mean(row.bits for row in rows),
        flops=mean(row.flops for row in rows),
        sources=tuple(dict.fromkeys(row.source for row in rows)),
    )


def _check_name(column: str, name: str) -> None:
    if name not in _NAMES[column]:
        raise unknown(column, name, _NAMES[column])


def _count(what: str, value: int | float) -> int | float:
    """A checked amount that stays a whole number where it is one."""
    AMOUNT.check(what, value)
    return int(value) if hasattr(value, "__index__") else float(value)


def _fields(cells: Mapping[str, str]) -> dict[str, Any]:
    """A line of the file as `add` takes it."""
    return {name: _CELLS.get(name, str)(cell) for name, cell in cells.items() if cell or name not in _MAY_BE_EMPTY}


def _number(cell: str) -> int | float:
    return int(cell) if cell.lstrip("-").isdecimal() else float(cell)


_CHOSEN_BY = Row._fields[: Row._fields.index("source")]
_NAMES = {"phase": PHASES, "kind": KINDS}
_CELLS: dict[str, Callable[[str], Any]] = {
    "seed": int, "round": int, "joules": float, "seconds": float, "bits": _number, "flops": _number,
}  # fmt: skip
_MAY_BE_EMPTY = ("seconds", "bits", "flops")
