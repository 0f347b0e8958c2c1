"""Flax and Equinox are the oracle: a module's own outputs, and the weights that it was made with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj

X = np.random.default_rng(0).normal(size=(5, 7, 3)).astype(np.float32)


def linen_module():
    linen = pytest.importorskip("flax.linen", reason="flax is not installed")

    class Gru(linen.Module):
        @linen.compact
        def __call__(self, x):
            return linen.Dense(2)(linen.RNN(linen.GRUCell(4))(x)[:, -1])

    return Gru()


def test_a_linen_module_gives_its_own_outputs():
    module = linen_module()
    model = fj.from_flax(module, X[:1])
    key = jax.random.key(4)
    np.testing.assert_allclose(
        model.apply(model.init(key), X), module.apply(module.init(key, jnp.asarray(X)), X), atol=1e-6
    )
    assert model.input_shape == (7, 3)
    with pytest.raises(fj.InputError, match="a linen module needs a sample"):
        fj.from_flax(module)


def test_an_nnx_module_gives_its_own_outputs_without_dropout():
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first, self.last = nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 2, rngs=rngs)
            self.drop, self.norm = nnx.Dropout(0.5, rngs=rngs), nnx.LayerNorm(4, rngs=rngs)

        def __call__(self, x):
            return self.last(self.drop(self.norm(nnx.relu(self.first(x[:, 0])))))

    model = fj.from_flax(Net, X[:1])
    key = jax.random.key(4)
    own = Net(nnx.Rngs(key))
    own.eval()
    np.testing.assert_allclose(jax.jit(model.apply)(model.init(key), X), own(X), atol=1e-6)
    assert set(model.tensor_names()) >= {"first.kernel", "norm.scale"}
    assert not np.allclose(model.init(key), model.init(jax.random.key(5)))
    with pytest.raises(fj.InputError, match=r"lambda rngs: Net\(\.\.\., rngs=rngs\)"):
        fj.from_flax(own)


def test_an_equinox_module_is_mapped_over_the_batch():
    equinox = pytest.importorskip("equinox", reason="equinox is not installed")

    def make(key):
        return equinox.nn.MLP(21, 2, 8, 1, key=key)

    model = fj.from_equinox(lambda key: equinox.nn.Sequential([equinox.nn.Lambda(jnp.ravel), make(key)]))
    key = jax.random.key(2)
    np.testing.assert_allclose(
        model.apply(model.init(key), X), jax.vmap(make(key))(jnp.asarray(X.reshape(5, 21))), atol=1e-6
    )
    assert not np.allclose(model.init(key), model.init(jax.random.key(3)))
    still = fj.from_equinox(make(key))
    np.testing.assert_array_equal(still.init(jax.random.key(8)), still.init(jax.random.key(9)))


@pytest.mark.parametrize("kind", ["linen", "nnx"])
def test_batch_normalisation_is_refused(kind):
    flax = pytest.importorskip("flax", reason="flax is not installed")
    if kind == "linen":
        module, sample = flax.linen.BatchNorm(use_running_average=True), X[:1]
    else:
        module, sample = (lambda rngs: flax.nnx.BatchNorm(3, rngs=rngs)), None
    with pytest.raises(fj.InputError, match="keeps more than weights"):
        fj.from_flax(module, sample)


def test_equinox_batch_normalisation_is_refused():
    equinox = pytest.importorskip("equinox", reason="equinox is not installed")
    with pytest.raises(fj.InputError, match="keeps more than weights"):
        fj.from_equinox(lambda key: equinox.nn.Sequential([equinox.nn.BatchNorm(3, "batch", mode="ema")]))
