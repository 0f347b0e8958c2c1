"""`product` and `turned_product` against JAX's own matrix product: values, derivatives of any order and mode, all ways
to vectorise them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fewjoule.energy.counts import count
from fewjoule.models.product import product, turned_product

RNG = np.random.default_rng(0)
X, W = (jnp.asarray(RNG.normal(size=shape), jnp.float32) for shape in ((5, 7, 3), (5, 3, 4)))


def matmul(x, w):
    return x @ w


def turned(x, w):
    return turned_product(x, jnp.swapaxes(w, -1, -2))


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=3e-5, atol=3e-5)


DERIVATIVES = {
    "in the weights": lambda f: jax.grad(f, 1),
    "in the inputs": lambda f: jax.grad(f, 0),
    "forward": lambda f: lambda x, w: jax.jvp(f, (x, w), (x + 1, w - 1))[1],
    "reverse over reverse": lambda f: jax.grad(lambda x, w: (jax.grad(f, 1)(x, w) ** 2).sum(), 1),
    "inputs of a gradient": lambda f: jax.grad(lambda x, w: (jax.grad(f, 1)(x, w) ** 2).sum(), 0),
    "forward over reverse": lambda f: jax.jacfwd(jax.jacrev(f, 1), 1),
    "reverse over forward": lambda f: jax.jacrev(jax.jacfwd(f, 0), 1),
    "third": lambda f: jax.grad(lambda x, w: (jax.hessian(f, 1)(x, w) ** 2).sum(), 1),
}


@pytest.mark.parametrize("name", DERIVATIVES)
@pytest.mark.parametrize("vectorised", [False, True])
@pytest.mark.parametrize("ours", [product, turned])
def test_derivatives_are_those_of_a_matrix_product(name, vectorised, ours):
    def of(multiply):
        derivative = DERIVATIVES[name](lambda x, w: jnp.sin(multiply(x, w)).sum())
        return jax.jit(jax.vmap(derivative) if vectorised else derivative)

    given = (X, W) if vectorised else (X[0], W[0])
    close(of(ours)(*given), of(matmul)(*given))


two = jnp.stack([W, 2 * W])
WAYS = {
    "both": (lambda f: jax.vmap(f), (X, W)),
    "inputs alone": (lambda f: jax.vmap(f, (0, None)), (X, W[0])),
    "weights alone": (lambda f: jax.vmap(f, (None, 0)), (X[0], W)),
    "an axis in the middle": (lambda f: jax.vmap(f, (1, None), 1), (jnp.moveaxis(X, 0, 1), W[0])),
    "agents of seeds, all their own": (lambda f: jax.vmap(jax.vmap(f)), (jnp.stack([X, X]), two)),
    "agents' samples that seeds share": (lambda f: jax.vmap(jax.vmap(f), (None, 0)), (X, two)),
    "weights that seeds share": (lambda f: jax.vmap(jax.vmap(f), (0, None)), (jnp.stack([X, 2 * X]), W)),
    "inputs by weights": (lambda f: jax.vmap(jax.vmap(f, (0, None)), (None, 0)), (X, W)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("ours", [product, turned])
def test_vectorised_it_is_the_product_of_every_row(way, gradient, ours):
    over, given = WAYS[way]

    def of(multiply):
        return jax.grad(lambda x, w: jnp.sin(multiply(x, w)).sum(), 1) if gradient else multiply

    close(over(of(ours))(*given), over(of(matmul))(*given))


def test_its_operations_are_counted_as_a_matrix_products_are():
    for derivative in DERIVATIVES.values():
        ours, theirs = (
            count(jax.vmap(derivative(lambda x, w, f=f: jnp.sin(f(x, w)).sum())), X, W).flops for f in (product, matmul)
        )
        assert ours == theirs
    assert count(product, X[0], W[0]).flops == 2 * 7 * 3 * 4


def test_whole_numbers_are_promoted():
    close(product(jnp.arange(6).reshape(2, 3), W[0]), jnp.arange(6).reshape(2, 3) @ W[0])


def test_sizes_that_do_not_meet_are_refused_as_a_matrix_product_refuses_them():
    with pytest.raises(TypeError, match="sizes differ"):
        jax.eval_shape(product, X[0], W[0].T)
