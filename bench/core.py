"""Rates of the core, one thread, beside a hand-written JAX loop for each job in the same process.

    python bench/core.py [--repeat 5] [--clock wall|cpu] [JOB ...]

The jobs are those of the project's table of peers: meta-iterations, rounds or jobs per second in the steady state,
after compilation. `asked` is the rate of "JAX, whole loop compiled" there. That table's own limits (55 000 rounds of
J6, 3.02 Mflop of matrix products each) say that one thread of its machine multiplied matrices at 166 Gflop/s; this
script measures what one thread does here, and `at par` is the rate over the asked one with the two peaks made equal.
The ratio to the hand-written loop, in the same process, needs no such correction. `--clock cpu` counts the seconds of
this process alone (one thread, so that they are the wall's on a quiet machine).
"""

import argparse
import os
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import jax  # the flags above must be set first
import jax.numpy as jnp
import numpy as np
import optax

import fewjoule as fj

warnings.simplefilter("ignore", fj.DivergedWarning)
NET = fj.mlp([1, 40, 40, 1])
DIGITS = fj.mlp([784, 8, 8, 10], loss="cross_entropy")


class Job(NamedTuple):
    asked: float  # per second
    units: int  # rounds or jobs in one call
    package: Callable[[], Any]
    by_hand: Callable[[], Any]


def mse(vector: Any, x: Any, y: Any) -> Any:
    return ((NET.apply(vector, x) - y) ** 2).mean()


def start() -> Any:
    return NET.init(jax.random.key(0))


def sines(count: int, samples: int, validation: int) -> fj.Agents:
    return fj.sinusoid.agents(list(np.linspace(0.1, 5, count)), samples=samples, validation=validation)


def package(method: fj.Method, agents: fj.Agents, model: fj.Model = NET) -> Callable[[], Any]:
    local = jnp.repeat(model.init(jax.random.key(0))[None], len(agents), 0)
    return lambda: fj.simulate(method, model, agents, local).meta


def maml(second_order: bool, asked: float) -> Job:
    agents, rounds = sines(25, 10, 10), 500
    a, b = agents.data.train, agents.data.validation
    adam = optax.adam(1e-3)

    @jax.jit
    def by_hand(theta: Any, xa: Any, ya: Any, xb: Any, yb: Any) -> Any:
        def one(theta: Any, xa: Any, ya: Any, xb: Any, yb: Any) -> Any:
            def inner(theta: Any) -> Any:
                return theta - 0.01 * jax.grad(mse)(theta, xa, ya)

            if second_order:
                return jax.grad(lambda theta: mse(inner(theta), xb, yb))(theta)
            return jax.grad(mse)(inner(theta), xb, yb)

        def learning_rate(carry: Any, _: None) -> Any:
            theta, memory = carry
            gradient = jax.vmap(one, (None, 0, 0, 0, 0))(theta, xa, ya, xb, yb).mean(0)
            change, memory = adam.update(gradient, memory)
            return (theta + change, memory), None

        return jax.lax.scan(learning_rate, (theta, adam.init(theta)), None, length=rounds)[0][0]

    factory = fj.maml if second_order else fj.fomaml
    method = factory(rounds=rounds, batch=None)
    return Job(asked, rounds, package(method, agents), lambda: by_hand(start(), a.x, a.y, b.x, b.y))


def imaml() -> Job:
    agents, rounds = sines(3, 100, 100), 50
    a, b = agents.data.train, agents.data.validation

    @jax.jit
    def by_hand(theta: Any, xa: Any, ya: Any, xb: Any, yb: Any) -> Any:
        def one(theta: Any, xa: Any, ya: Any, xb: Any, yb: Any) -> Any:
            def inner(phi: Any, _: None) -> Any:
                return phi - 0.01 * (jax.grad(mse)(phi, xa, ya) + 2 * (phi - theta)), None

            phi = jax.lax.scan(inner, theta, None, length=50)[0]
            product = jax.linearize(lambda p: jax.grad(mse)(p, xa, ya), phi)[1]

            def cg(carry: Any, _: None) -> Any:
                v, r, p = carry
                q = p + product(p) / 2
                along = r @ r / (p @ q)
                after = r - along * q
                return (v + along * p, after, after + after @ after / (r @ r) * p), None

            g = jax.grad(mse)(phi, xb, yb)
            return jax.lax.scan(cg, (jnp.zeros_like(g), g, g), None, length=5)[0][0]

        def learning_rate(theta: Any, _: None) -> Any:
            return theta - 0.01 * jax.vmap(one, (None, 0, 0, 0, 0))(theta, xa, ya, xb, yb).mean(0), None

        return jax.lax.scan(learning_rate, theta, None, length=rounds)[0]

    method = fj.imaml(rounds=rounds, batch=None)
    return Job(285, rounds, package(method, agents), lambda: by_hand(start(), a.x, a.y, b.x, b.y))


def reptile() -> Job:
    agents, rounds = sines(3, 100, 0), 50
    a = agents.data.train

    @jax.jit
    def by_hand(theta: Any, x: Any, y: Any) -> Any:
        def one(theta: Any, x: Any, y: Any) -> Any:
            return jax.lax.scan(lambda p, _: (p - 0.01 * jax.grad(mse)(p, x, y), None), theta, None, length=50)[0]

        def learning_rate(theta: Any, _: None) -> Any:
            return theta + 0.5 * (jax.vmap(one, (None, 0, 0))(theta, x, y).mean(0) - theta), None

        return jax.lax.scan(learning_rate, theta, None, length=rounds)[0]

    method = fj.reptile(rounds=rounds, local_steps=50, meta_learning_rate=0.5, batch=None)
    return Job(351, rounds, package(method, agents), lambda: by_hand(start(), a.x, a.y))


def fine_tuning() -> Job:
    tasks = fj.sinusoid.new_tasks(500, shots=40, queries=100)
    a, b = tasks

    @jax.jit
    def by_hand(theta: Any, xa: Any, ya: Any, xb: Any, yb: Any) -> Any:
        def one(xa: Any, ya: Any, xb: Any, yb: Any) -> Any:
            phi = jax.lax.scan(lambda p, _: (p - 0.01 * jax.grad(mse)(p, xa, ya), None), theta, None, length=50)[0]
            return mse(phi, xb, yb)

        return jax.vmap(one)(xa, ya, xb, yb)

    theta = start()
    return Job(
        1 / 0.39, 1,
        lambda: fj.adapt(NET, theta, tasks, steps=[50], learning_rate=0.01).loss,
        lambda: by_hand(theta, a.x, a.y, b.x, b.y),
    )  # fmt: skip


def digits(count: int, asked: float) -> Job:
    rng, rounds = np.random.default_rng(0), 50 if count > 10 else 500
    agents = fj.make_agents([(rng.random((400, 784)), rng.integers(0, 10, 400)) for _ in range(count)])
    a = agents.data.train

    @jax.jit
    def by_hand(theta: Any, key: Any, x: Any, y: Any) -> Any:
        def loss(vector: Any, x: Any, y: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(DIGITS.apply(vector, x), y).mean()

        def one(theta: Any, x: Any, y: Any, key: Any) -> Any:
            rows = jax.random.randint(key, (100,), 0, 400)
            return theta - 0.01 * jax.grad(loss)(theta, x[rows], y[rows])

        def learning_rate(theta: Any, key: Any) -> Any:
            return jax.vmap(one, (None, 0, 0, 0))(theta, x, y, jax.random.split(key, count)).mean(0), None

        return jax.lax.scan(learning_rate, theta, jax.random.split(key, rounds))[0]

    theta = DIGITS.init(jax.random.key(0))
    method = fj.fedavg(rounds=rounds, local_steps=1, batch=100)
    return Job(asked, rounds, package(method, agents, DIGITS), lambda: by_hand(theta, jax.random.key(1), a.x, a.y))


def meta_backward() -> Job:
    agents, rounds = fj.sinusoid.agents([2, 6, 10]), 5000
    a = agents.data.train

    @jax.jit
    def by_hand(phis: Any, key: Any, x: Any, y: Any) -> Any:
        def one(phi: Any, x: Any, y: Any, key: Any, centre: Any) -> Any:
            rows = jax.random.randint(key, (100,), 0, 400)
            offset = phi + 1e-4 * jax.grad(mse)(phi, x[rows], y[rows]) - centre
            return centre + offset * jnp.minimum(1, 1e-3 / jnp.linalg.norm(offset))

        def learning_rate(carry: Any, key: Any) -> Any:
            phis, centre = carry
            phis = jax.vmap(one, (0, 0, 0, 0, None))(phis, x, y, jax.random.split(key, 3), centre)
            return (phis, phis.mean(0)), None

        return jax.lax.scan(learning_rate, (phis, phis.mean(0)), jax.random.split(key, rounds))[0][1]

    method = fj.meta_backward(rounds=rounds, learning_rate=1e-4, radius=1e-3)
    phis = jnp.repeat(start()[None], 3, 0)
    return Job(16_686, rounds, package(method, agents), lambda: by_hand(phis, jax.random.key(1), a.x, a.y))


JOBS: dict[str, Callable[[], Job]] = {
    "J1 MAML": lambda: maml(True, 2488),
    "J2 iMAML": imaml,
    "FOMAML": lambda: maml(False, 4464),
    "Reptile": reptile,
    "J4 fine-tuning": fine_tuning,
    "J5 2 agents": lambda: digits(2, 5556),
    "J5 100 agents": lambda: digits(100, 45.5),
    "J6 P-SGA": meta_backward,
}


PEAK_ASKED = 166e9  # flop/s of matrix products, one thread, where the asked rates were taken
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def seconds(call: Callable[[], Any], clock: Callable[[], float]) -> float:
    before = clock()
    jax.block_until_ready(call())
    return clock() - before


def peak(clock: Callable[[], float], side: int = 2048) -> float:
    """flop/s of one thread on a large product of float32 matrices."""
    product, matrix = jax.jit(lambda a: a @ a), jnp.ones((side, side))
    seconds(lambda: product(matrix), clock)
    return 2 * side**3 / min(seconds(lambda: product(matrix), clock) for _ in range(5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="parts of jobs' names; all by default")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    options = parser.parse_args()
    here = peak(CLOCKS[options.clock])
    print(f"matrix products, one thread: {here / 1e9:.0f} Gflop/s here, {PEAK_ASKED / 1e9:.0f} where `asked` was taken")
    print(
        f"{'job':16}{'asked':>9}{'fewjoule':>10}{'at par':>8}{'by hand':>10}{'ratio':>7}{'compile s':>11}{'by hand':>9}"
    )
    for name, make in JOBS.items():
        if options.jobs and not any(part.lower() in name.lower() for part in options.jobs):
            continue
        job = make()
        clock = CLOCKS[options.clock]
        first, first_hand = seconds(job.package, clock), seconds(job.by_hand, clock)
        times = [(seconds(job.package, clock), seconds(job.by_hand, clock)) for _ in range(options.repeat)]
        ours, hand = (min(column) for column in zip(*times, strict=True))
        at_par = job.units / ours / job.asked * PEAK_ASKED / here
        print(
            f"{name:16}{job.asked:9.4g}{job.units / ours:10.4g}{at_par:8.2f}{job.units / hand:10.4g}{hand / ours:7.2f}"
            f"{first - ours:11.2f}{first_hand - hand:9.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
