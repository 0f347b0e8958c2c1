"""A small problem that most tests share: three agents that differ in size, a tiny network, arbitrary local models."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

# Most of a test's time is compilation of a program that runs once; this halves it and changes no result beyond
# rounding. It must be set before JAX starts. The slow tests run long enough to want the faster code.
if "slow" not in sys.argv:
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

# The tests use all cores by themselves (-n 2); tests/training/test_mesh.py has processes with several devices.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "1")

os.environ["FEWJOULE_CACHE"] = tempfile.mkdtemp(prefix="fewjoule-tests-")  # never the user's own

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule import files

MAPS = Path("/proc/self/maps")
MODEL = fj.mlp([1, 6, 5, 1])

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))  # "default" looks for new cases


def pytest_unconfigure():
    shutil.rmtree(os.environ["FEWJOULE_CACHE"], ignore_errors=True)


def pytest_runtest_teardown(item, nextitem):
    """Forget compiled programs before they fill the process's table of memory maps.

    A program of XLA's takes about 22 maps; Linux allows 65 530 a process, and LLVM crashes where it gets no more.
    """
    if nextitem is None or nextitem.path == item.path or not MAPS.exists():
        return
    if len(MAPS.read_bytes().splitlines()) > 20_000:
        jax.clear_caches()


@pytest.fixture(autouse=True)
def traces_of_its_own():
    """A command that ran in a test's own process leaves the next test to trace for itself."""
    yield
    files._traced.clear()


@pytest.fixture(scope="session")
def model():
    return MODEL


def pairs(sizes, seed):
    rng = np.random.default_rng(seed)
    x = [rng.uniform(-3, 3, size) for size in sizes]
    return [(v, (i + 1) * np.sin(v)) for i, v in enumerate(x)]


@pytest.fixture(scope="session")
def agents():
    return fj.make_agents(pairs([20, 13, 17], 0), pairs([9, 12, 7], 1), names=["red", "green", "blue"])


@pytest.fixture(scope="session")
def local_models():
    """[3, d]: near each other, as after training from a shared start."""
    model = MODEL
    centre = model.init(jax.random.key(7))
    return centre + 0.1 * jnp.stack([model.init(jax.random.key(k)) for k in (1, 2, 3)])
