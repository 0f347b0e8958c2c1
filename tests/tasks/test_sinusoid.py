"""The sinusoid family."""

import numpy as np
import pytest

import fewjoule as fj


def test_agents_own_their_amplitude_and_phase():
    agents = fj.sinusoid.agents([2, 6], phases=[0.0, 0.5], samples=50, validation=20, x_range=(-1, 3))
    assert agents.names == ("amplitude 2", "amplitude 6 phase 0.5")
    for samples, n in ((agents.data.train, 50), (agents.data.validation, 20)):
        x, y = np.asarray(samples.x)[..., 0], np.asarray(samples.y)[..., 0]
        assert x.shape == (2, n)
        assert -1 <= x.min() < -0.5
        assert 2.5 < x.max() <= 3
        np.testing.assert_allclose(y[0], 2 * np.sin(x[0]), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(y[1], 6 * np.sin(x[1] + 0.5), rtol=1e-5, atol=1e-5)


def test_samples_depend_on_seed_and_name_alone():
    a = fj.sinusoid.agents([2, 6, 10], samples=5)
    b = fj.sinusoid.agents([10, 2], samples=5)
    np.testing.assert_array_equal(a.data.train.x[2], b.data.train.x[0])
    many = fj.sinusoid.agents([2, 6, 10], samples=5, seed=[3, 0])
    np.testing.assert_array_equal(many.data.train.x[1], a.data.train.x)
    assert not np.array_equal(many.data.train.x[0], a.data.train.x)
    assert many.seeds == (3, 0)


def test_twins_have_samples_of_their_own():
    agents = fj.sinusoid.agents([2, 2, 2], samples=5)
    assert agents.names == ("amplitude 2", "amplitude 2 again", "amplitude 2 again again")
    assert not np.array_equal(agents.data.train.x[0], agents.data.train.x[1])


def test_noise_has_its_standard_deviation():
    agents = fj.sinusoid.agents([3], samples=5000, noise=0.2)
    x, y = np.asarray(agents.data.train.x), np.asarray(agents.data.train.y)
    np.testing.assert_allclose(np.std(y - 3 * np.sin(x)), 0.2, rtol=0.05)


def test_new_tasks_are_whole_sinusoids_in_their_ranges():
    tasks = fj.sinusoid.new_tasks(200, amplitude=(0.1, 10), phase=(0, 1), shots=7, queries=9, seed=4)
    assert tasks.support.x.shape == (200, 7, 1)
    assert tasks.query.y.shape == (200, 9, 1)
    x, y = (
        np.concatenate([a, b], 1)[..., 0]
        for a, b in ((tasks.support.x, tasks.query.x), (tasks.support.y, tasks.query.y))
    )
    for row in range(200):  # y = p sin x + q cos x: amplitude and phase by least squares
        (p, q), residual, *_ = np.linalg.lstsq(np.stack([np.sin(x[row]), np.cos(x[row])], 1), y[row])
        assert residual.sum() < 1e-6
        assert np.hypot(p, q) + 1e-4 >= 0.1
        assert np.hypot(p, q) <= 10 + 1e-4
        assert -1e-4 <= np.arctan2(q, p) <= 1 + 1e-4
    again = fj.sinusoid.new_tasks(200, amplitude=(0.1, 10), phase=(0, 1), shots=7, queries=9, seed=4)
    np.testing.assert_array_equal(again.query.y, tasks.query.y)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: fj.sinusoid.agents([]), "at least one agent"),
        (lambda: fj.sinusoid.agents([2], samples=0), "samples must be at least 1"),
        (lambda: fj.sinusoid.agents([2], x_range=(5, -5)), "low below high"),
        (lambda: fj.sinusoid.agents([2], phases=[0.0, 1.0]), "one per agent: 1, got 2"),
        (lambda: fj.sinusoid.agents([float("nan")]), "must be finite"),
        (lambda: fj.sinusoid.agents([2], noise=-1), "noise must be 0 or more"),
        (lambda: fj.sinusoid.agents([2], seed=-1), "seed"),
        (lambda: fj.sinusoid.new_tasks(0), "at least 1"),
        (lambda: fj.sinusoid.new_tasks(5, amplitude=(10, 1)), "amplitude must be"),
    ],
)
def test_wrong_settings_are_refused(make, match):
    with pytest.raises(fj.InputError, match=match):
        make()
