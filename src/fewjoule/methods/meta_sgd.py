"""Meta-SGD (Li et al. 2017, "Meta-SGD: Learning to Learn Quickly for Few-Shot Learning").

    phi_i = theta - alpha * grad L_i^tr, weight by weight, `inner_steps` times on one mini-batch of the round
    agent    messages d L_i^test(phi_i) / d theta and d L_i^test(phi_i) / d alpha, both of the length of the model
    server   theta and alpha <- an optimiser's step each along the means of these

alpha begins as `inner_learning_rate` for every weight. It is sent down beside the model in every round, and up as a
second vector: twice MAML's bits. A new device gets it too and fine-tunes with it. With `rates_learning_rate` 0 the
rates stay, and it is MAML. `ways`, `shots` and `queries` are MAML's.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from fewjoule.errors import Batch, Count, NotNegative, Positive, Text, Ways
from fewjoule.methods.maml import support_and_query
from fewjoule.methods.method import Broadcast, Combine, Info, Method, Start, StartAt, Turn, Weighting, factory
from fewjoule.tasks.samples import AgentData
from fewjoule.training.descent import Loss, descend, optimiser
from fewjoule.training.tuning import rated


@factory
def meta_sgd(
    *,
    rounds: Count = 500,
    inner_steps: Count = 1,
    inner_learning_rate: Positive = 0.01,
    outer_learning_rate: Positive = 1e-3,
    outer_optimiser: Text = "adam",
    schedule: Text = "constant",
    rates_learning_rate: NotNegative = 1e-3,
    batch: Batch = 100,
    ways: Ways = None,
    shots: Count = 1,
    queries: Count = 15,
    start: StartAt = "average",
    weighting: Weighting = "agents",
    combine: Combine = "mean",
) -> Method:
    """MAML that learns a learning rate for every weight."""
    inner = optimiser("sgd", inner_learning_rate)
    server_rates = (outer_learning_rate, rates_learning_rate)
    outer, of_rates = (optimiser(outer_optimiser, rate, schedule, rounds) for rate in server_rates)
    drawn = support_and_query(batch, ways, shots, queries)

    def init(start: Start, probes: Any) -> tuple[Any, Broadcast]:
        rates = jnp.full_like(start.model, inner_learning_rate)
        return (start.model, rates, outer.init(start.model), of_rates.init(rates)), Broadcast(start.model, (rates,))

    def agent(loss: Loss, state: Any, broadcast: Broadcast, data: AgentData, key: Array) -> Turn:
        support, query = drawn(data, key)

        def test_loss(theta: Array, rates: Array) -> tuple[Array, Array]:
            phi = descend(loss, theta, support, by=rated(inner, rates), steps=inner_steps).vector
            return loss(phi, query), phi

        both = jax.value_and_grad(test_loss, argnums=(0, 1), has_aux=True)
        (value, phi), gradients = both(broadcast.model, broadcast.scalars[0])
        return (), gradients, Info(value, phi)

    def server(state: Any, gradients: tuple[Array, Array]) -> tuple[Any, Broadcast]:
        model, rates, memory, memory_of_rates = state
        update, memory = outer.update(gradients[0], memory, model)
        change, memory_of_rates = of_rates.update(gradients[1], memory_of_rates, rates)
        model, rates = optax.apply_updates(model, update), optax.apply_updates(rates, change)
        return (model, rates, memory, memory_of_rates), Broadcast(model, (rates,))

    return Method(
        "meta_sgd", rounds, start, agent, server, init, needs_validation=ways is None, judged_adapted=True,
        sends="change", rates=lambda broadcast: broadcast.scalars[0],
    )  # fmt: skip
