"""fewjoule, through its public functions."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from worker import Data, serve

import fewjoule as fj

warnings.simplefilter("ignore", fj.DivergedWarning)
SINE = fj.mlp([1, 40, 40, 1])
DIGITS = fj.mlp([784, 8, 8, 10], loss="cross_entropy")


def pairs(data: Data, x: str, y: str) -> list[Any]:
    return list(zip(data[x], data[y], strict=True))


def simulated(method: Callable[[int], fj.Method], model: fj.Model, agents: fj.Agents, data: Data) -> Any:
    local = np.repeat(data["start"][None], len(agents), 0)
    return lambda rounds: fj.simulate(method(rounds), model, agents, local, diverged_at=1e9).meta


def j1(data: Data) -> Any:
    agents = fj.make_agents(pairs(data, "xa", "ya"), pairs(data, "xb", "yb"))
    return simulated(lambda rounds: fj.maml(rounds=rounds, batch=None), SINE, agents, data)


def j2(data: Data) -> Any:
    agents = fj.make_agents(pairs(data, "xa", "ya"), pairs(data, "xb", "yb"))
    return simulated(lambda rounds: fj.imaml(rounds=rounds, batch=None), SINE, agents, data)


def j4(data: Data) -> Any:
    tasks = fj.make_tasks(pairs(data, "xa", "ya"), pairs(data, "xb", "yb"))
    return lambda steps: fj.adapt(SINE, data["start"], tasks, steps=[steps], learning_rate=0.01).loss[:, 0]


def j5(data: Data) -> Any:
    agents = fj.make_agents(pairs(data, "x", "y"))
    return simulated(lambda rounds: fj.fedavg(rounds=rounds, local_steps=1, batch=100), DIGITS, agents, data)


def j6(data: Data) -> Any:
    agents = fj.make_agents(pairs(data, "x", "y"))
    return simulated(
        lambda rounds: fj.meta_backward(rounds=rounds, learning_rate=1e-4, radius=1e-3), SINE, agents, data
    )


if __name__ == "__main__":
    serve({"J1": j1, "J2": j2, "J4": j4, "J5-2": j5, "J5-100": j5, "J6": j6}, ["jax"])
