"""MAML and first-order MAML (Finn et al. 2017, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks").

    phi_i(theta) = theta - inner_learning_rate * grad L_i^tr, `inner_steps` times, on one mini-batch of the round
    MAML     message g_i = d L_i^test(phi_i(theta)) / d theta            through all inner steps
    FOMAML   message g_i = grad L_i^test(phi_i), the Jacobian dropped
    server   theta <- optimiser step along mean(g_i)

L^tr is an agent's loss on its training samples, L^test on its validation samples: the two disjoint sets of the paper.
With `ways` both are of one episode (`fewjoule.tasks.episodes`): `ways` of the agent's classes, drawn and numbered anew
in every round, with `shots` and `queries` samples of each, all from its training samples. With `schedule` "linear" or
"cosine" the server's learning rate falls to 0 over the rounds.
"""

from collections.abc import Callable
from typing import Any

import jax
import optax
from jax import Array

from fewjoule.errors import Batch, Count, Positive, Text, Ways
from fewjoule.methods.method import Broadcast, Combine, Info, Method, Start, StartAt, Turn, Weighting, factory
from fewjoule.tasks.episodes import episode
from fewjoule.tasks.samples import AgentData, Samples, draw
from fewjoule.training.descent import Loss, descend, optimiser


def _maml(name: str, second_order: bool, summary: str) -> Callable[..., Method]:
    """The factory of MAML, or of FOMAML: they have the same settings and differ in one derivative."""

    def build(
        *,
        rounds: Count = 500,
        inner_steps: Count = 1,
        inner_learning_rate: Positive = 0.01,
        outer_learning_rate: Positive = 1e-3,
        outer_optimiser: Text = "adam",
        schedule: Text = "constant",
        batch: Batch = 100,
        ways: Ways = None,
        shots: Count = 1,
        queries: Count = 15,
        start: StartAt = "average",
        weighting: Weighting = "agents",
        combine: Combine = "mean",
    ) -> Method:
        inner = optimiser("sgd", inner_learning_rate)
        drawn = support_and_query(batch, ways, shots, queries)
        init, server = outer_descent(optimiser(outer_optimiser, outer_learning_rate, schedule, rounds))

        def agent(loss: Loss, state: Any, broadcast: Broadcast, data: AgentData, key: Array) -> Turn:
            support, query = drawn(data, key)

            def adapted(theta: Array) -> Array:
                return descend(loss, theta, support, by=inner, steps=inner_steps).vector

            def test_loss(theta: Array) -> tuple[Array, Array]:
                phi = adapted(theta)
                return loss(phi, query), phi

            if second_order:
                (value, phi), gradient = jax.value_and_grad(test_loss, has_aux=True)(broadcast.model)
            else:
                phi = adapted(broadcast.model)
                value, gradient = jax.value_and_grad(loss)(phi, query)
            return (), gradient, Info(value, phi)

        return Method(
            name, rounds, start, agent, server, init, needs_validation=ways is None, judged_adapted=True, sends="change"
        )

    build.__name__, build.__doc__ = name, summary
    return factory(build)


def support_and_query(
    batch: int | None, ways: int | None, shots: int, queries: int
) -> Callable[[AgentData, Array], tuple[Samples, Samples]]:
    """The two sets of a round: an episode of the training samples, or mini-batches of training and validation."""

    def drawn(data: AgentData, key: Array) -> tuple[Samples, Samples]:
        if ways is not None:
            return episode(data.train, key, ways=ways, shots=shots, queries=queries)
        inner_key, outer_key = jax.random.split(key)
        return draw(data.train, inner_key, batch), draw(data.validation, outer_key, batch)

    return drawn


def outer_descent(by: optax.GradientTransformation) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`init` and `server` of a server that steps along the mean of the agents' gradients."""

    def init(start: Start, probes: Any) -> tuple[Any, Broadcast]:
        return (start.model, by.init(start.model)), Broadcast(start.model)

    def server(state: Any, gradient: Array) -> tuple[Any, Broadcast]:
        model, memory = state
        update, memory = by.update(gradient, memory, model)
        model = optax.apply_updates(model, update)
        return (model, memory), Broadcast(model)

    return init, server


maml = _maml("maml", True, "Second-order MAML with any number of inner steps.")
fomaml = _maml("fomaml", False, "MAML with the Jacobian of the inner steps dropped.")
