"""The jobs: arrays that every side reads, what one call of a job is, and the work that no side can avoid."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import numpy as np

import fewjoule as fj
from fewjoule.randomness import agent_ids, key_for, round_key, uniform_rows

SINE = fj.mlp([1, 40, 40, 1])
DIGITS = fj.mlp([784, 8, 8, 10], loss="cross_entropy")
BATCH, SAMPLES = 100, 400
Arrays = dict[str, Any]


class Job(NamedTuple):
    """A call does `length` rounds, or one job of so many steps. `flops` and `memory_bytes` are of one unit: matrix
    products alone, and samples and models that do not fit in a cache, read and written once."""

    title: str
    unit: str
    length: int
    arrays: Callable[[int], Arrays]
    flops: float
    memory_bytes: float = 0.0
    checked: int | None = None  # answers are compared after so many rounds or steps; None for all of a call

    def units(self, rounds: int) -> int:
        """What so many rounds count."""
        return 1 if self.unit == "jobs" else rounds


def products(sizes: tuple[int, ...], samples: int) -> int:
    """FLOPs of the matrix products of a gradient: forward, of the weights, and of the inputs but the first layer's."""
    each = [2 * a * b * samples for a, b in pairwise(sizes)]
    return 3 * sum(each) - each[0]


def start(model: fj.Model) -> Any:
    return np.asarray(model.init(jax.random.key(0)))


def sines(count: int, samples: int, validation: int) -> Callable[[int], Arrays]:
    def arrays(rounds: int) -> Arrays:
        a, b = fj.sinusoid.agents(list(np.linspace(0.1, 5, count)), samples=samples, validation=validation).data
        return {"xa": a.x, "ya": a.y, "xb": b.x, "yb": b.y, "start": start(SINE), "rounds": rounds}

    return arrays


def new_tasks(rounds: int) -> Arrays:
    a, b = fj.sinusoid.new_tasks(500, shots=40, queries=100)
    return {"xa": a.x, "ya": a.y, "xb": b.x, "yb": b.y, "start": start(SINE), "rounds": rounds}


def drawn(agents: int, rounds: int, of_descent: bool) -> Any:
    """The rows of every mini-batch [rounds, agents, BATCH], as fewjoule draws them for seed 0."""
    root = key_for(0, "round")

    def rows(index: Any, agent: Any) -> Any:
        key = round_key(root, index, agent)
        return uniform_rows(jax.random.split(key, 1)[0] if of_descent else key, BATCH, jax.numpy.float32(SAMPLES))

    ids = agent_ids(tuple(map(str, range(agents))))
    return jax.vmap(lambda index: jax.vmap(lambda agent: rows(index, agent))(ids))(jax.numpy.arange(rounds))


def digits(count: int) -> Callable[[int], Arrays]:
    def arrays(rounds: int) -> Arrays:
        rng = np.random.default_rng(0)
        x, y = rng.random((count, SAMPLES, 784), np.float32), rng.integers(0, 10, (count, SAMPLES), np.int32)
        return {"x": x, "y": y, "rows": drawn(count, rounds, True), "start": start(DIGITS), "rounds": rounds}

    return arrays


def three_sines(rounds: int) -> Arrays:
    a = fj.sinusoid.agents([2, 6, 10]).data.train
    return {"x": a.x, "y": a.y, "rows": drawn(3, rounds, False), "start": start(SINE), "rounds": rounds}


SINE_SIZES, DIGIT_SIZES = (1, 40, 40, 1), (784, 8, 8, 10)
JOBS = {
    # a second-order gradient is at least the inner gradient, the outer one, and a Hessian product of twice a gradient
    "J1": Job("MAML, 25 tasks of 10 + 10 samples", "rounds", 100, sines(25, 10, 10), 25 * 4 * products(SINE_SIZES, 10)),
    "J2": Job(
        "iMAML, 3 tasks of 100 + 100 samples, 50 inner and 5 CG steps", "rounds", 50, sines(3, 100, 100),
        3 * (50 + 1 + 5 * 2) * products(SINE_SIZES, 100), checked=2,
    ),
    "J4": Job(
        "fine-tuning 500 tasks of 40 samples by 50 steps", "jobs", 50, new_tasks, 500 * 50 * products(SINE_SIZES, 40),
        checked=5,
    ),
    "J5-2": Job(
        "FedAvg, 2 agents, mini-batches of 100 digits", "rounds", 500, digits(2), 2 * products(DIGIT_SIZES, BATCH)
    ),
    "J5-100": Job(
        "FedAvg, 100 agents, mini-batches of 100 digits", "rounds", 100, digits(100),
        100 * products(DIGIT_SIZES, BATCH), 4 * 100 * (BATCH * 784 + DIGITS.size),
    ),
    "J6": Job(
        "Meta-Backward, 3 agents, mini-batches of 100", "rounds", 1000, three_sines, 3 * products(SINE_SIZES, BATCH)
    ),
}  # fmt: skip
