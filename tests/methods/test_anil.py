"""ANIL and Meta-SGD beside MAML."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.methods.method import Broadcast, Start
from fewjoule.simulation.rules import loss_of
from fewjoule.tasks.samples import draw

STEPS = {"rounds": 3, "inner_steps": 2, "inner_learning_rate": 0.05, "outer_learning_rate": 0.01, "batch": 5}


@pytest.mark.slow
def test_meta_sgd_with_frozen_equal_rates_is_maml(model, agents, local_models):
    frozen = fj.simulate(fj.meta_sgd(rates_learning_rate=0.0, **STEPS), model, agents, local_models)
    maml = fj.simulate(fj.maml(**STEPS), model, agents, local_models)
    np.testing.assert_allclose(frozen.meta, maml.meta, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(frozen.rates, np.full(model.size, 0.05), rtol=1e-6)
    np.testing.assert_array_equal(frozen.uplink_bits[1:], 2 * maml.uplink_bits[1:])  # a vector beside the gradient
    np.testing.assert_array_equal(frozen.downlink_bits[1:], 2 * maml.downlink_bits[1:])  # and the rates


def test_meta_sgd_learns_rates_by_the_derivative_of_the_paper(model, agents, local_models):
    """One inner step: d L(theta - alpha * g) / d alpha = -g * grad L(phi); SGD along its mean."""
    settings = {**STEPS, "rounds": 1, "inner_steps": 1, "batch": None, "outer_optimiser": "sgd"}
    run = fj.simulate(fj.meta_sgd(rates_learning_rate=0.1, **settings), model, agents, local_models)
    theta, slopes = local_models.mean(0), []
    for i in range(3):
        data = jax.tree.map(lambda a, i=i: a[i], agents.data)
        g = jax.grad(model.loss)(theta, data.train)
        slopes.append(-g * jax.grad(model.loss)(theta - 0.05 * g, data.validation))
    np.testing.assert_allclose(run.rates, 0.05 - 0.1 * np.mean(slopes, 0), rtol=1e-4, atol=1e-6)


def test_a_new_device_fine_tunes_with_the_rates(model):
    meta = model.init(jax.random.key(0))
    rates = 0.02 * jax.random.uniform(jax.random.key(1), meta.shape)
    tasks = fj.sinusoid.new_tasks(2, amplitude=(1, 2), shots=5, seed=1)
    found = fj.adapt(model, meta, tasks, steps=[0, 2], rates=rates, keep_models=True)
    vector, support = meta, jax.tree.map(lambda a: a[0], tasks.support)
    for _ in range(2):
        vector = vector - rates * jax.grad(model.loss)(vector, support)
    np.testing.assert_allclose(found.models[0], vector, rtol=1e-5, atol=1e-6)
    with pytest.raises(fj.InputError, match="rates must be shaped as meta"):
        fj.adapt(model, meta, tasks, rates=rates[1:])


@pytest.mark.slow
def test_anil_is_mamls_gradient_with_the_inner_steps_of_the_head_alone(model, agents):
    """By finite differences of the loss after hand-made inner steps; and only the body's part is sent."""
    method = fj.anil(**STEPS)
    data, key = jax.tree.map(lambda a: a[0], agents.data), jax.random.key(3)
    own = model.init(jax.random.key(8))
    body = model.size - 6
    _, gradient, info = method.agent(loss_of(method, model), own, Broadcast(own[:body]), data, key)
    inner_key, outer_key = jax.random.split(key)
    support, query = draw(data.train, inner_key, 5), draw(data.validation, outer_key, 5)

    def after(theta):
        head = own[body:]
        for _ in range(2):
            head = head - 0.05 * jax.grad(lambda h: model.loss(jnp.concatenate([theta, h]), support))(head)
        return model.loss(jnp.concatenate([theta, head]), query)

    np.testing.assert_allclose(info.loss, after(own[:body]), rtol=1e-5)
    along = jax.random.normal(jax.random.key(9), (body,))
    slope = (after(own[:body] + 1e-3 * along) - after(own[:body] - 1e-3 * along)) / 2e-3
    np.testing.assert_allclose(gradient @ along, slope, rtol=2e-2, atol=1e-3)
    run = fj.simulate(method, model, agents, seed=2)
    assert (run.uplink_bits[1:] == 32 * body).all()
    np.testing.assert_array_equal(run.meta[body:], run.start[body:])


@pytest.mark.slow
def test_episodes_number_the_classes_anew_for_maml_and_its_kin():
    """Agents of six classes, of which an episode has three."""
    rng = np.random.default_rng(0)
    agents = fj.make_agents([(rng.normal(size=(30, 2)), rng.integers(0, 6, 30)) for _ in range(2)])
    model = fj.mlp([2, 4, 6], loss="cross_entropy")
    settings = {"rounds": 2, "ways": 3, "shots": 1, "queries": 2}
    for build in (fj.maml, fj.anil, fj.meta_sgd):
        start = {} if build is fj.anil else {"start": "random"}
        run = fj.simulate(build(**settings, **start), model, agents)
        assert np.isfinite(run.meta).all()  # and no validation samples are needed


@pytest.mark.parametrize("name", ["maml", "fomaml", "anil", "meta_sgd", "protonet"])
def test_the_servers_learning_rate_falls_over_the_rounds(name):
    sgd = {"server_optimiser": "sgd", "learning_rate": 0.5} if name == "protonet" else {"outer_optimiser": "sgd"}
    sgd |= {} if name == "protonet" else {"outer_learning_rate": 0.5}
    sgd |= {"rates_learning_rate": 0.5} if name == "meta_sgd" else {}
    method = fj.method(name, rounds=4, schedule="linear", **sgd)
    theta, gradient = jnp.zeros(3), jnp.ones(3)
    state, broadcast = method.init(Start(theta, jnp.zeros(())), None)
    for left in (4, 3, 2, 1):
        before = broadcast.model
        state, broadcast = method.server(state, (gradient, gradient) if name == "meta_sgd" else gradient)
        np.testing.assert_allclose(broadcast.model - before, -0.5 * left / 4 * gradient, rtol=1e-5)
    with pytest.raises(fj.InputError, match="unknown schedule 'cosin'; did you mean 'cosine'"):
        fj.method(name, schedule="cosin")
