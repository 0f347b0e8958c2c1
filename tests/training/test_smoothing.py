"""Smoothing: a dense solve in float64, interpolation where nothing was rounded, and who counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fewjoule.training.smoothing import LEAST_NOISE, LENGTHS, smoothed

GRID = np.linspace(-5, 5, 20)[:, None]
AT = np.random.default_rng(0).uniform(-5, 5, (60, 1))
FINE = 2**20  # levels between which nothing is lost

run = jax.jit(smoothed, static_argnums=4)


def dense(x: np.ndarray, values: np.ndarray, at: np.ndarray, levels: int) -> np.ndarray:
    """The docstring's equations, function by function with NumPy in float64; values are [functions, M, outputs]."""
    width = np.ptp(x, axis=0).max()

    def kernel(a, b, length):
        return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * (length * width) ** 2))

    spreads = values.std((1, 2)) if values.shape[2] == 1 else np.sqrt(np.mean([v.var(0) for v in values], 1))
    ranges = np.ptp(values, axis=(1, 2))
    noise = max(np.mean((ranges / (levels - 1) / spreads) ** 2 / 12), LEAST_NOISE * len(x))
    units = [(v - v.mean(0)) / s for v, s in zip(values, spreads, strict=True)]

    def likelihood(length):
        matrix = kernel(x, x, length) + noise * np.eye(len(x))
        fits = sum((u * np.linalg.solve(matrix, u)).sum() for u in units)
        return -fits - len(units) * values.shape[2] * np.linalg.slogdet(matrix)[1]

    length = max(LENGTHS, key=likelihood)
    matrix = kernel(x, x, length) + noise * np.eye(len(x))
    between = [kernel(at, x, length) @ np.linalg.solve(matrix, u) for u in units]
    return np.stack([v.mean(0) + s * b for v, s, b in zip(values, spreads, between, strict=True)])


@pytest.mark.parametrize(("inputs", "levels"), [(1, 64), (1, 16), (2, 64)])
def test_it_is_the_dense_solve(inputs: int, levels: int) -> None:
    rng = np.random.default_rng(inputs)
    x = GRID if inputs == 1 else rng.uniform(-5, 5, (40, 2))
    at = AT if inputs == 1 else rng.uniform(-5, 5, (30, 2))
    values = np.stack([np.stack([a * np.sin(x.sum(1)), a * np.cos(x[:, 0])], 1) for a in (2.0, -3.0, 8.0)])
    values = np.round(values * 4) / 4
    got = run(*(jnp.asarray(v, jnp.float32) for v in (x, values, at)), jnp.ones(3), levels)
    np.testing.assert_allclose(got, dense(x, values, at, levels), atol=5e-3)


def test_it_goes_through_values_that_were_not_rounded() -> None:
    values = jnp.sin(jnp.asarray(GRID, jnp.float32))[None]
    np.testing.assert_allclose(run(GRID, values, GRID, jnp.ones(1), FINE), values, atol=1e-3)
    np.testing.assert_allclose(run(GRID, values, AT, jnp.ones(1), FINE)[0], np.sin(AT), atol=2e-3)


def test_rounded_values_are_smoothed_closer_to_the_truth_than_straight_lines_come() -> None:
    amplitudes = np.asarray([2.0, 6.0, 10.0])[:, None, None]
    truth = amplitudes * np.sin(GRID)
    spacing = np.ptp(truth, axis=(1, 2), keepdims=True) / 63
    values = np.round(truth / spacing) * spacing
    lines = np.stack([np.interp(AT[:, 0], GRID[:, 0], v[:, 0]) for v in values])[..., None]
    got = run(GRID, jnp.asarray(values, jnp.float32), AT, jnp.ones(3), 64)
    wanted = amplitudes * np.sin(AT)
    assert np.square(got - wanted).mean() < 0.1 * np.square(lines - wanted).mean()


def test_absent_functions_and_constant_ones_do_no_harm() -> None:
    values = jnp.stack([3 * jnp.sin(jnp.asarray(GRID, jnp.float32)), jnp.full((20, 1), 7.0)])
    alone = run(GRID, values, AT, jnp.asarray([1.0, 0.0]), 64)[0]
    for nonsense in (jnp.nan, 1e30, 0.0):
        beside = values.at[1].set(nonsense).at[1, 3].multiply(2)
        np.testing.assert_array_equal(run(GRID, beside, AT, jnp.asarray([1.0, 0.0]), 64)[0], alone)
    np.testing.assert_allclose(run(GRID, values, AT, jnp.ones(2), 64)[1], 7.0, rtol=1e-5)
    assert np.isfinite(run(GRID, values, AT, jnp.zeros(2), 64)).all()


def test_many_inputs_close_together_still_have_a_factor() -> None:
    x = jnp.linspace(0, 1e-3, 300)[:, None]
    assert np.isfinite(run(x, (1e6 * x)[None], x, jnp.ones(1), FINE)).all()
