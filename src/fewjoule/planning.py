"""What a method will cost on a link, before anything is sent; the largest cost that it can have.

From a method, a model, a link and (for the arithmetic) a device to joules and seconds of one agent. Message lengths are
the largest that a codec can make, so that what fits a budget here fits it on the air.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fewjoule.energy.counts import count
from fewjoule.energy.devices import Device
from fewjoule.energy.links import Link
from fewjoule.errors import InputError
from fewjoule.methods.method import Method, Start
from fewjoule.models import Model
from fewjoule.tasks.samples import AgentData, Samples

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
    up, down, flops = work(method, model, samples)
    sending = [link.energy_joules(int(bits)) for bits in up]
    seconds = sum(link.seconds(int(bits)) for bits in up)
    receiving: float | None = 0.0
    try:
        receiving = sum(link.receive_joules(int(bits)) for bits in down if bits)
        seconds += sum(link.receive_seconds(int(bits)) for bits in down if bits)
    except InputError:
        receiving = None
    arithmetic = None if device is None else device.energy_joules(flops)
    return Cost(method.rounds, int(up.sum()), int(down.sum()), sum(sending), receiving, arithmetic, seconds)


def work(method: Method, model: Model, samples: int = 400) -> tuple[Integers, Integers, int]:
    """The most bits that one agent sends and receives, [rounds + 1] as in `Run.uplink_bits`, and its FLOPs."""
    vector, data = jax.eval_shape(lambda: jnp.zeros(model.size)), _data(model, samples)
    scalar, key = jax.eval_shape(lambda: jnp.zeros(())), jax.eval_shape(lambda: jax.random.key(0))
    up, down = np.zeros(method.rounds + 1, np.int64), np.zeros(method.rounds + 1, np.int64)
    plain, flops = 32 * model.size, 0
    sent, first, heard = method.codecs
    if method.start != "random":
        up[0] = 8 * first.most_bytes(model.size) if first else plain
    probes = None
    if method.probe is not None:
        probe = method.probe
        probes = jax.eval_shape(lambda v, d, k: jnp.stack([probe(model.loss, v, d, k)]), vector, data, key)
        flops += count(lambda v, d, k: probe(model.loss, v, d, k), vector, data, key).flops
        up[0] += 32 * _numbers(probes)
        down[0] += plain
    if not method.rounds:
        return up, down, flops
    _, broadcast = jax.eval_shape(method.init, Start(vector, scalar, vector), probes)
    state = jax.eval_shape(method.agent_init, vector, vector)

    def agent(s: Any, b: Any, d: Any, k: Any) -> Any:
        return method.agent(model.loss, s, b, d, k)

    _, message, _ = jax.eval_shape(agent, state, broadcast, data, key)
    flops += method.rounds * count(agent, state, broadcast, data, key).flops
    leaves = jax.tree.leaves(message)
    up[1:] = sum(8 * sent.most_bytes(leaf.size) if sent and leaf.ndim else 32 * leaf.size for leaf in leaves)
    down[1:] = 8 * heard.most_bytes(model.size) if heard else plain
    if method.start == "random" or (method.probe is not None and not heard):
        down[1] = 0
    down[1:] += 32 * _numbers(broadcast.scalars)
    return up, down, flops


def _numbers(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _data(model: Model, samples: int) -> AgentData:
    """The shapes of one agent's data, from the model's spec."""
    kind, _, rest = model.spec.partition(":")
    if kind not in ("mlp", "conv4"):
        raise InputError("a plan needs a built-in model, such as mlp:784-8-8-10, to know the shape of its inputs.")
    first = rest.split("-")[0]
    shape = tuple(int(n) for n in first.split("x"))

    def build() -> Samples:
        x = jnp.zeros((samples, *shape))
        outputs = jax.eval_shape(model.apply, jnp.zeros(model.size), x).shape[-1]
        classes = model.loss_name == "cross_entropy"
        y = jnp.zeros(samples, jnp.int32) if classes else jnp.zeros((samples, outputs))
        return Samples(x, y, jnp.ones(samples))

    made = jax.eval_shape(build)
    return AgentData(made, made)
