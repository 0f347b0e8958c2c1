"""The statements of docs/theory.md, checked on quadratics whose every number is known in closed form.

Agent i has the loss L_i(phi) = 1/2 sum_j h_j (phi_j - theta_ij)^2: a linear model on scaled unit vectors.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fewjoule as fj
from fewjoule.training.smoothing import smoothed

CURVATURES = np.array([0.1, 1.0, 5.0, 50.0], np.float32)
MODEL = fj.Model(lambda key: jnp.zeros(4), lambda weights, x: x @ weights[:, None])
ROUNDS, STEP = 6, 0.02


def quadratic(optimum):
    """Samples whose mean squared error is the quadratic around `optimum`."""
    x = np.diag(np.sqrt(len(CURVATURES) * CURVATURES / 2)).astype(np.float32)
    return x, (x @ optimum)[:, None]


@pytest.fixture(scope="module")
def world():
    rng = np.random.default_rng(0)
    optima = rng.normal(size=(3, 4)).astype(np.float32)
    agents = fj.make_agents([quadratic(o) for o in optima])
    return agents, optima, rng


def test_the_samples_make_the_quadratic(world):
    agents, optima, rng = world
    phi = rng.normal(size=4).astype(np.float32)
    samples = jax.tree.map(lambda a: a[1], agents.data.train)
    expected = 0.5 * (CURVATURES * (phi - optima[1]) ** 2).sum()
    assert float(MODEL.loss(jnp.asarray(phi), samples)) == pytest.approx(expected, rel=1e-5)


def ascend(world, errors, radius):
    agents, optima, _ = world
    method = fj.meta_backward(rounds=ROUNDS, learning_rate=STEP, batch=None, radius=radius)
    return fj.simulate(method, MODEL, agents, jnp.asarray(optima + errors), diverged_at=1e9)


def test_ascent_from_exact_optima_does_nothing_to_the_average(world):
    run = ascend(world, 0, float("inf"))
    np.testing.assert_allclose(run.meta, world[1].mean(0), atol=1e-6)


def test_an_ascent_step_multiplies_the_error_of_every_eigendirection_by_one_plus_step_times_curvature(world):
    errors = 0.01 * np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    run = ascend(world, errors, float("inf"))
    grown = (1 + STEP * CURVATURES) ** ROUNDS * errors.mean(0)
    np.testing.assert_allclose(run.meta, world[1].mean(0) + grown, rtol=1e-4, atol=1e-6)


def expected_loss(meta, centre, variance, steps, learning_rate):
    """Mean loss after gradient descent on a new task whose optimum has this mean and variance per direction."""
    return (
        0.5 * (CURVATURES * (1 - learning_rate * CURVATURES) ** (2 * steps) * ((meta - centre) ** 2 + variance)).sum()
    )


@pytest.mark.parametrize("steps", [0, 1, 10])
@pytest.mark.parametrize("radius", [0.0, 0.01, 0.5, float("inf")])
def test_it_cannot_beat_the_average_where_new_tasks_are_centred_on_it(world, steps, radius):
    _, optima, _ = world
    errors = 0.05 * np.random.default_rng(2).normal(size=(3, 4)).astype(np.float32)
    errors -= errors.mean(0)  # so that the average of the local models is the average of the optima
    centre = optima.mean(0)
    meta = np.asarray(ascend(world, errors, radius).meta)
    ours = expected_loss(meta, centre, 1.0, steps, 0.01)
    assert ours >= expected_loss(centre, centre, 1.0, steps, 0.01) * (1 - 1e-6)
    tasks = [quadratic(o) for o in centre + np.random.default_rng(3).normal(size=(4000, 4)).astype(np.float32)]
    stacked = fj.Tasks(*(fj.tasks.samples.stack(tasks, what="task"),) * 2)
    seen = fj.adapt(MODEL, jnp.asarray(meta), stacked, steps=[steps], learning_rate=0.01).mean()[steps]
    assert seen == pytest.approx(ours, rel=0.08)  # the formula is what adaptation really does; 4000 tasks


@pytest.mark.slow
def test_in_a_small_ball_it_climbs_the_mean_loss_that_fedsgd_descends(world):
    """Once the ball holds all agents, each moves along its own normalised gradient at the average: uphill."""
    agents, optima, _ = world
    radius = 1e-4
    run = fj.simulate(
        fj.meta_backward(rounds=ROUNDS, learning_rate=STEP, batch=None, radius=radius), MODEL, agents,
        jnp.asarray(optima + 0.3), keep_paths=True,
    )  # fmt: skip
    path = np.asarray(run.meta_path)
    gradients = CURVATURES * (path[1] - optima)
    uphill = radius * (gradients / np.linalg.norm(gradients, axis=1, keepdims=True)).mean(0)
    np.testing.assert_allclose(path[2] - path[1], uphill, atol=0.05 * radius)
    mean_loss = [0.5 * (CURVATURES * (p - optima) ** 2).sum(1).mean() for p in path[1:]]
    assert np.all(np.diff(mean_loss) > 0)
    descent = fj.simulate(fj.fedsgd(rounds=1, learning_rate=STEP, batch=None), MODEL, agents, jnp.asarray(optima + 0.3))
    assert float(jnp.vdot(descent.meta - descent.start, path[2] - path[1])) < 0


SMOOTHED = jax.jit(smoothed, static_argnums=4)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), bits=st.sampled_from([2, 6]), questions=st.sampled_from([5, 30]))
def test_answers_of_linear_models_are_within_the_bound(seed, bits, questions):
    """docs/theory.md: least squares to quantised answers is within s / (2 sqrt(lambda)) of the agent's weights."""
    rng = np.random.default_rng(seed)
    x, phi = rng.normal(size=(questions, 3)), rng.normal(size=3) * 10.0 ** rng.uniform(-3, 3)
    answers = (x @ phi).astype(np.float32)
    told = fj.codec(f"uniform:{bits}").encode(answers)
    fitted = np.linalg.lstsq(x, fj.codec(f"uniform:{bits}").decode(told, questions).astype(float), rcond=None)[0]
    spacing = max(1.008 * np.ptp(answers) / (2**bits - 1), np.abs(answers).max() / 7500)
    reach = np.linalg.eigvalsh(x.T @ x / questions)[0]
    assert np.linalg.norm(fitted - phi) <= spacing / (2 * np.sqrt(reach)) * (1 + 1e-3)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), levels=st.sampled_from([4, 64]))
def test_smoothing_shrinks_what_it_is_given(seed, levels):
    """docs/theory.md: at the questions, smoothing is a contraction, whatever the answers; so are rounding errors."""
    rng = np.random.default_rng(seed)
    x = jnp.asarray(rng.uniform(-1, 1, (12, 2)), jnp.float32)
    answers = jnp.asarray(rng.normal(size=(2, 12, 1)) * 10.0 ** rng.uniform(-3, 3), jnp.float32)
    filled = SMOOTHED(x, answers, x, jnp.ones(2), levels)
    middle = np.asarray(answers).mean(1, keepdims=True)
    sizes = [np.linalg.norm(np.asarray(a) - middle, axis=1) for a in (filled, answers)]
    assert (sizes[0] <= sizes[1] * (1 + 1e-3)).all()
