"""MAML and first-order MAML (Finn et al. 2017, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks").

    phi_i(theta) = theta - inner_learning_rate * grad L_i^tr, `inner_steps` times, on one mini-batch of the round
    MAML     message g_i = d L_i^test(phi_i(theta)) / d theta            through all inner steps
    FOMAML   message g_i = grad L_i^test(phi_i), the Jacobian dropped
    server   theta <- optimiser step along mean(g_i)

L^tr is an agent's loss on its training samples, L^test on its validation samples: the two disjoint sets of the paper.
"""

from collections.abc import Callable
from typing import Any

import jax
import optax
from jax import Array

from fewjoule.errors import Batch, Count, Positive, Text
from fewjoule.methods.method import Broadcast, Combine, Info, Method, Start, StartAt, Turn, Weighting, factory
from fewjoule.tasks.samples import AgentData, draw
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
        batch: Batch = 100,
        start: StartAt = "average",
        weighting: Weighting = "agents",
        combine: Combine = "mean",
    ) -> Method:
        outer = optimiser(outer_optimiser, outer_learning_rate)

        def init(start: Start, probes: Any) -> tuple[Any, Broadcast]:
            return (start.model, outer.init(start.model)), Broadcast(start.model)

        def agent(loss: Loss, state: Any, broadcast: Broadcast, data: AgentData, key: Array) -> Turn:
            inner_key, outer_key = jax.random.split(key)
            support, query = draw(data.train, inner_key, batch), draw(data.validation, outer_key, batch)

            def adapted(theta: Array) -> Array:
                return descend(loss, theta, support, by=optimiser("sgd", inner_learning_rate), steps=inner_steps).vector

            def test_loss(theta: Array) -> tuple[Array, Array]:
                phi = adapted(theta)
                return loss(phi, query), phi

            if second_order:
                (value, phi), gradient = jax.value_and_grad(test_loss, has_aux=True)(broadcast.model)
            else:
                phi = adapted(broadcast.model)
                value, gradient = jax.value_and_grad(loss)(phi, query)
            return (), gradient, Info(value, phi)

        def server(state: Any, gradient: Array) -> tuple[Any, Broadcast]:
            model, memory = state
            update, memory = outer.update(gradient, memory, model)
            model = optax.apply_updates(model, update)
            return (model, memory), Broadcast(model)

        return Method(name, rounds, start, agent, server, init, needs_validation=True, sends="change")

    build.__name__, build.__doc__ = name, summary
    return factory(build)


maml = _maml("maml", True, "Second-order MAML with any number of inner steps.")
fomaml = _maml("fomaml", False, "MAML with the Jacobian of the inner steps dropped.")
