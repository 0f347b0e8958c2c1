"""A quadratic problem on which every method has a closed form: L(v) = v'Av/2 - b'v, with A as x and b as y."""

import numpy as np

from fewjoule.tasks.samples import AgentData, Samples


def loss(vector, samples):
    return vector @ samples.x @ vector / 2 - samples.y @ vector


def matrix(rng, size, low=0.5, high=3.0):
    """Symmetric, with eigenvalues spread over [low, high]."""
    basis = np.linalg.qr(rng.normal(size=(size, size)))[0]
    return basis @ np.diag(np.linspace(low, high, size)) @ basis.T


def agent(rng, size):
    parts = [Samples(matrix(rng, size), rng.normal(size=size), np.ones(size)) for _ in range(2)]
    return AgentData(*parts)
