"""Three small agents with local models."""

from pathlib import Path

import jax
import numpy as np
import pytest
from jax import Array

from fewjoule import Agents, Model, make_agents, mlp
from tests.federation.bench import NAMES, Bench


@pytest.fixture(scope="session")
def trained() -> tuple[Model, Agents, Array]:
    rng = np.random.default_rng(3)
    pairs = [(x, a * np.sin(x)) for a in (1, 2, 3) for x in [rng.uniform(-5, 5, (24, 1)).astype(np.float32)]]
    held = [(x, a * np.sin(x)) for a in (1, 2, 3) for x in [rng.uniform(-5, 5, (12, 1)).astype(np.float32)]]
    model, agents = mlp([1, 8, 1]), make_agents(pairs, held, names=NAMES)
    # near a common start, as local training leaves them
    local = model.init(jax.random.key(5)) + 0.1 * jax.random.normal(jax.random.key(6), (3, model.size))
    return model, agents, local


@pytest.fixture
def bench(trained: tuple[Model, Agents, Array], tmp_path: Path) -> Bench:
    return Bench(*trained, tmp_path)
