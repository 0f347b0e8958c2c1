"""What a method will cost on a link, before anything is sent; the largest cost that it can have.

From a method, a model, a link and (for the arithmetic) a device to joules and seconds of one agent. Message lengths are
the largest that a codec can make, so that what fits a budget here fits it on the air.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fewjoule.energy.links import Link, knows_receiving
from fewjoule.energy.meters import Device
from fewjoule.methods.method import Method
from fewjoule.models.model import Model
from fewjoule.simulate.rules import NUMBER_BYTES, broadcast_bytes, message_bytes, probe_bytes, weight_bytes
from fewjoule.simulate.work import agent_flops, data_for, shapes

Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Cost:
    """One agent's cost of a whole run. `downlink_joules` is None where the link does not know its receive power,
    `arithmetic_joules` where no device was given; `total_joules` is the sum of what is known."""

    rounds: int
    uplink_bits: int
    downlink_bits: int
    uplink_joules: float
    downlink_joules: float | None
    arithmetic_joules: float | None
    radio_seconds: float

    @property
    def total_joules(self) -> float:
        return self.uplink_joules + (self.downlink_joules or 0.0) + (self.arithmetic_joules or 0.0)


def cost(method: Method, model: Model, link: Link, device: Device | None = None, *, samples: int = 400) -> Cost:
    """What one agent with `samples` training samples spends at most."""
    up, down = most_bits(method, model)
    sending = [link.energy_joules(int(bits)) for bits in up]
    seconds = sum(link.seconds(int(bits)) for bits in up)
    receiving = None
    if not down.any() or knows_receiving(link):
        receiving = sum(link.receive_joules(int(bits)) for bits in down if bits)
        seconds += sum(link.receive_seconds(int(bits)) for bits in down if bits)
    arithmetic = None if device is None else device.energy_joules(agent_flops(method, model, data_for(model, samples)))
    return Cost(method.rounds, int(up.sum()), int(down.sum()), sum(sending), receiving, arithmetic, seconds)


def most_bits(method: Method, model: Model) -> tuple[Integers, Integers]:
    """The most bits that one agent sends and receives, [rounds + 1] as in `Run.uplink_bits`."""
    up, down = np.zeros(method.rounds + 1, np.int64), np.zeros(method.rounds + 1, np.int64)
    sent, first, heard = method.codecs
    if method.start != "random":
        up[0] = first.most_bytes(model.size) if first else NUMBER_BYTES * model.size
    up[0] += weight_bytes(method)
    if not method.rounds:
        return 8 * up, 8 * down
    s = shapes(method, model, data_for(model, 2))
    if method.probe is not None:
        up[0], down[0] = np.add((up[0], down[0]), probe_bytes(model, s.probe))
    leaves = jax.tree.leaves(s.message)
    coded = None if not sent else sum(sent.most_bytes(a.size) if a.ndim else NUMBER_BYTES for a in leaves)
    up[1:] = message_bytes(s.message, s.info._replace(size_bytes=coded))
    broadcast = s.broadcast._replace(size_bytes=heard.most_bytes(model.size) if heard else None)
    down[1:] = [int(broadcast_bytes(method, broadcast, r == 0)) for r in range(method.rounds)]
    return 8 * up, 8 * down
