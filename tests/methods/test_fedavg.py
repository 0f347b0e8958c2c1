"""FedSGD, FedAvg and Reptile are limits of each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.methods.fedavg import EPISODE_STREAM
from fewjoule.methods.method import Broadcast
from fewjoule.tasks.episodes import episode
from fewjoule.tasks.samples import AgentData, Samples


def test_reptile_with_meta_step_one_is_fedavg(model, agents, local_models):
    a = fj.simulate(fj.reptile(rounds=3, local_steps=4, meta_learning_rate=1.0), model, agents, local_models)
    b = fj.simulate(fj.fedavg(rounds=3, local_steps=4), model, agents, local_models)
    np.testing.assert_array_equal(a.meta, b.meta)


def test_fedavg_with_one_full_step_is_fedsgd(model, agents, local_models):
    a = fj.simulate(fj.fedavg(rounds=3, local_steps=1, batch=None), model, agents, local_models)
    b = fj.simulate(fj.fedsgd(rounds=3, batch=None), model, agents, local_models)
    np.testing.assert_allclose(a.meta, b.meta, rtol=1e-5, atol=1e-6)


def test_fedsgd_is_descent_on_the_mean_loss(model, agents, local_models):
    """Agents weigh the same, whatever their number of samples."""
    run = fj.simulate(fj.fedsgd(rounds=3, learning_rate=0.05, batch=None), model, agents, local_models)

    def mean_loss(v):
        return sum(model.loss(v, jax.tree.map(lambda a, i=i: a[i], agents.data.train)) for i in range(3)) / 3

    theta = local_models.mean(0)
    for _ in range(3):
        theta = theta - 0.05 * jax.grad(mean_loss)(theta)
    np.testing.assert_allclose(run.meta, theta, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(run.final_loss, mean_loss(run.meta), rtol=1e-5)
    np.testing.assert_allclose(run.start_loss, mean_loss(local_models.mean(0)), rtol=1e-5)


def test_reptile_goes_meta_step_of_the_way(model, agents, local_models):
    whole = fj.simulate(fj.fedavg(rounds=1, local_steps=4), model, agents, local_models)
    part = fj.simulate(fj.reptile(rounds=1, local_steps=4, meta_learning_rate=0.25), model, agents, local_models)
    np.testing.assert_allclose(part.meta, 0.75 * whole.start + 0.25 * whole.meta, rtol=1e-5, atol=1e-6)


def test_random_start_needs_no_local_models(model, agents):
    run = fj.simulate(fj.fedavg(rounds=1, local_steps=2, start="random"), model, agents, seed=4)
    other = fj.simulate(fj.fedavg(rounds=1, local_steps=2, start="random"), model, agents, seed=5)
    assert not np.array_equal(run.start, other.start)
    assert np.isfinite(run.meta).all()


@pytest.mark.slow
def test_reptile_in_episodes_learns_from_a_few_samples_of_a_few_classes():
    model, rng = fj.mlp([2, 4, 5], loss="cross_entropy"), np.random.default_rng(0)
    x, y = rng.normal(size=(40, 2)), np.arange(40, dtype=np.int32) % 5
    samples = Samples(jnp.asarray(x, jnp.float32), jnp.asarray(y), jnp.ones(40))
    method = fj.reptile(rounds=1, local_steps=1, learning_rate=0.3, batch=None, ways=2, shots=3)
    vector, key = model.init(jax.random.key(0)), jax.random.key(1)
    _, message, _ = method.agent(model.loss, (), Broadcast(vector), AgentData(samples, samples), key)
    support, _ = episode(samples, jax.random.fold_in(key, EPISODE_STREAM), ways=2, shots=3, queries=1)
    assert (support.mask.sum(), set(support.y.tolist())) == (6, {0, 1})
    np.testing.assert_allclose(message, vector - 0.3 * jax.grad(model.loss)(vector, support), rtol=1e-5, atol=1e-6)
