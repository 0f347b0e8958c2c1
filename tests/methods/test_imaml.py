"""iMAML's meta-gradient against the dense solve of its paper's equation, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.methods.imaml import conjugate_gradient
from fewjoule.methods.method import Broadcast
from fewjoule.tasks.samples import AgentData, Samples
from tests.methods.quadratic import agent as quadratic_agent
from tests.methods.quadratic import loss as quadratic_loss
from tests.methods.quadratic import matrix

LAMBDA = 2.0


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def run_agent(method, loss, theta, data):
    _, message, info = jax.jit(lambda t, d: method.agent(loss, (), Broadcast(t), d, jax.random.key(0)))(theta, data)
    return np.asarray(message), np.asarray(info.model)


def test_quadratic_reaches_the_closed_form():
    rng = np.random.default_rng(0)
    data, theta = quadratic_agent(rng, 6), rng.normal(size=6)
    method = fj.imaml(inner_steps=400, inner_learning_rate=0.2, regularisation=LAMBDA, cg_steps=12, batch=None)
    message, phi = run_agent(method, quadratic_loss, theta, data)
    (a, b), (a_test, b_test) = data.train[:2], data.validation[:2]
    nearest = np.linalg.solve(a + LAMBDA * np.eye(6), b + LAMBDA * theta)
    np.testing.assert_allclose(phi, nearest, rtol=1e-10)
    dense = np.linalg.solve(np.eye(6) + a / LAMBDA, a_test @ nearest - b_test)
    np.testing.assert_allclose(message, dense, rtol=1e-9)


def test_conjugate_gradient_converges_to_the_dense_solve_on_a_quadratic():
    rng = np.random.default_rng(1)
    system, b = np.eye(9) + matrix(rng, 9, 0.1, 40) / LAMBDA, rng.normal(size=9)
    dense = np.linalg.solve(system, b)
    errors = []
    for steps in (1, 2, 4, 6, 9, 30):
        off = np.asarray(conjugate_gradient(lambda v: system @ v, jnp.asarray(b), steps)) - dense
        errors.append(np.sqrt(off @ system @ off))  # the norm in which conjugate gradients never get worse
    assert errors[:5] == sorted(errors[:5], reverse=True)
    assert errors[4] < 1e-10  # at most as many steps as dimensions
    assert errors[5] < 1e-10  # and further steps do no harm


@pytest.mark.slow
def test_tiny_network_converges_to_the_dense_solve():
    model = fj.mlp([1, 3, 1])
    rng = np.random.default_rng(2)

    def samples(n):
        x = rng.uniform(-2, 2, (n, 1))
        return Samples(jnp.asarray(x), jnp.asarray(np.sin(x)), jnp.ones(n))

    data = AgentData(samples(12), samples(9))
    theta = jnp.asarray(rng.normal(size=model.size))
    messages = []
    for steps in (2, 6, 20):
        method = fj.imaml(inner_steps=20, inner_learning_rate=0.05, regularisation=8.0, cg_steps=steps, batch=None)
        message, phi = run_agent(method, model.loss, theta, data)
        messages.append(message)
    hessian = np.asarray(jax.jit(jax.hessian(model.loss))(jnp.asarray(phi), data.train))
    system = np.eye(model.size) + hessian / 8.0
    assert np.linalg.eigvalsh(system).min() > 0
    dense = np.linalg.solve(system, np.asarray(jax.grad(model.loss)(jnp.asarray(phi), data.validation)))
    errors = [np.linalg.norm(m - dense) / np.linalg.norm(dense) for m in messages]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-9


def test_inner_problem_is_the_papers(model, agents):
    """Every inner step descends L + lambda/2 ||phi - theta||², from theta, on one mini-batch: here all samples."""
    with jax.enable_x64(False):
        method = fj.imaml(inner_steps=3, inner_learning_rate=0.05, regularisation=LAMBDA, batch=None)
        data = jax.tree.map(lambda a: a[0], agents.data)
        theta = model.init(jax.random.key(3))
        _, phi = run_agent(method, model.loss, theta, data)
        expected = theta
        for _ in range(3):
            expected = expected - 0.05 * (jax.grad(model.loss)(expected, data.train) + LAMBDA * (expected - theta))
        np.testing.assert_allclose(phi, expected, rtol=1e-4, atol=1e-6)
