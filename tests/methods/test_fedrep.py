"""FedRep between its two limits, and what of it travels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.methods.fedrep import HEAD_STREAM
from fewjoule.randomness import agent_id, key_for, round_key
from fewjoule.training.descent import descend, optimiser

STEPS = {"rounds": 2, "learning_rate": 0.05, "batch": 5}


def test_without_a_head_it_is_fedavg(model, agents, local_models):
    method = fj.fedrep(head_layers=0, head_steps=7, body_steps=3, **STEPS)
    run = fj.simulate(method, model, agents, local_models)
    other = fj.simulate(fj.fedavg(local_steps=3, **STEPS), model, agents, local_models)
    np.testing.assert_allclose(run.meta, other.meta, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(run.uplink_bits, other.uplink_bits)


@pytest.mark.slow
def test_with_all_layers_as_head_every_agent_trains_alone(model, agents, local_models):
    run = fj.simulate(fj.fedrep(head_layers=9, head_steps=3, **STEPS), model, agents, local_models, seed=4)
    assert run.uplink_bits.sum() == run.downlink_bits.sum() == 0
    for i, name in enumerate(agents.names):
        own, data = local_models[i], jax.tree.map(lambda a, i=i: a[i], agents.data.train)
        for k in range(2):
            key = jax.random.fold_in(round_key(key_for(4, "round"), k, agent_id(name)), HEAD_STREAM)
            own = descend(model.loss, own, data, key, by=optimiser("sgd", 0.05), steps=3, batch=5).vector
        np.testing.assert_allclose(run.personal[i], own, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_the_head_never_travels_and_a_new_device_has_the_seeds(model, agents, local_models):
    body = model.size - (5 + 1)
    run = fj.simulate(fj.fedrep(head_steps=2, body_steps=2, **STEPS), model, agents, local_models, seed=[0, 1])
    assert (run.uplink_bits == 32 * body).all()
    assert (run.downlink_bits[:, 1:] == 32 * body).all()
    start = jnp.stack([model.init(key_for(seed, "start")) for seed in (0, 1)])
    np.testing.assert_array_equal(run.meta[:, body:], start[:, body:])
    assert run.personal.shape == (2, 3, model.size)
    np.testing.assert_array_equal(run.personal[..., :body], np.repeat(run.meta[:, None, :body], 3, 1))
    assert np.ptp(run.personal[..., body:], axis=1).min() > 0  # every agent has its own
    method = fj.method("fedrep", codec="quantise:4", down_codec="quantise:8", **STEPS)
    coded = fj.simulate(method, model, agents, local_models)
    most = fj.codec("quantise:4").most_bytes(body)
    assert 0 < coded.uplink_bits.max() <= 8 * most


def test_a_new_device_tunes_its_head_only(model, agents, local_models):
    meta = model.init(jax.random.key(0))
    tasks = fj.sinusoid.new_tasks(2, amplitude=(1, 2), shots=5, seed=1)
    method = fj.fedrep()
    found = fj.adapt(model, meta, tasks, steps=[0, 3], tuning=method.tuning, keep_models=True)
    moved = np.asarray(found.models != meta)
    assert not moved[:, :-6].any()
    assert moved[:, -6:].any()
    head = jnp.asarray(meta[-6:])
    support = jax.tree.map(lambda a: a[0], tasks.support)
    for _ in range(3):
        head = head - 0.01 * jax.grad(lambda h: model.loss(jnp.concatenate([meta[:-6], h]), support))(head)
    np.testing.assert_allclose(found.models[0, -6:], head, rtol=1e-5, atol=1e-6)
