"""MAML and first-order MAML (Finn et al. 2017, "Model-Agnostic Meta-Learning for Fast Adaptation of Deep Networks").

    phi_i(theta) = theta - inner_step * grad L_i^tr, `inner_steps` times, on one mini-batch of the round
    MAML     message g_i = d L_i^test(phi_i(theta)) / d theta            through all inner steps
    FOMAML   message g_i = grad L_i^test(phi_i), the Jacobian dropped
    server   theta <- optimiser step along mean(g_i)

L^tr is an agent's loss on its training samples, L^test on its validation samples: the two disjoint sets of the paper.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fewjoule.methods.method import (
    Broadcast,
    Info,
    Loss,
    Method,
    Start,
    check_batch,
    check_start,
    one_per_settings,
    positive,
    positive_int,
    settings_of,
)
from fewjoule.tasks.samples import AgentData, draw
from fewjoule.training.descent import descend, optimiser


@one_per_settings
def maml(
    *,
    rounds: int = 500,
    inner_steps: int = 1,
    inner_step: float = 0.01,
    outer_step: float = 1e-3,
    outer_optimiser: str = "adam",
    batch: int | None = 100,
    start: str = "average",
) -> Method:
    """Second-order MAML with any number of inner steps."""
    settings = settings_of(locals())
    return _maml("maml", settings, True, rounds, inner_steps, inner_step, outer_step, outer_optimiser, batch, start)


@one_per_settings
def fomaml(
    *,
    rounds: int = 500,
    inner_steps: int = 1,
    inner_step: float = 0.01,
    outer_step: float = 1e-3,
    outer_optimiser: str = "adam",
    batch: int | None = 100,
    start: str = "average",
) -> Method:
    """MAML with the Jacobian of the inner steps dropped."""
    settings = settings_of(locals())
    return _maml("fomaml", settings, False, rounds, inner_steps, inner_step, outer_step, outer_optimiser, batch, start)


def _maml(
    name: str,
    settings: tuple[tuple[str, Any], ...],
    second_order: bool,
    rounds: int,
    inner_steps: int,
    inner_step: float,
    outer_step: float,
    outer_optimiser: str,
    batch: int | None,
    start: str,
) -> Method:
    positive_int("rounds", rounds)
    positive_int("inner_steps", inner_steps)
    positive("inner_step", inner_step)
    positive("outer_step", outer_step)
    check_batch(batch)
    check_start(start)
    outer = optimiser(outer_optimiser, outer_step)

    def init(start: Start, probes: Any) -> tuple[Any, Broadcast]:
        return (start.model, outer.init(start.model)), Broadcast(start.model)

    def agent(
        loss: Loss, state: Any, broadcast: Broadcast, data: AgentData, key: Array
    ) -> tuple[tuple[()], Array, Info]:
        inner_key, outer_key = jax.random.split(key)
        support, query = draw(data.train, inner_key, batch), draw(data.validation, outer_key, batch)

        def adapted(theta: Array) -> Array:
            return descend(loss, theta, support, by=optimiser("sgd", inner_step), steps=inner_steps).vector

        def test_loss(theta: Array) -> tuple[Array, Array]:
            phi = adapted(theta)
            return loss(phi, query), phi

        if second_order:
            (value, phi), gradient = jax.value_and_grad(test_loss, has_aux=True)(broadcast.model)
        else:
            phi = adapted(broadcast.model)
            value, gradient = jax.value_and_grad(loss)(phi, query)
        return (), gradient, Info(value, phi, jnp.zeros(()))

    def server(state: Any, gradient: Array) -> tuple[Any, Broadcast]:
        model, memory = state
        update, memory = outer.update(gradient, memory, model)
        model = optax.apply_updates(model, update)
        return (model, memory), Broadcast(model)

    return Method(name, rounds, settings, start, init, agent, server, needs_validation=True, sends="change")
