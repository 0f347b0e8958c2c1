"""A sample of weight 2 is two samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.tasks.samples import draw

X, Y = np.asarray([[0.0], [1.0], [2.0]]), np.asarray([[1.0], [3.0], [2.0]])


def first(agents):
    return jax.tree.map(lambda a: jnp.asarray(a)[0], agents.data.train)


def test_a_sample_of_weight_two_is_two_samples():
    model, vector = fj.mlp([1, 4, 1]), fj.mlp([1, 4, 1]).init(jax.random.key(0))
    weighted = first(fj.make_agents([(X, Y, [1, 2, 1]), (X[:1], Y[:1])]))  # the second agent makes it padded, alike
    repeated = first(fj.make_agents([(X[[0, 1, 1, 2]], Y[[0, 1, 1, 2]])]))
    for of in (model.loss, jax.grad(model.loss)):
        np.testing.assert_allclose(of(vector, weighted), of(vector, repeated), rtol=1e-5)
    scaled = first(fj.make_agents([(X, Y, [10, 20, 10])]))
    np.testing.assert_allclose(model.loss(vector, scaled), model.loss(vector, repeated), rtol=1e-5)


def test_mini_batches_are_unbiased():
    model, vector = fj.mlp([1, 1]), jnp.asarray([0.5, 0.1])
    samples = first(fj.make_agents([(X, Y, [1, 5, 0])]))
    keys = jax.random.split(jax.random.key(1), 4000)
    drawn = jax.vmap(lambda key: model.loss(vector, draw(samples, key, 2)))(keys)
    error = float(drawn.std()) / np.sqrt(len(keys))
    assert float(drawn.mean()) == pytest.approx(float(model.loss(vector, samples)), abs=4 * error)


@pytest.mark.parametrize("weights", [[1, 2], [1, -1, 1], [1, np.nan, 1], "abc"])
def test_wrong_weights_are_refused(weights):
    with pytest.raises(fj.InputError, match="agent '0': weights must be one number of at least 0"):
        fj.make_agents([(X, Y, weights)])
    with pytest.raises(fj.InputError, match="all its weights are 0"):
        fj.make_agents([(X, Y, [0, 0, 0])])


@pytest.mark.slow
def test_every_method_runs_on_weighted_samples():
    agents = fj.make_agents([(X, Y, [1, 2, 1]), (X, 2 * Y, [1, 1, 1])], validation=[(X, Y), (X, Y)])
    model = fj.mlp([1, 2, 1])
    local = fj.train_locally(model, agents, max_steps=5)
    for chosen in (fj.fisher(), fj.fedavg(rounds=1, epochs=1, batch=2)):
        assert np.isfinite(fj.simulate(chosen, model, agents, local).meta).all()
