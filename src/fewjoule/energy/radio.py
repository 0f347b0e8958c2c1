"""Charging a run's radio to the ledger, from plain numbers.

Rows are one per agent and round, so that a report can show cost against rounds: 20 methods x 5 seeds x 3 agents x 500
rounds are 150 000 rows (14 MB, charged and written in under two seconds). `per_round=False` writes one row per agent
with the sum over its rounds (round -1) where that is too much.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fewjoule.energy.ledger import ALL_ROUNDS, BEFORE_FIRST_ROUND, Ledger
from fewjoule.energy.links import Link
from fewjoule.errors import InputError


def charge_uplink(
    ledger: Ledger,
    link: Link,
    *,
    method: str,
    seed: int,
    agents: Sequence[str],
    rounds: int,
    bits_per_message: Any,
    first_bits: Any = None,
    per_round: bool = True,
) -> None:
    """Charge every agent's messages to the server.

    `bits_per_message` is one number, one per round, or [rounds, agents]; an agent that sent nothing has 0 there and
    gets no row. `first_bits` (one number, or one per agent) is the upload of the local models before the first round;
    it is charged in its own rows, round 0.
    """
    _charge("uplink", ledger, link, method, seed, agents, rounds, bits_per_message, first_bits, per_round)


def charge_downlink(
    ledger: Ledger,
    link: Link,
    *,
    method: str,
    seed: int,
    agents: Sequence[str],
    rounds: int,
    bits_per_message: Any,
    first_bits: Any = None,
    per_round: bool = True,
) -> None:
    """Charge every agent for receiving the server's messages; the server's own power is not an agent's cost.

    The numbers are as in `charge_uplink`; `first_bits` is a broadcast before the first round.
    """
    _charge("downlink", ledger, link, method, seed, agents, rounds, bits_per_message, first_bits, per_round)


def _charge(
    phase: str,
    ledger: Ledger,
    link: Link,
    method: str,
    seed: int,
    agents: Sequence[str],
    rounds: int,
    bits_per_message: Any,
    first_bits: Any,
    per_round: bool,
) -> None:
    if rounds < 0:
        raise InputError(f"rounds must be at least 0, got {rounds}.")
    if isinstance(agents, str) or len(set(agents)) != len(agents):
        raise InputError(f"agents must be a list of different names, got {agents!r}.")
    table = _table(bits_per_message, rounds, len(agents))
    cost = link.energy_joules if phase == "uplink" else link.receive_joules
    time = link.seconds if phase == "uplink" else link.receive_seconds
    costs: dict[int | float, tuple[float, float]] = {}

    def priced(bits: int | float) -> tuple[float, float]:
        if bits not in costs:
            costs[bits] = (cost(bits), time(bits))
        return costs[bits]

    def add(agent: str, round_: int, joules: float, seconds: float, bits: int | float) -> None:
        ledger.add(
            method=method,
            seed=seed,
            agent=agent,
            round=round_,
            phase=phase,
            kind="analytic",
            source=f"link {link.name}",
            joules=joules,
            seconds=seconds,
            bits=bits,
        )

    if first_bits is not None:
        for agent, bits in zip(agents, _table(first_bits, len(agents), 1)[:, 0].tolist(), strict=True):
            if bits:
                add(agent, BEFORE_FIRST_ROUND, *priced(bits), bits)
    if per_round:
        for number, row in enumerate(table.tolist(), start=1):
            for agent, bits in zip(agents, row, strict=True):
                if bits:
                    add(agent, number, *priced(bits), bits)
        return
    for agent, column in zip(agents, table.T.tolist(), strict=True):
        if any(column):
            prices = [priced(bits) for bits in column if bits]
            add(agent, ALL_ROUNDS, sum(j for j, _ in prices), sum(s for _, s in prices), sum(column))


def _table(bits: Any, rows: int, columns: int) -> np.ndarray:
    array = np.asarray(bits)
    if array.dtype.kind not in "iuf":
        raise InputError(f"bits must be numbers, got {bits!r}.")
    if array.ndim == 1:
        array = array[:, None]
    try:
        return np.broadcast_to(array, (rows, columns))
    except ValueError:
        raise InputError(
            f"bits must be one number, one per row or [{rows}, {columns}], got the shape {np.shape(bits)}."
        ) from None
