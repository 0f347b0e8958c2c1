"""Small programs keep to one thread, on a device of their own client: the same numbers, and JAX's own device stays."""

import os

import jax
import numpy as np
import pytest
from jaxlib import xla_client

import fewjoule as fj
from fewjoule.simulation.simulate import Simulation
from fewjoule.training import mesh
from fewjoule.training.program import Program

pytestmark = pytest.mark.skipif(mesh._cores() == 1, reason="this process may use one core alone")
double = jax.jit(lambda scale, x: {"x": scale * x, "sum": x.sum()}, static_argnums=0)


def test_a_small_program_runs_on_the_lone_device_and_others_do_not():
    x = np.arange(6, dtype=np.float32)
    found = {small: Program(double, (2,), (x,), small=small).run() for small in (False, True)}
    assert found[True]["x"].devices() == {mesh.lone_device()}
    assert found[False]["x"].devices() == {jax.local_devices()[0]}
    assert mesh.lone_device() not in jax.local_devices()
    for each in found.values():
        np.testing.assert_array_equal(each["x"], 2 * x)
        assert each["sum"] == 15


def test_its_client_has_one_thread(monkeypatch):
    """The number that XLA reads is set while the client is made, and only then."""
    seen = []

    def made(**how):
        seen.append(os.environ["PJRT_NPROC"])
        return original(**how)

    original = xla_client.make_cpu_client
    monkeypatch.setattr(xla_client, "make_cpu_client", made)
    for before in ("7", None):
        monkeypatch.delenv("PJRT_NPROC", raising=False)
        if before:
            monkeypatch.setenv("PJRT_NPROC", before)
        assert mesh.lone_device.__wrapped__().platform == "cpu"
        assert os.environ.get("PJRT_NPROC") == before
    assert seen == ["1", "1"]


@pytest.mark.parametrize("error", [TypeError, RuntimeError])
def test_another_jaxlib_does_without(monkeypatch, error):
    def unknown(**how):
        raise error("no such client")

    monkeypatch.setattr(xla_client, "make_cpu_client", unknown)
    assert mesh.lone_device.__wrapped__() is None
    monkeypatch.setattr("fewjoule.training.program.lone_device", lambda: None)
    assert Program(double, (2,), (np.ones(3, np.float32),), small=True).run()["sum"] == 3


def test_without_jit_nothing_is_compiled():
    """Who looks into a method of their own under `jax.disable_jit` sees numbers, not tracers."""
    seen = []
    looked = jax.jit(lambda x: seen.append(float(x[0])) or 2 * x)
    with jax.disable_jit():
        Program(looked, (), (np.ones(3, np.float32),), small=True).run()
    assert seen == [1.0]


def where_it_runs(seeds, monkeypatch, split_flops):
    monkeypatch.setattr(mesh, "SPLIT_FLOPS", split_flops)
    model = fj.mlp([1, 5, 1])
    method = fj.fedavg(rounds=2, local_steps=2, batch=4, start="random")
    ready = Simulation(method, model, fj.sinusoid.agents([1, 2], samples=8, validation=0), seed=seeds)
    return ready._program._device, ready.run().meta


def test_rounds_of_little_work_are_small(monkeypatch):
    """Of one seed: several are split over devices. The numbers are those of a program that is not small."""
    device, small = where_it_runs(0, monkeypatch, 1e9)
    assert device is mesh.lone_device()
    device, large = where_it_runs(0, monkeypatch, 1)
    assert device is None
    np.testing.assert_allclose(small, large, rtol=1e-6, atol=1e-7)
    assert where_it_runs([0, 1], monkeypatch, 1e9)[0] is None
