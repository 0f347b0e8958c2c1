"""FedSGD and FedAvg (McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized
Data") and Reptile (Nichol et al. 2018, "On First-Order Meta-Learning Algorithms").

    FedSGD    message g_i = grad L_i(theta)                      theta <- theta - learning_rate * mean(g_i)
    FedAvg    message phi_i = SGD_steps(theta; L_i)              theta <- mean(phi_i)
    Reptile   message phi_i = SGD_steps(theta; L_i)              theta <- theta + rate * (mean(phi_i) - theta)

Reptile's rate is `meta_learning_rate`; with 1 it is FedAvg, unless its agents learn in episodes. FedAvg with one
full-batch step is FedSGD.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import Array

from fewjoule.errors import Batch, Count, Epochs, Positive, Ways
from fewjoule.methods.method import Agent, Broadcast, Combine, Info, Method, StartAt, Turn, Weighting, factory
from fewjoule.tasks.episodes import episode
from fewjoule.tasks.samples import AgentData, Samples, draw
from fewjoule.training.descent import Loss, Reached, descend, descend_epochs, near, optimiser

EPISODE_STREAM = 0xE9150  # apart from the keys that mini-batches are drawn with


@factory
def fedsgd(
    *,
    rounds: Count = 50,
    learning_rate: Positive = 0.01,
    batch: Batch = 100,
    start: StartAt = "average",
    weighting: Weighting = "agents",
    combine: Combine = "mean",
) -> Method:
    """One gradient per agent and round; the server steps along their mean. `batch` None takes all samples."""

    def agent(loss: Loss, state: Any, broadcast: Broadcast, data: AgentData, key: Array) -> Turn:
        value, gradient = jax.value_and_grad(loss)(broadcast.model, draw(data.train, key, batch))
        return (), gradient, Info(value, broadcast.model - learning_rate * gradient)

    def server(model: Array, gradient: Array) -> tuple[Array, Broadcast]:
        model = model - learning_rate * gradient
        return model, Broadcast(model)

    return Method("fedsgd", rounds, start, agent, server, sends="change")


@factory
def fedavg(
    *,
    rounds: Count = 5,
    local_steps: Count = 100,
    epochs: Epochs = None,
    learning_rate: Positive = 0.01,
    batch: Batch = 100,
    start: StartAt = "average",
    weighting: Weighting = "agents",
    combine: Combine = "mean",
) -> Method:
    """Many local steps per agent and round; the server takes the mean of the models."""

    def server(model: Array, mean: Array) -> tuple[Array, Broadcast]:
        return mean, Broadcast(mean)

    return Method("fedavg", rounds, start, local_sgd(local_steps, learning_rate, batch, epochs), server)


@factory
def reptile(
    *,
    rounds: Count = 50,
    local_steps: Count = 50,
    epochs: Epochs = None,
    learning_rate: Positive = 0.01,
    meta_learning_rate: Positive = 1.0,
    batch: Batch = 100,
    ways: Ways = None,
    shots: Count = 10,
    start: StartAt = "average",
    weighting: Weighting = "agents",
    combine: Combine = "mean",
) -> Method:
    """As FedAvg, but the server goes only `meta_learning_rate` of the way to the mean. With `ways` an agent's samples
    are those of an episode (`fewjoule.tasks.episodes`): so many of its classes, `shots` samples of each."""

    def server(model: Array, mean: Array) -> tuple[Array, Broadcast]:
        model = mean if meta_learning_rate == 1.0 else model + meta_learning_rate * (mean - model)
        return model, Broadcast(model)

    agent = local_sgd(local_steps, learning_rate, batch, epochs, ways=ways, shots=shots)
    return Method("reptile", rounds, start, agent, server, judged_adapted=ways is not None)


def local_sgd(
    steps: int, learning_rate: float, batch: int | None, epochs: int | None, proximal: float = 0.0,
    ways: int | None = None, shots: int = 1,
) -> Agent:  # fmt: skip
    """The agent of FedAvg and its kin: message phi_i = SGD_steps(theta; L_i + proximal/2 ||phi - theta||²)."""
    train = local_steps_of(steps, learning_rate, batch, epochs)

    def agent(loss: Loss, state: Any, broadcast: Broadcast, data: AgentData, key: Array) -> Turn:
        pulled, samples = near(loss, broadcast.model, proximal) if proximal else loss, data.train
        if ways is not None:
            draw_key = jax.random.fold_in(key, EPISODE_STREAM)
            samples, _ = episode(samples, draw_key, ways=ways, shots=shots, queries=1)
        reached = train(pulled, broadcast.model, samples, key)
        return (), reached.vector, Info(reached.first_loss, reached.vector)

    return agent


Train = Callable[[Loss, Array, Samples, Array], Reached]


def local_steps_of(steps: int, learning_rate: float, batch: int | None, epochs: int | None) -> Train:
    """The local training of a round. Mini-batches are drawn with replacement, `steps` of them; or `epochs` passes over
    the samples take their place."""
    by = optimiser("sgd", learning_rate)

    def train(loss: Loss, vector: Array, samples: Samples, key: Array) -> Reached:
        if epochs is None:
            return descend(loss, vector, samples, key, by=by, steps=steps, batch=batch)
        return descend_epochs(loss, vector, samples, key, by=by, epochs=epochs, batch=batch)

    return train
