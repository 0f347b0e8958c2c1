"""Ditto between training alone and the common model."""

import jax
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.methods.ditto import PERSONAL_STREAM
from fewjoule.randomness import agent_id, key_for, round_key
from fewjoule.training.descent import descend, optimiser

STEPS = {"rounds": 2, "local_steps": 3, "learning_rate": 0.05, "batch": 5}


def test_the_shared_model_is_fedavgs_whatever_the_agents_keep(model, agents, local_models):
    run = fj.simulate(fj.ditto(personal_steps=4, **STEPS), model, agents, local_models)
    other = fj.simulate(fj.fedavg(**STEPS), model, agents, local_models)
    np.testing.assert_allclose(run.meta, other.meta, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(run.uplink_bits, other.uplink_bits)  # the own model never travels


@pytest.mark.slow
def test_without_its_term_every_agent_trains_alone(model, agents, local_models):
    run = fj.simulate(fj.ditto(proximal=0.0, personal_steps=4, **STEPS), model, agents, local_models, seed=4)
    for i, name in enumerate(agents.names):
        own, data = local_models[i], jax.tree.map(lambda a, i=i: a[i], agents.data.train)
        for k in range(2):
            key = jax.random.fold_in(round_key(key_for(4, "round"), k, agent_id(name)), PERSONAL_STREAM)
            own = descend(model.loss, own, data, key, by=optimiser("sgd", 0.05), steps=4, batch=5).vector
        np.testing.assert_allclose(run.personal[i], own, rtol=1e-4, atol=1e-5)


def test_a_large_term_keeps_the_own_model_at_the_common_one(model, agents, local_models):
    """In one round the common model is the start; with learning_rate * proximal = 1 steps end a gradient's step off."""

    def distance(proximal, learning_rate):
        settings = {"rounds": 1, "local_steps": 1, "personal_steps": 20, "batch": None}
        method = fj.ditto(proximal=proximal, learning_rate=learning_rate, **settings)
        run = fj.simulate(method, model, agents, local_models)
        return np.linalg.norm(run.personal - local_models.mean(0), axis=-1).max()

    assert distance(1e5, 1e-5) < 0.01 * distance(1e2, 1e-2) < 0.1 * distance(0.0, 1e-3)


def test_absent_agents_keep_their_own_model(model, agents, local_models):
    there = np.array([[1, 0, 1], [1, 0, 1]], bool)
    run = fj.simulate(fj.ditto(personal_steps=2, **STEPS), model, agents, local_models, availability=there)
    np.testing.assert_array_equal(run.personal[1], local_models[1])
    assert np.abs(run.personal[0] - local_models[0]).max() > 0
