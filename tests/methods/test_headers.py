"""What a method's header says is what its code does: the equations again, in NumPy and float64."""

import numpy as np
import pytest

import fewjoule as fj
from fewjoule.methods import METHODS
from fewjoule.methods.meta_backward import AUTO_RISE
from fewjoule.methods.method import Start

X = [np.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]]), np.array([[-1.0, 1.0], [2.0, 2.0]])]
Y = [np.array([1.0, 2.0, -1.0]), np.array([0.5, 3.0])]
LOCAL = np.array([[0.3, -0.2, 0.1], [1.0, 0.5, -0.4]])


MODEL = fj.mlp([2, 1])  # two weights, then the bias
AGENTS = fj.make_agents(list(zip(X, Y, strict=True)))


def header_fisher(floor):
    """theta of the header, with start 0: sum of F_i phi_i over sum of F_i, each F_i floored and scaled to mean 1."""
    weights = []
    for x, y, phi in zip(X, Y, LOCAL, strict=True):
        inputs = np.concatenate([x, np.ones((len(x), 1))], 1)
        gradients = 2 * (inputs @ phi - y)[:, None] * inputs  # of (w'x + b - y)²
        fisher = (gradients**2).mean(0)
        fisher = fisher + floor * fisher.mean()
        weights.append(fisher / fisher.mean())
    return np.mean([f * phi for f, phi in zip(weights, LOCAL, strict=True)], 0) / np.mean(weights, 0)


@pytest.mark.parametrize("floor", [0.01, 0.1, 10.0])
def test_trial_11_fisher_is_scaled_to_mean_1_as_its_header_says(floor):
    meta = fj.simulate(fj.fisher(floor=floor), MODEL, AGENTS, LOCAL.astype(np.float32)).meta
    np.testing.assert_allclose(meta, header_fisher(floor), rtol=2e-5, atol=2e-6)


def test_trial_11_the_trust_radius_takes_the_mean_slope_and_the_largest_curvature():
    """g rho + c rho²/2 = AUTO_RISE * loss, by NumPy's roots; the largest slope would give another radius."""
    probes = np.array([[2.0, 0.5, 3.0], [4.0, 1.5, 7.0], [6.0, 4.0, 1.0]])
    method = fj.meta_backward(rounds=5, radius="auto")
    (radii, _), _ = method.init(Start(np.zeros(3, np.float32), np.float32(1)), probes.astype(np.float32))
    loss, slope, curvature = probes[:, 0].mean(), probes[:, 1].mean(), probes[:, 2].max()
    rho = max(np.roots([curvature / 2, slope, -AUTO_RISE * loss]).real)
    np.testing.assert_allclose(radii, np.full(5, rho / 5), rtol=1e-5)
    other = max(np.roots([curvature / 2, probes[:, 1].max(), -AUTO_RISE * loss]).real)
    assert abs(other / rho - 1) > 0.2


def test_trial_11_means_are_over_agents_or_over_samples_as_asked():
    """McMahan's n_k / n with 3 and 2 samples, and the paper's plain mean."""
    for weighting, shares in (("agents", [0.5, 0.5]), ("samples", [0.6, 0.4])):
        run = fj.simulate(fj.average(weighting=weighting), MODEL, AGENTS, LOCAL.astype(np.float32))
        np.testing.assert_allclose(run.meta, shares @ LOCAL, rtol=1e-5)


@pytest.mark.parametrize("wrong", ["fedproxy", "perfedavg", "scaffold", "FedAvg"])
def test_trial_32_an_unknown_method_is_told_all_the_names(wrong):
    with pytest.raises(fj.InputError, match=f"unknown method '{wrong}'") as caught:
        fj.method(wrong)
    assert f"{', '.join(sorted(METHODS))}." in str(caught.value)
