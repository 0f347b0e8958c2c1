"""Few-shot adaptation against a plain loop."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fewjoule as fj

TASKS = fj.sinusoid.new_tasks(4, shots=6, queries=9, seed=2)


def by_hand(model, meta, tasks, steps, learning_rate, optimiser):
    chosen = {"sgd": optax.sgd, "adam": optax.adam}[optimiser](learning_rate)
    gradient, loss = jax.jit(jax.grad(model.loss)), jax.jit(model.loss)
    rows = []
    for t in range(len(tasks.support.x)):
        support, query = (jax.tree.map(lambda a, t=t: a[t], part) for part in tasks)
        vector, memory, row = meta, chosen.init(meta), []
        for done in range(max(steps) + 1):
            if done in steps:
                row.append(float(loss(vector, query)))
            change, memory = chosen.update(gradient(vector, support), memory, vector)
            vector = optax.apply_updates(vector, change)
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_every_number_of_steps_matches_a_plain_loop(optimiser, model, local_models):
    result = fj.adapt(model, local_models, TASKS, steps=[0, 1, 3], learning_rate=0.02, optimiser=optimiser)
    assert result.loss.shape == (3, 4, 3)
    for i in range(3):
        expected = by_hand(model, local_models[i], TASKS, [0, 1, 3], 0.02, optimiser)
        np.testing.assert_allclose(result.loss[i], expected, rtol=1e-4)
    assert np.isnan(result.accuracy).all()
    np.testing.assert_allclose(result.median()[3], np.median(result.loss[..., 2]))
    np.testing.assert_allclose(result.mean()[1], result.loss[..., 1].mean(), rtol=1e-6)
    np.testing.assert_allclose(result.quantile(0.9)[0], np.quantile(result.loss[..., 0], 0.9), rtol=1e-6)


def test_one_meta_model_and_adapted_vectors(model, local_models):
    result = fj.adapt(model, local_models[0], TASKS, steps=[3], learning_rate=0.02, keep_models=True)
    assert result.loss.shape == (4, 1)
    assert result.models.shape == (4, model.size)
    query = jax.tree.map(lambda a: a[2], TASKS.query)
    np.testing.assert_allclose(model.loss(result.models[2], query), result.loss[2, 0], rtol=1e-5)


def test_accuracy_of_classes():
    model = fj.logistic(2, 3)
    rng = np.random.default_rng(0)
    agents = fj.make_agents(
        [(rng.normal(size=(30, 2)) + 3 * np.eye(3, 2)[c % 3][None], np.full(30, c)) for c in (0, 1)]
    )
    samples = agents.data.train
    result = fj.adapt(model, jnp.zeros(model.size), fj.Tasks(samples, samples), steps=[0, 20], learning_rate=0.5)
    np.testing.assert_array_equal(result.accuracy[:, 1], [1, 1])  # one class each: twenty steps are plenty
    assert result.median("accuracy")[20] == 1
    np.testing.assert_allclose(result.loss[:, 0], np.log(3), rtol=1e-5)


def test_overflow_is_infinite_and_diverged_models_are_left_out(model, local_models):
    wild = fj.adapt(model, local_models[0], TASKS, steps=[0, 30], learning_rate=1e3)
    assert np.isposinf(wild.loss[:, 1]).all()
    metas = local_models.at[1].set(jnp.nan)
    result = fj.adapt(model, metas, TASKS, steps=[0, 3], learning_rate=0.02)
    assert np.isnan(result.loss[1]).all()
    with pytest.warns(fj.DivergedWarning, match="1 of 3 meta-models had diverged and are left out"):
        median = result.median()
    np.testing.assert_allclose(median[3], np.median(result.loss[[0, 2], :, 1]))
    nobody = fj.adapt(model, jnp.full(model.size, jnp.nan), TASKS, steps=[0, 3], learning_rate=0.02)
    with pytest.warns(fj.DivergedWarning, match="1 of 1"):
        assert np.isnan(nobody.mean()[3])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fj.adapt(model, local_models, TASKS, steps=[0, 3], learning_rate=0.02).median()


def test_trial_29_an_infinite_mean_says_how_many_overflowed(model, local_models):
    result = fj.adapt(model, local_models, TASKS, steps=[0, 2], learning_rate=0.02)
    assert result.overflows() == []
    result.loss[1, 2:, 1] = np.inf
    with pytest.warns(fj.DivergedWarning, match="after 2 steps 2 of 12 fine-tunings overflowed, so the mean"):
        assert result.mean()[2] == np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result.median()
