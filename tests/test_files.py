"""A second process finds the compiled programs of the first."""

import os
import subprocess
import sys

PROGRAM = """
from jax import monitoring
from fewjoule.files import use_compile_cache
import jax, jax.numpy as jnp, fewjoule as fj

seen = {"hits": 0, "misses": 0}

def note(event, **_):
    for kind in seen:
        seen[kind] += event == f"/jax/compilation_cache/cache_{kind}"

monitoring.register_event_listener(note)
print(use_compile_cache())
model = fj.mlp([1, 2, 1])
agents = fj.sinusoid.agents([1, 2], samples=4, validation=0)
fj.simulate(fj.fedsgd(rounds=2, batch=None), model, agents, jnp.zeros((2, model.size)))
print(seen["hits"], seen["misses"])
"""


def test_the_cache_folder_saves_the_second_run_its_compilations(tmp_path):
    environment = {**os.environ, "FEWJOULE_CACHE": str(tmp_path), "JAX_PLATFORMS": "cpu"}

    def run():
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        folder, counts = done.stdout.splitlines()
        assert folder.startswith(str(tmp_path))
        hits, misses = map(int, counts.split())
        return hits, misses

    hits, misses = run()
    assert misses > 0
    kept = {path.name for path in tmp_path.rglob("*-cache")}
    assert len(kept) >= misses
    assert run() == (hits + misses, 0)
    assert {path.name for path in tmp_path.rglob("*-cache")} == kept
