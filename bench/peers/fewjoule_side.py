"""fewjoule, through its public functions."""

import warnings
from typing import Any

import numpy as np
from worker import Data, serve

import fewjoule as fj

warnings.simplefilter("ignore", fj.DivergedWarning)
SINE = fj.mlp([1, 40, 40, 1])
DIGITS = fj.mlp([784, 8, 8, 10], loss="cross_entropy")


def pairs(data: Data, x: str, y: str) -> list[Any]:
    return list(zip(data[x], data[y], strict=True))


def simulated(method: fj.Method, model: fj.Model, agents: fj.Agents, data: Data) -> Any:
    local = np.repeat(data["start"][None], len(agents), 0)
    return lambda: fj.simulate(method, model, agents, local, diverged_at=1e9).meta


def j1(data: Data) -> Any:
    agents = fj.make_agents(pairs(data, "xa", "ya"), pairs(data, "xb", "yb"))
    return simulated(fj.maml(rounds=int(data["rounds"]), batch=None), SINE, agents, data)


def j2(data: Data) -> Any:
    agents = fj.make_agents(pairs(data, "xa", "ya"), pairs(data, "xb", "yb"))
    return simulated(fj.imaml(rounds=int(data["rounds"]), batch=None), SINE, agents, data)


def j4(data: Data) -> Any:
    tasks = fj.make_tasks(pairs(data, "xa", "ya"), pairs(data, "xb", "yb"))
    return lambda: fj.adapt(SINE, data["start"], tasks, steps=[50], learning_rate=0.01).loss[:, 0]


def j5(data: Data) -> Any:
    method = fj.fedavg(rounds=int(data["rounds"]), local_steps=1, batch=100)
    return simulated(method, DIGITS, fj.make_agents(pairs(data, "x", "y")), data)


def j6(data: Data) -> Any:
    method = fj.meta_backward(rounds=int(data["rounds"]), learning_rate=1e-4, radius=1e-3)
    return simulated(method, SINE, fj.make_agents(pairs(data, "x", "y")), data)


if __name__ == "__main__":
    serve({"J1": j1, "J2": j2, "J4": j4, "J5-2": j5, "J5-100": j5, "J6": j6}, ["jax"])
