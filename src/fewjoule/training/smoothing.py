"""A smooth function through a few rounded values: Gaussian-process regression (Rasmussen and Williams 2006, chapters 2
and 5).

Values y at the inputs X are of one smooth function, each off by a rounding error of variance s^2 / 12 where s is the
codec's spacing. In units of the values' own spread (y has mean 0 and variance 1, r is the error's variance):

    f(x) = k(x, X) (K + r I)^-1 y,      k(u, v) = exp(-|u - v|^2 / (2 l^2)),      K = k(X, X)
    log p(y | l) = -1/2 y (K + r I)^-1 y - 1/2 log det(K + r I) + constant

The length l, over which a function changes, is the one of LENGTHS under which all values together are most likely.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

LENGTHS = tuple(np.geomspace(0.05, 2.0, 16).tolist())
"""Shares of the inputs' range that l is chosen from."""
LEAST_NOISE = 1e-6
"""Of r for every input: with less, a Cholesky factor in float32 may not exist."""


def smoothed(x: Array, values: Array, at: Array, present: Array, levels: int) -> Array:
    """The functions' most likely values [functions, P, outputs] at the inputs `at` [P, ...].

    `values` [functions, M, outputs] are theirs at `x` [M, ...], each rounded to one of `levels` even levels over its
    function's range. Functions that are not `present` [functions] count nothing, and their rows mean nothing.
    """
    here = present > 0
    middle = values.mean(1, keepdims=True)
    spread = jnp.sqrt(((values - middle) ** 2).mean((1, 2), keepdims=True))
    spread = jnp.where((spread > 0) & here[:, None, None], spread, 1)
    span = values.max((1, 2)) - values.min((1, 2))
    errors = jnp.where(here, (span / (levels - 1) / spread[:, 0, 0]) ** 2 / 12, 0)
    count = here.sum().astype(errors.dtype)
    noise = jnp.maximum(errors.sum() / jnp.maximum(count, 1), LEAST_NOISE * len(x))
    y = jnp.where(here[:, None, None], (values - middle) / spread, 0)
    columns = jnp.moveaxis(y, 1, 0).reshape(len(x), -1)

    inputs, wanted = (points.reshape(len(points), -1) for points in (x, at))
    width = jnp.maximum((inputs.max(0) - inputs.min(0)).max(), 1e-6)

    def solved(length: Array) -> tuple[Array, Array]:
        """(K + r I)^-1 y and twice the log likelihood, without its constant."""
        matrix = _kernel(inputs, inputs, length * width) + noise * jnp.eye(len(inputs))
        lower = jnp.linalg.cholesky(matrix)
        weights = jax.scipy.linalg.cho_solve((lower, True), columns)
        likelihood = -(columns * weights).sum() - 2 * count * values.shape[-1] * jnp.log(jnp.diagonal(lower)).sum()
        return weights, jnp.where(jnp.isfinite(likelihood), likelihood, -jnp.inf)

    lengths = jnp.asarray(LENGTHS, jnp.float32)
    weights, likelihoods = jax.lax.map(solved, lengths)
    best = jnp.argmax(likelihoods)
    f = _kernel(wanted, inputs, lengths[best] * width) @ weights[best]
    return middle + spread * jnp.moveaxis(f.reshape(len(wanted), *values[:, 0].shape), 0, 1)


def _kernel(a: Array, b: Array, length: Array) -> Array:
    squared = ((a[:, None] - b[None]) ** 2).sum(-1)
    return jnp.exp(-squared / (2 * length**2))
