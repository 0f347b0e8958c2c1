"""FedProx beside FedAvg and beside its header in NumPy."""

import numpy as np
import pytest

import fewjoule as fj

SETTINGS = {"rounds": 2, "local_steps": 3, "learning_rate": 0.05, "batch": 5}


@pytest.mark.slow
def test_fedprox_without_its_term_is_fedavg_bit_for_bit(model, agents, local_models):
    a = fj.simulate(fj.fedprox(proximal=0.0, **SETTINGS), model, agents, local_models)
    b = fj.simulate(fj.fedavg(**SETTINGS), model, agents, local_models)
    np.testing.assert_array_equal(a.meta, b.meta)


def test_fedprox_is_its_header():
    """Full-batch steps on a line through one agent's points, in float64."""
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(4, 2)), rng.normal(size=4)) for _ in range(2)]
    local = rng.normal(size=(2, 3))
    theta, sent = local.mean(0), []
    for x, y in data:
        inputs, phi = np.concatenate([x, np.ones((4, 1))], 1), theta.copy()
        for _ in range(3):
            phi = phi - 0.05 * (2 * inputs.T @ (inputs @ phi - y) / 4 + 0.7 * (phi - theta))
        sent.append(phi)
    method = fj.fedprox(rounds=1, local_steps=3, learning_rate=0.05, proximal=0.7, batch=None)
    run = fj.simulate(method, fj.mlp([2, 1]), fj.make_agents(data), local.astype(np.float32))
    np.testing.assert_allclose(run.meta, np.mean(sent, 0), rtol=1e-5, atol=1e-6)
