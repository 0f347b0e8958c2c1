"""Algorithm 1: its projection, its two bounds, its limits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

import fewjoule as fj
from fewjoule.methods.meta_backward import AUTO_RISE, project

SCHEDULES = {
    "linear": "linear",
    "geometric": "geometric",
    "small constant": fj.Schedule("constant", first=1e-3),
    "list": [0.3, 0.2, 0.2, 0.05, 0.0],
    "auto": "auto",
}


compiled_project = jax.jit(project)


def kkt(point, centre, delta):
    """The paper's solution by its quadratic in mu, for a point outside the ball."""
    distance = ((point - centre) ** 2).sum()
    mu = max(np.roots([1, 1, 0.25 - distance / (4 * delta)]))
    return (point + 2 * mu * centre) / (1 + 2 * mu)


@given(st.integers(0, 2**32 - 1), st.floats(1e-3, 1e3), st.sampled_from([1, 7, 50]))
@settings(deadline=None, max_examples=60)
def test_projection_is_the_kkt_point(seed, radius, size):
    rng = np.random.default_rng(seed)
    point, centre = rng.normal(size=size) * 10 ** rng.uniform(-2, 3), rng.normal(size=size)
    with jax.enable_x64(True):
        nearest, active = compiled_project(point, centre, radius)
    outside = np.linalg.norm(point - centre) > radius
    assert bool(active) == outside
    expected = kkt(point, centre, radius**2) if outside else point
    np.testing.assert_allclose(nearest, expected, rtol=1e-9, atol=1e-9 * np.abs(point).max())


@pytest.mark.parametrize("seed", range(4))
def test_projection_is_scipys_constrained_minimum(seed):
    rng = np.random.default_rng(seed)
    point, centre, radius = rng.normal(size=3) * 2, rng.normal(size=3), 0.7
    ball = {"type": "ineq", "fun": lambda v: radius**2 - ((v - centre) ** 2).sum()}
    found = minimize(lambda v: ((v - point) ** 2).sum() / 2, centre, constraints=[ball], method="SLSQP", tol=1e-14)
    with jax.enable_x64(True):
        nearest, _ = compiled_project(point, centre, radius)
    np.testing.assert_allclose(nearest, found.x, atol=1e-6)


@pytest.mark.filterwarnings("ignore::fewjoule.DivergedWarning")
@pytest.mark.parametrize("radius", SCHEDULES.values(), ids=SCHEDULES)
def test_both_bounds_hold_on_any_run(radius, model, agents):
    """Agents end a round within the radius of the last average, so the average moves by no more; so do all rounds."""
    method = fj.meta_backward(rounds=5, learning_rate=0.3, batch=5, radius=radius)

    @given(st.integers(0, 2**32 - 1), st.floats(0.01, 3))
    @settings(deadline=None, max_examples=12)
    def check(seed, scale):
        local = np.random.default_rng(seed).normal(size=(3, model.size)).astype(np.float32) * scale
        run = fj.simulate(method, model, agents, local, seed=seed, keep_paths=True, diverged_at=np.inf)
        radii = np.asarray(run.trace.radius, float)
        path, rows = np.asarray(run.meta_path, float), np.asarray(run.agent_path, float)
        rounding = 1e-5 * np.abs(path).max() * np.sqrt(model.size)
        assert np.all(np.diff(radii) <= 1e-6 * radii[0])  # never growing towards round 0
        apart = np.linalg.norm(rows - path[:-1, None], axis=-1)
        assert np.all(apart <= radii[:, None] + rounding)
        moved = np.linalg.norm(np.diff(path, axis=0), axis=-1)
        assert np.all(moved <= radii + rounding)
        assert np.linalg.norm(path[-1] - path[0]) <= radii.sum() + rounding
        np.testing.assert_allclose(run.trace.step, moved, atol=2 * rounding)

    check()


def test_one_agent_without_a_ball_is_plain_gradient_ascent(model, agents, local_models):
    alone = agents.select([1])
    method = fj.meta_backward(rounds=5, learning_rate=0.01, batch=None, radius=float("inf"))
    run = fj.simulate(method, model, alone, local_models[1:2], diverged_at=np.inf)
    climb = local_models[1]
    for _ in range(5):
        climb = climb + 0.01 * jax.grad(model.loss)(climb, jax.tree.map(lambda a: a[0], alone.data.train))
    np.testing.assert_allclose(run.meta, climb, rtol=1e-4, atol=1e-6)
    assert not run.trace.active.any()


def test_radius_zero_keeps_the_average(model, agents, local_models):
    run = fj.simulate(fj.meta_backward(rounds=5, radius=0), model, agents, local_models)
    np.testing.assert_allclose(run.meta, local_models.mean(0), rtol=1e-6, atol=1e-7)
    assert (run.trace.active == 1).all()


def test_rounds_follow_the_papers_order(model, agents, local_models):
    """Algorithm 1 in plain NumPy: ascent from each agent's own last point, projection around the last average."""
    radii = [0.2, 0.1, 0.02]
    run = fj.simulate(
        fj.meta_backward(rounds=3, learning_rate=0.05, batch=None, radius=radii),
        model,
        agents,
        local_models,
        keep_paths=True,
    )
    phi, centre = np.asarray(local_models), np.asarray(local_models).mean(0)
    for k, radius in enumerate(radii):
        after = []
        for i in range(3):
            samples = jax.tree.map(lambda a, i=i: a[i], agents.data.train)
            p = phi[i] + 0.05 * np.asarray(jax.grad(model.loss)(jnp.asarray(phi[i]), samples))
            off = p - centre
            after.append(centre + off * min(1.0, radius / np.linalg.norm(off)))
        phi = np.stack(after)
        np.testing.assert_allclose(run.agent_path[k], phi, rtol=1e-4, atol=1e-5)
        centre = phi.mean(0)
    np.testing.assert_allclose(run.meta, centre, rtol=1e-4, atol=1e-5)


def test_schedules_are_shares_of_the_spread():
    np.testing.assert_allclose(fj.Schedule("constant", first=0.5).deltas(3), [0.5, 0.5, 0.5])
    np.testing.assert_allclose(fj.Schedule("linear").deltas(4), [1, 0.75, 0.5, 0.25], rtol=1e-6)
    np.testing.assert_allclose(fj.Schedule("linear", first=1, last=0).deltas(3), [1, 0.5, 0], atol=1e-7)
    np.testing.assert_allclose(fj.Schedule("geometric", first=1, last=0.01).deltas(3), [1, 0.1, 0.01], rtol=1e-5)


def test_linear_begins_at_the_spread(model, agents, local_models):
    run = fj.simulate(fj.meta_backward(rounds=4, learning_rate=1e-4, radius="linear"), model, agents, local_models)
    spread = np.square(np.asarray(local_models) - np.asarray(local_models).mean(0)).sum(-1).max()
    np.testing.assert_allclose(run.trace.radius**2, spread * np.array([1, 0.75, 0.5, 0.25]), rtol=1e-5)


def test_auto_is_a_trust_region_of_what_agents_send(model, agents, local_models):
    """slope * rho + curvature * rho² / 2 = AUTO_RISE * mean loss at rho = the sum of the radii."""
    method = fj.meta_backward(rounds=5, radius="auto")
    run = fj.simulate(method, model, agents, local_models)
    average = local_models.mean(0)
    losses, slopes, curvatures, hessian = [], [], [], jax.jit(jax.hessian(model.loss))
    for i in range(3):
        samples = jax.tree.map(lambda a, i=i: a[i], agents.data.train)
        losses.append(model.loss(average, samples))
        slopes.append(np.linalg.norm(jax.grad(model.loss)(average, samples)))
        curvatures.append(np.abs(np.linalg.eigvalsh(np.asarray(hessian(average, samples)))).max())
    total = max(np.roots([max(curvatures) / 2, np.mean(slopes), -AUTO_RISE * np.mean(losses)]))
    np.testing.assert_allclose(run.trace.radius, total / 5, rtol=0.01)
    plain = fj.simulate(fj.meta_backward(rounds=5, radius=0.1), model, agents, local_models)
    sent = np.asarray(run.uplink_bits) - np.asarray(plain.uplink_bits)
    np.testing.assert_array_equal(sent, [[3 * 32] * 3] + [[0] * 3] * 5)  # three scalars per agent, charged
