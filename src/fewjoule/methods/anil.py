"""ANIL (Raghu et al. 2020, "Rapid Learning or Feature Reuse? Towards Understanding the Effectiveness of MAML"), with a
head that does not travel.

    h_i = h_0 - inner_learning_rate * d L_i^tr(theta, h) / dh, `inner_steps` times: MAML's inner loop on the head alone
    agent    message g_i = d L_i^test(theta, h_i(theta)) / d theta           theta is the shared body
    server   theta <- optimiser step along mean(g_i)

In the paper h_0 is learned too. Here it is the seed's random start, which every agent and every new device draws itself
and which costs no bits; so there are no local models to begin with. A new device tunes its head only. `ways`, `shots`
and `queries` are MAML's.
"""

import jax
import jax.numpy as jnp
from jax import Array

from fewjoule.errors import Batch, Count, Positive, Text, Ways
from fewjoule.methods.maml import outer_descent, support_and_query
from fewjoule.methods.method import Broadcast, Combine, Info, Method, Turn, Weighting, factory, own_model_kept
from fewjoule.tasks.samples import AgentData, Samples
from fewjoule.training.descent import Loss, descend, optimiser
from fewjoule.training.tuning import Tuning


@factory
def anil(
    *,
    rounds: Count = 500,
    inner_steps: Count = 5,
    inner_learning_rate: Positive = 0.01,
    outer_learning_rate: Positive = 1e-3,
    outer_optimiser: Text = "adam",
    schedule: Text = "constant",
    head_layers: Count = 1,
    batch: Batch = 100,
    ways: Ways = None,
    shots: Count = 1,
    queries: Count = 15,
    weighting: Weighting = "agents",
    combine: Combine = "mean",
) -> Method:
    """MAML whose inner steps move the head alone."""
    inner = optimiser("sgd", inner_learning_rate)
    drawn = support_and_query(batch, ways, shots, queries)
    init, server = outer_descent(optimiser(outer_optimiser, outer_learning_rate, schedule, rounds))

    def agent(loss: Loss, own: Array, broadcast: Broadcast, data: AgentData, key: Array) -> Turn:
        support, query = drawn(data, key)
        begin = own[broadcast.model.size :]

        def test_loss(body: Array) -> tuple[Array, Array]:
            def of_head(head: Array, samples: Samples) -> Array:
                return loss(jnp.concatenate([body, head]), samples)

            head = descend(of_head, begin, support, by=inner, steps=inner_steps).vector
            return of_head(head, query), head

        (value, head), gradient = jax.value_and_grad(test_loss, has_aux=True)(broadcast.model)
        return own, gradient, Info(value, jnp.concatenate([broadcast.model, head]))

    return Method(
        "anil", rounds, "random", agent, server, init, own_model_kept, head=head_layers,
        tuning=Tuning(head=head_layers), needs_validation=ways is None, judged_adapted=True, sends="change",
    )  # fmt: skip
