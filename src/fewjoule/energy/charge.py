"""What goes on a ledger by a formula: every agent's messages on a link, and the server's own arithmetic on a device."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fewjoule.energy.ledger import ALL_ROUNDS, BEFORE_FIRST_ROUND, SERVER, Ledger
from fewjoule.energy.links import Link, knows_receiving
from fewjoule.energy.meters import Device
from fewjoule.errors import InputError
from fewjoule.tasks.samples import ALL_AGENTS


def charge_radio(
    ledger: Ledger,
    link: Link,
    *,
    method: str,
    seed: int,
    agents: Sequence[str],
    uplink_bits: Any,
    downlink_bits: Any = None,
    per_round: bool = True,
) -> None:
    """Charge every agent for its messages to the server and, where the link knows that cost, for receiving.

    Bits are [rounds + 1, agents] as in `Run.uplink_bits`, or [rounds + 1] for the same of every agent. Row 0 is before
    the first round (the upload of the local models). An agent that sent nothing has 0 there and gets no row. The
    server's own power is not an agent's cost. A row stands for one agent and round; `per_round=False` sums an agent's
    rounds up to one row (round -1), where 150 000 rows (14 MB for 20 methods, 5 seeds, 3 agents, 500 rounds) are too
    many.
    """
    if isinstance(agents, str) or len(set(agents)) != len(agents):
        raise InputError(f"agents must be a list of different names, got {agents!r}.")
    directions = [("uplink", uplink_bits, link.energy_joules, link.seconds)]
    if downlink_bits is not None and knows_receiving(link):
        directions.append(("downlink", downlink_bits, link.receive_joules, link.receive_seconds))
    for phase, bits, energy, time in directions:
        table = _table(bits, len(agents))
        prices = {size: (energy(size), time(size)) for size in np.unique(table).tolist() if size}
        rounds = [(number, table[number : number + 1]) for number in range(1, len(table))]
        for number, part in [(BEFORE_FIRST_ROUND, table[:1]), *(rounds if per_round else [(ALL_ROUNDS, table[1:])])]:
            for agent, column in zip(agents, part.T.tolist(), strict=True):
                sent = [size for size in column if size]
                if sent:
                    ledger.add(
                        method=method, seed=seed, agent=agent, round=number, phase=phase, kind="analytic",
                        source=f"link {link.name}", joules=sum(prices[size][0] for size in sent),
                        seconds=sum(prices[size][1] for size in sent), bits=sum(sent),
                    )  # fmt: skip


def charge_together(
    ledger: Ledger, link: Link, device: Device, flops: int, uplink: Sequence[Any], downlink: Sequence[Any], *,
    method: str, seed: int,
) -> None:  # fmt: skip
    """Charge all agents together, one row for each phase, where a row for each agent would be too many.

    `uplink` and `downlink` have the bits of each exchange, of every agent in it. Its agents send at the same time, so
    that an exchange takes as long as its slowest.
    """
    same: dict[str, Any] = {"method": method, "seed": seed, "agent": ALL_AGENTS}
    if flops:
        ledger.add(
            **same, phase="computation", kind="modelled",
            source=f"FLOPs x {device.joules_per_flop:.3g} J ({device.name})",
            joules=device.energy_joules(flops), seconds=device.seconds(flops), flops=flops,
        )  # fmt: skip
    directions = [("uplink", uplink, link.energy_joules, link.seconds)]
    if knows_receiving(link):
        directions.append(("downlink", downlink, link.receive_joules, link.receive_seconds))
    for phase, exchanges, energy, time in directions:
        sizes = [np.unique(bits[bits > 0], return_counts=True) for bits in map(np.asarray, exchanges)]
        joules = sum(energy(int(size)) * int(n) for each in sizes for size, n in zip(*each, strict=True))
        seconds = sum(time(int(each[0].max())) for each in sizes if len(each[0]))
        bits = sum(int(np.asarray(e).sum()) for e in exchanges)
        if bits:
            source = f"link {link.name}"
            ledger.add(**same, phase=phase, kind="analytic", source=source, joules=joules, seconds=seconds, bits=bits)


def charge_server(ledger: Ledger, device: Device, flops: int, *, method: str, seed: int) -> None:
    """Charge what the server learned by itself as FLOPs on a device with mains power; nothing where it did not."""
    if flops:
        ledger.add(
            method=method, seed=seed, agent=SERVER, phase="server", kind="modelled",
            source=f"FLOPs x {device.joules_per_flop:.3g} J ({device.name})", joules=device.energy_joules(flops),
            seconds=device.seconds(flops), flops=flops,
        )  # fmt: skip


def _table(bits: Any, agents: int) -> np.ndarray:
    array = np.asarray(bits)
    if array.dtype.kind not in "iuf":
        raise InputError(f"bits must be numbers, got {bits!r}.")
    table = array[:, None] if array.ndim == 1 else array
    if table.ndim != 2 or not len(table) or table.shape[1] not in (1, agents):
        raise InputError(f"bits must be [rounds + 1] or [rounds + 1, {agents}], got the shape {array.shape}.")
    return np.broadcast_to(table, (len(table), agents))
