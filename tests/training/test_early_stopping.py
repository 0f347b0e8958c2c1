"""Early stopping keeps the model with the lowest validation loss; optax objects and schedules are taken as they are."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fewjoule as fj


def noisy_agents():
    rng = np.random.default_rng(0)
    pairs = [tuple(rng.normal(size=(2, 12, 1))) for _ in range(3)]  # nothing to learn: every step is overfitting
    held = [tuple(rng.normal(size=(2, 40, 1))) for _ in range(3)]
    return fj.make_agents(pairs, validation=held)


@pytest.mark.slow
def test_the_model_of_the_lowest_validation_loss_is_kept():
    agents, model = noisy_agents(), fj.mlp([1, 30, 1])
    same = {"learning_rate": 0.05, "batch": None, "check_every": 20, "gradient_tolerance": 0.0}
    stopped = fj.train_locally(model, agents, early_stopping=True, patience=4, max_steps=2000, **same)
    assert list(stopped.stopped_by) == ["validation"] * 3
    for agent, steps in enumerate(np.asarray(stopped.steps)):
        there = fj.train_locally(model, agents, max_steps=int(steps) - 4 * 20, **same).models[agent]
        np.testing.assert_allclose(stopped.models[agent], there, atol=1e-5)
        longer = fj.train_locally(model, agents, max_steps=int(steps), **same).models[agent]
        held = jax.tree.map(lambda a, i=agent: jnp.asarray(a)[i], agents.data.validation)
        assert model.loss(there, held) < model.loss(longer, held)
    losses = jax.vmap(model.loss)(stopped.models, agents.data.train)
    np.testing.assert_allclose(stopped.loss, losses, rtol=1e-4)


def test_early_stopping_needs_validation_samples():
    agents = fj.make_agents([(np.ones((3, 1)), np.ones((3, 1)))])
    with pytest.raises(fj.InputError, match="early_stopping needs validation samples of every agent"):
        fj.train_locally(fj.mlp([1, 1]), agents, early_stopping=True)


@pytest.mark.slow
def test_an_optax_object_does_what_its_name_does():
    agents, model = noisy_agents(), fj.mlp([1, 5, 1])
    by_name = fj.train_locally(model, agents, optimiser="adam", learning_rate=0.02, max_steps=30)
    by_object = fj.train_locally(model, agents, optimiser=optax.adam(0.02), max_steps=30)
    np.testing.assert_array_equal(by_name.models, by_object.models)


FALLS = {"linear": lambda t: 1 - t / 40, "cosine": lambda t: (1 + np.cos(np.pi * t / 40)) / 2}


@pytest.mark.parametrize("schedule", FALLS)
def test_a_schedule_is_followed(schedule):
    x = np.ones((4, 1))
    agents = fj.make_agents([(x, 0 * x)])
    model = fj.Model(lambda key: jnp.ones(1), lambda w, x: x * w)  # each step: w -= rate * 2 w
    same = {"batch": None, "max_steps": 40, "gradient_tolerance": 0.0}
    found = fj.train_locally(model, agents, learning_rate=0.1, schedule=schedule, **same)
    expected = np.prod([1 - 0.2 * FALLS[schedule](t) for t in range(40)])
    np.testing.assert_allclose(found.models[0, 0], expected, rtol=1e-4)
    with pytest.raises(fj.InputError, match="unknown schedule 'cosin'"):
        fj.train_locally(model, agents, schedule="cosin")
