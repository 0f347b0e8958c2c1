"""iMAML (Rajeswaran et al. 2019, "Meta-Learning with Implicit Gradients"), as its paper states it.

    inner     phi_i ~ argmin L_i^tr(phi) + lambda/2 ||phi - theta||²        `inner_steps` gradient steps from theta
    message   v_i ~ (I + H_i / lambda)^-1 grad L_i^test(phi_i)              `cg_steps` conjugate-gradient steps
    server    theta <- theta - outer_learning_rate * mean(v_i)

H_i is the Hessian of L_i^tr at phi_i, on the round's mini-batch; only its products with vectors are computed.
L^tr is an agent's loss on its training samples, L^test on its validation samples. iMAML-X-Y is X rounds of Y steps.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fewjoule.errors import Batch, Count, Positive
from fewjoule.methods.method import Broadcast, Combine, Info, Method, StartAt, Turn, Weighting, factory
from fewjoule.tasks.samples import AgentData, draw
from fewjoule.training.descent import Loss, descend, near, optimiser


@factory
def imaml(
    *,
    rounds: Count = 50,
    inner_steps: Count = 50,
    regularisation: Positive = 2.0,
    cg_steps: Count = 5,
    inner_learning_rate: Positive = 0.01,
    outer_learning_rate: Positive = 0.01,
    batch: Batch = 100,
    start: StartAt = "average",
    weighting: Weighting = "agents",
    combine: Combine = "mean",
) -> Method:
    """iMAML with `rounds` outer and `inner_steps` inner iterations; `regularisation` is the paper's lambda."""

    def agent(loss: Loss, state: Any, broadcast: Broadcast, data: AgentData, key: Array) -> Turn:
        theta = broadcast.model
        inner_key, outer_key = jax.random.split(key)
        support, query = draw(data.train, inner_key, batch), draw(data.validation, outer_key, batch)

        proximal = near(loss, theta, regularisation)
        phi = descend(proximal, theta, support, by=optimiser("sgd", inner_learning_rate), steps=inner_steps).vector
        value, gradient = jax.value_and_grad(loss)(phi, query)

        def system(v: Array) -> Array:
            return v + jax.jvp(lambda p: jax.grad(loss)(p, support), (phi,), (v,))[1] / regularisation

        return (), conjugate_gradient(system, gradient, cg_steps), Info(value, phi)

    def server(model: Array, gradient: Array) -> tuple[Array, Broadcast]:
        model = model - outer_learning_rate * gradient
        return model, Broadcast(model)

    return Method("imaml", rounds, start, agent, server, needs_validation=True, judged_adapted=True, sends="change")


def conjugate_gradient(product: Callable[[Array], Array], b: Array, steps: int) -> Array:
    """`steps` conjugate-gradient steps on product(v) = b from v = 0; a fixed number, so that its work is known.

    Once the residual is zero to rounding, further steps change nothing.
    """

    def ratio(a: Array, b: Array) -> Array:
        return jnp.where(b == 0, 0, a / jnp.where(b == 0, 1, b))

    def one(carry: tuple[Array, Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array, Array], None]:
        v, residual, direction, norm = carry
        image = product(direction)
        along = ratio(norm, jnp.vdot(direction, image))
        v, residual = v + along * direction, residual - along * image
        next_norm = jnp.vdot(residual, residual)
        return (v, residual, residual + ratio(next_norm, norm) * direction, next_norm), None

    (v, *_), _ = jax.lax.scan(one, (jnp.zeros_like(b), b, b, jnp.vdot(b, b)), None, length=steps)
    return v
