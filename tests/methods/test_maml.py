"""MAML's meta-gradient against its closed form on a quadratic and finite differences on a network, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.methods.method import Broadcast
from fewjoule.tasks.samples import AgentData, Samples
from tests.methods.quadratic import agent as quadratic_agent
from tests.methods.quadratic import loss as quadratic_loss

STEP = 0.1


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def message_of(method, loss, theta, data):
    go = jax.jit(lambda t, d: method.agent(loss, (), Broadcast(t), d, jax.random.key(0)))
    _, message, info = go(jnp.asarray(theta), data)
    return np.asarray(message), np.asarray(info.model)


@pytest.mark.parametrize("steps", [1, 3])
def test_quadratic_has_its_closed_form(steps):
    """phi = Jacobian theta + shift, with Jacobian (I - step A)^steps; the meta-gradient is Jacobian' grad L_test."""
    rng = np.random.default_rng(steps)
    data, theta = quadratic_agent(rng, 5), rng.normal(size=5)
    (a, b), (a_test, b_test) = data.train[:2], data.validation[:2]
    once = np.eye(5) - STEP * a
    phi = theta
    for _ in range(steps):
        phi = once @ phi + STEP * b
    gradient = a_test @ phi - b_test
    settings = {"inner_steps": steps, "inner_learning_rate": STEP, "batch": None}
    second, reached = message_of(fj.maml(**settings), quadratic_loss, theta, data)
    first, _ = message_of(fj.fomaml(**settings), quadratic_loss, theta, data)
    np.testing.assert_allclose(reached, phi, rtol=1e-12)
    np.testing.assert_allclose(second, np.linalg.matrix_power(once, steps).T @ gradient, rtol=1e-10)
    np.testing.assert_allclose(first, gradient, rtol=1e-10)  # the Jacobian dropped


def test_first_order_steps_go_uphill_where_inner_step_times_curvature_is_above_one():
    """L = c v²/2 in every direction: MAML's message is (1 - step c)² c v, FOMAML's (1 - step c) c v. The inner step is
    stable up to step c = 2, but beyond 1 it overshoots, and the dropped factor is a sign."""
    step_times_curvature = np.array([0.2, 0.9, 1.1, 1.9])
    curvature, theta = step_times_curvature / STEP, np.array([1.0, -2.0, 3.0, 0.5])
    samples = Samples(np.diag(curvature), np.zeros(4), np.ones(4))
    data, settings = AgentData(samples, samples), {"inner_learning_rate": STEP, "batch": None}
    second, _ = message_of(fj.maml(**settings), quadratic_loss, theta, data)
    first, _ = message_of(fj.fomaml(**settings), quadratic_loss, theta, data)
    np.testing.assert_allclose(second, (1 - step_times_curvature) ** 2 * curvature * theta, rtol=1e-9)
    np.testing.assert_array_equal(np.sign(second), np.sign(theta))
    np.testing.assert_array_equal(np.sign(first), np.sign(theta) * [1, 1, -1, -1])


@pytest.mark.slow
def test_network_matches_finite_differences_and_the_dropped_jacobian():
    model = fj.mlp([1, 4, 1])
    rng = np.random.default_rng(3)

    def samples(n):
        x = rng.uniform(-2, 2, (n, 1))
        return Samples(jnp.asarray(x), jnp.asarray(np.sin(x)), jnp.ones(n))

    data = AgentData(samples(12), samples(9))
    theta = jnp.asarray(rng.normal(size=model.size))

    @jax.jit
    def adapted(theta):
        for _ in range(2):
            theta = theta - STEP * jax.grad(model.loss)(theta, data.train)
        return theta

    @jax.jit
    def objective(theta):
        return model.loss(adapted(theta), data.validation)

    settings = {"inner_steps": 2, "inner_learning_rate": STEP, "batch": None}
    second, _ = message_of(fj.maml(**settings), model.loss, theta, data)
    first, _ = message_of(fj.fomaml(**settings), model.loss, theta, data)
    tiny = 1e-6
    units = np.eye(model.size) * tiny
    differences = [(objective(theta + u) - objective(theta - u)) / (2 * tiny) for u in units]
    np.testing.assert_allclose(second, np.asarray(differences), rtol=1e-5, atol=1e-8)
    jacobian = np.asarray(jax.jacobian(adapted)(theta))
    np.testing.assert_allclose(second, jacobian.T @ first, rtol=1e-9, atol=1e-12)


def test_outer_optimiser_is_optax_by_name(model, agents, local_models):
    """With plain SGD outside, one round is theta - outer_learning_rate * mean of the messages."""
    with jax.enable_x64(False):
        method = fj.maml(rounds=1, outer_optimiser="sgd", outer_learning_rate=0.05, batch=None)
        run = fj.simulate(method, model, agents, local_models)
        start = local_models.mean(0)
        messages = [
            message_of(method, model.loss, start, jax.tree.map(lambda a, i=i: a[i], agents.data))[0] for i in range(3)
        ]
        np.testing.assert_allclose(run.meta, start - 0.05 * np.mean(messages, 0), rtol=1e-4, atol=1e-6)
