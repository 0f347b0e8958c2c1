"""The largest curvature of a loss, by power iteration with Hessian-vector products."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


def largest_eigenvalue(loss: Callable[[Array], Array], at: Array, key: Array, iterations: int = 30) -> Array:
    """Estimate of the Hessian's eigenvalue of largest magnitude at a vector; never beyond it in magnitude.

    The estimate is the Rayleigh quotient after `iterations` products, each about two gradients of work.
    """
    gradient = jax.grad(loss)

    def product(v: Array) -> Array:
        return jax.jvp(gradient, (at,), (v,))[1]

    def turn(v: Array, _: None) -> tuple[Array, Array]:
        hv = product(v)
        return hv / jnp.maximum(jnp.linalg.norm(hv), np.finfo(v.dtype).tiny), jnp.vdot(v, hv)

    v = jax.random.normal(key, at.shape, at.dtype)
    _, quotients = jax.lax.scan(turn, v / jnp.linalg.norm(v), None, length=iterations)
    return quotients[-1]
