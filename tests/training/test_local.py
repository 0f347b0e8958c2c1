"""Offline training: its rules really stop it, and its record is true."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fewjoule as fj
from fewjoule.randomness import agent_id, key_for
from fewjoule.tasks.samples import draw

LINE = fj.Model(lambda key: jax.random.normal(key, (2,)), lambda w, x: x * w[0] + w[1])
"""A straight line: least squares, so that the gradient norm reaches any tolerance."""


def test_steps_are_optax_steps_on_the_agents_own_draws(model, agents):
    """Every agent's path, step by step outside the compiled program, with Adam by name."""
    local = fj.train_locally(
        model,
        agents,
        seed=2,
        optimiser="adam",
        learning_rate=0.02,
        batch=7,
        max_steps=6,
        check_every=4,
        gradient_tolerance=0,
    )
    adam = optax.adam(0.02)
    learning_rate = jax.jit(lambda v, batch: jax.grad(model.loss)(v, batch))
    for i, name in enumerate(agents.names):
        vector = model.init(key_for(2, "start"))
        memory = adam.init(vector)
        samples = jax.tree.map(lambda a, i=i: a[i], agents.data.train)
        key = jax.random.fold_in(key_for(2, "local"), agent_id(name))
        for chunk in range(2):  # six steps with checks every four: two chunks of three
            for k in jax.random.split(jax.random.fold_in(key, chunk), 3):
                change, memory = adam.update(learning_rate(vector, draw(samples, k, 7)), memory, vector)
                vector = optax.apply_updates(vector, change)
        np.testing.assert_allclose(local.models[i], vector, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(local.steps, [6, 6, 6])
    assert list(local.stopped_by) == ["limit"] * 3


@pytest.mark.parametrize(("max_steps", "check_every"), [(7, 3), (1, 500), (10, 4)])
def test_step_limit_is_exact(max_steps, check_every, agents):
    """Full-batch descent on least squares, against as many steps by hand."""
    local = fj.train_locally(
        LINE, agents, batch=None, max_steps=max_steps, check_every=check_every, gradient_tolerance=0
    )
    vector = LINE.init(key_for(0, "start"))
    samples = jax.tree.map(lambda a: a[0], agents.data.train)
    for _ in range(max_steps):
        vector = vector - 0.01 * jax.grad(LINE.loss)(vector, samples)
    np.testing.assert_allclose(local.models[0], vector, rtol=1e-5)
    np.testing.assert_array_equal(local.steps, [max_steps] * 3)


def test_gradient_rule_stops_each_agent_by_itself(agents):
    local = fj.train_locally(
        LINE, agents, batch=None, learning_rate=0.05, max_steps=5000, check_every=10, gradient_tolerance=1e-3
    )
    assert list(local.stopped_by) == ["gradient"] * 3
    assert (local.gradient_norm <= 1e-3).all()
    assert (local.steps < 5000).all()
    assert len(set(local.steps.tolist())) > 1
    longer = fj.train_locally(
        LINE, agents, batch=None, learning_rate=0.05, max_steps=5000, check_every=10, gradient_tolerance=1e-5
    )
    assert (longer.steps > local.steps).all()
    for i in range(3):  # it stopped at the first check where the rule held: ten steps earlier it did not
        before = fj.train_locally(
            LINE, agents, batch=None, learning_rate=0.05, max_steps=int(local.steps[i]) - 10, check_every=10,
            gradient_tolerance=0,
        )  # fmt: skip
        assert before.gradient_norm[i] > 1e-3


def test_plateau_rule_stops_where_the_loss_no_longer_falls(agents):
    local = fj.train_locally(
        LINE, agents, batch=None, learning_rate=0.05, max_steps=5000, check_every=10, gradient_tolerance=0,
        plateau_tolerance=0.01, patience=3,
    )  # fmt: skip
    assert list(local.stopped_by) == ["plateau"] * 3
    assert (local.steps < 5000).all()
    best = fj.train_locally(LINE, agents, batch=None, learning_rate=0.05, max_steps=5000, gradient_tolerance=1e-5)
    np.testing.assert_allclose(local.loss, best.loss, rtol=0.05)


def test_overflow_is_named_and_warned(model, agents):
    with pytest.warns(fj.DivergedWarning, match="diverged for 3 of 3 models .*'red' with seed 0.* Lower learning_rate"):
        local = fj.train_locally(model, agents, learning_rate=1e4, max_steps=200, check_every=50)
    assert list(local.stopped_by) == ["diverged"] * 3
    assert (local.steps < 200).all()
    with pytest.raises(fj.InputError, match="local models must be finite"):
        fj.simulate(fj.average(), model, agents, local)


@pytest.mark.slow
def test_seeds_agents_and_starts(model, agents):
    settings = {"max_steps": 6, "check_every": 6, "batch": 5}
    many = fj.train_locally(model, agents, seed=[3, 8], **settings)
    assert many.models.shape == (2, 3, model.size)
    assert many.start.shape == (2, model.size)
    one = fj.train_locally(model, agents, seed=8, **settings)
    np.testing.assert_allclose(many.models[1], one.models, rtol=1e-4, atol=1e-6)
    again = fj.train_locally(model, agents, seed=8, **settings)
    assert np.asarray(one.models).tobytes() == np.asarray(again.models).tobytes()
    alone = fj.train_locally(model, agents.select([2]), seed=8, **settings)
    np.testing.assert_allclose(alone.models[0], one.models[2], rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(one.start, model.init(key_for(8, "start")))


def test_agents_that_never_met_have_starts_of_their_own(model, agents):
    local = fj.train_locally(model, agents, shared_start=False, max_steps=1, learning_rate=1e-9)
    assert local.start.shape == (3, model.size)
    np.testing.assert_allclose(local.models, local.start, atol=1e-6)
    assert np.linalg.norm(local.start[0] - local.start[1]) > 0.1


@pytest.mark.slow
def test_agents_with_samples_per_seed(model):
    agents = fj.sinusoid.agents([1, 2], samples=12, validation=0, seed=[0, 5])
    local = fj.train_locally(model, agents, seed=[0, 5], max_steps=4, batch=None)
    single = fj.train_locally(
        model, fj.sinusoid.agents([1, 2], samples=12, validation=0, seed=5), seed=5, max_steps=4, batch=None
    )
    np.testing.assert_allclose(local.models[1], single.models, rtol=1e-4, atol=1e-6)
    assert jnp.isfinite(local.models).all()


def test_trial_28_training_tells_how_far_it_is_and_hears_ctrl_c(model, agents):
    shares = []
    fj.train_locally(model, agents, max_steps=2000, check_every=100, gradient_tolerance=0, told=shares.append)
    assert len(shares) > 2
    assert shares == sorted(shares)
    assert shares[-1] == 1.0

    def stop(share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # at the first sign of progress, far from the end
        fj.train_locally(model, agents, max_steps=10_000_000, check_every=100, gradient_tolerance=0, told=stop)
