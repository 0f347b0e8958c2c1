"""Plain stochastic gradient descent on one agent, the local work of most methods."""

import jax
from jax import Array

from fewjoule.methods.method import Loss
from fewjoule.tasks.samples import Samples, draw


def descend(
    loss: Loss, model: Array, samples: Samples, key: Array, *, step: float, steps: int, batch: int | None
) -> tuple[Array, Array]:
    """`steps` SGD steps from a vector; gives the vector reached and the loss at which the first step began.

    Each step draws its own mini-batch of `batch` samples, or takes all samples where batch is None.
    """

    def one(model: Array, key: Array | None) -> tuple[Array, Array]:
        minibatch = samples if key is None else draw(samples, key, batch)
        value, gradient = jax.value_and_grad(loss)(model, minibatch)
        return model - step * gradient, value

    keys = None if batch is None else jax.random.split(key, steps)
    if steps == 1:  # without a loop, which would cost a tenth of MAML's speed
        return one(model, None if keys is None else keys[0])
    reached, values = jax.lax.scan(one, model, keys, length=steps)
    return reached, values[0]
