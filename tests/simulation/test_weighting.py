"""Means over agents or over samples, and local epochs: against loops that a reader can check by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.simulation.rules import mean_over
from fewjoule.tasks.samples import Samples
from fewjoule.training.descent import descend_epochs, optimiser

SIZES = np.array([20, 13, 17])


def test_samples_weigh_by_n_over_n(model, agents, local_models):
    by_samples = fj.simulate(fj.average(weighting="samples"), model, agents, local_models).meta
    np.testing.assert_allclose(by_samples, np.average(local_models, axis=0, weights=SIZES), rtol=1e-5, atol=1e-6)
    by_agents = fj.simulate(fj.average(), model, agents, local_models).meta
    np.testing.assert_allclose(by_agents, np.mean(local_models, axis=0), rtol=1e-5, atol=1e-6)
    assert not np.allclose(by_samples, by_agents)


def test_fedsgd_by_samples_is_gradient_descent_on_all_samples(model, agents):
    """With all samples in each step, the weighted mean of the gradients is the gradient of the pooled loss."""
    rounds, rate = 5, 0.05
    run = fj.simulate(
        fj.method("fedsgd", rounds=rounds, learning_rate=rate, batch=None, start="random", weighting="samples"),
        model,
        agents,
    )
    train = agents.data.train
    pooled = Samples(train.x.reshape(-1, 1), train.y.reshape(-1, 1), train.mask.reshape(-1))
    vector = run.start
    for _ in range(rounds):
        vector = vector - rate * jax.grad(model.loss)(vector, pooled)
    np.testing.assert_allclose(run.meta, vector, rtol=1e-4, atol=1e-6)


def test_those_absent_have_no_weight():
    each = jnp.asarray([[1.0], [10.0], [100.0]])
    here, weights = jnp.asarray([True, False, True]), jnp.asarray([1.0, 5.0, 3.0])
    np.testing.assert_allclose(mean_over(each, here, weights), [(1 + 300) / 4])
    np.testing.assert_allclose(mean_over(each, here), [101 / 2])
    np.testing.assert_allclose(mean_over(each, jnp.zeros(3, bool), weights), [0])


def test_an_agent_says_its_number_of_samples_once(model, agents, local_models):
    runs = [fj.simulate(fj.fedavg(rounds=2, weighting=w), model, agents, local_models) for w in ("agents", "samples")]
    more = runs[1].uplink_bits - runs[0].uplink_bits
    np.testing.assert_array_equal(more, [[32] * 3, [0] * 3, [0] * 3])


@pytest.mark.parametrize(
    "name", ["fedexp", *(pytest.param(n, marks=pytest.mark.slow) for n in ("fedavg", "reptile", "fedavgm"))]
)
def test_equal_sizes_make_the_two_weightings_equal(name, model):
    pairs = [(np.linspace(-1, 1, 8), a * np.linspace(-1, 1, 8)) for a in (1.0, 2.0)]
    agents = fj.make_agents(pairs)
    settings = {"rounds": 2, "local_steps": 3, "start": "random"}
    one, two = (
        fj.simulate(fj.method(name, **settings, weighting=w), model, agents).meta for w in ("agents", "samples")
    )
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def samples(count, pad=0):
    x = np.arange(count, dtype=np.float32)[:, None]
    full = np.concatenate([x, np.repeat(x[:1], pad, 0)])
    mask = np.concatenate([np.ones(count), np.zeros(pad)]).astype(np.float32)
    return Samples(jnp.asarray(full), jnp.asarray(full), jnp.asarray(mask))


def visited(data, epochs, batch, key):
    """Which samples every step of a descent took: the loss is linear, so that its gradient tells them."""

    def loss(vector, minibatch):
        hot = jax.nn.one_hot(minibatch.x[:, 0].astype(int), len(vector)) * minibatch.mask[:, None]
        return hot.sum(0) @ vector

    return -np.asarray(
        descend_epochs(loss, jnp.zeros(10), data, key, by=optimiser("sgd", 1.0), epochs=epochs, batch=batch).vector
    )


@pytest.mark.parametrize("batch", [1, 3, 10, None])
def test_an_epoch_takes_every_sample_once(batch):
    np.testing.assert_array_equal(visited(samples(10), 4, batch, jax.random.key(3)), np.full(10, 4.0))


def test_padding_changes_nothing_in_an_epoch(model):
    full = samples(7)
    settings = {"by": optimiser("adam", 0.01), "epochs": 3, "batch": 3}
    start, key = model.init(jax.random.key(0)), jax.random.key(5)
    alone = descend_epochs(model.loss, start, full, key, **settings)
    padded = descend_epochs(model.loss, start, samples(7, pad=6), key, **settings)
    np.testing.assert_allclose(alone.vector, padded.vector, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(alone.first_loss, padded.first_loss, rtol=1e-6)


def test_a_full_batch_epoch_is_a_step(model, agents):
    settings = {"rounds": 2, "batch": None, "start": "random"}
    epochs = fj.simulate(fj.fedavg(epochs=4, **settings), model, agents).meta
    steps = fj.simulate(fj.fedavg(local_steps=4, **settings), model, agents).meta
    np.testing.assert_allclose(epochs, steps, rtol=1e-5, atol=1e-6)


def test_epochs_are_shuffled_anew(model, agents):
    """Two epochs are not the first one twice: the order differs, so a stochastic descent ends elsewhere."""
    metas = [
        np.asarray(fj.simulate(fj.fedavg(rounds=1, epochs=e, batch=5, start="random"), model, agents, seed=s).meta)
        for e, s in ((1, 0), (1, 1), (2, 0))
    ]
    assert not np.allclose(metas[0], metas[1])
    assert not np.allclose(metas[0], metas[2])


def test_wrong_settings_are_said():
    with pytest.raises(fj.InputError, match="weighting must be 'agents' or 'samples', got 'sizes'"):
        fj.fedavg(weighting="sizes")
    with pytest.raises(fj.InputError, match="epochs must be at least 1, got 0"):
        fj.fedavg(epochs=0)
