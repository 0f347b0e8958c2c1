"""Several devices give the numbers of one. JAX fixes its devices when it starts, so they are tried in processes."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

RUN = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
import fewjoule as fj
from fewjoule.simulation import how
from fewjoule.simulation.work import data_of
from fewjoule.training import mesh
from fewjoule.training.worth import adapted_loss

model = fj.mlp([1, 5, 1])
agents = fj.sinusoid.agents([1, 2], samples=8, validation=0, seed=[0, 5, 9])
start = model.init(jax.random.key(0))
local = start + 0.1 * jax.random.normal(jax.random.key(1), (3, 2, model.size))
trained = fj.train_locally(model, agents, seed=[0, 5, 9], max_steps=30, check_every=10, batch=4)
run = fj.simulate(
    fj.meta_backward(rounds=3, batch=4), model, agents, local, seed=[0, 5, 9], participation=0.5, keep_paths=True
)
worth = adapted_loss(model, run.meta, agents, steps=2, learning_rate=0.01, optimiser="sgd")
out = {"meta": run.meta, "path": run.meta_path, "bits": run.uplink_bits, "loss": run.trace.loss, "worth": worth}
out |= {"local": trained.models, "steps": trained.steps}
mesh.SPLIT_FLOPS = 1
tasks = fj.sinusoid.new_tasks(5, shots=4, queries=6)
tuned = fj.adapt(model, run.meta, tasks, steps=[0, 3], keep_models=True)
out |= {"adapted": tuned.loss, "tuned": tuned.models}
four = fj.sinusoid.agents([1, 2, 3, 4], samples=8, validation=0)
fedavg = fj.fedavg(rounds=2, local_steps=2, batch=4, start="random")
split = fj.simulate(fedavg, model, four, keep_paths=True)
over = how.how_to_go(fedavg, model, data_of(four), 4, 1, True).devices
out |= {"split": split.meta, "agents": split.agent_path, "spread": split.trace.spread}
five = fj.make_agents([(np.linspace(-1, 1, n)[:, None], np.sin(np.arange(n))) for n in (4, 5, 6, 7, 8)])
own = jnp.stack([start * (1 + 0.1 * i) for i in range(5)])
there = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0], [1, 0, 1, 1, 1]], bool)
cases = {  # devices do not divide any of these rows
    "all": (fj.meta_backward(rounds=3, batch=4), {"keep_paths": True}),
    "by samples": (fj.fedavg(rounds=3, local_steps=2, batch=4, weighting="samples"), {}),
    "drawn": (fj.meta_backward(rounds=3, batch=4), {"participation": 0.6}),
    "said": (fj.meta_backward(rounds=3, batch=4), {"availability": there}),
    "coded": (fj.with_codec(fj.fedavg(rounds=3, local_steps=2, batch=4), "quantise:8"), {}),
    "median": (fj.fedavg(rounds=3, local_steps=2, batch=4, combine="median"), {}),
    "personal": (fj.ditto(rounds=3, local_steps=2, personal_steps=2, batch=4), {}),
}
for name, (method, how_) in cases.items():
    run = fj.simulate(method, model, five, own, **how_)
    found = {**run.trace._asdict(), "meta": run.meta, "up": run.uplink_bits, "down": run.downlink_bits}
    found |= {"path": run.agent_path, "personal": run.personal, "ends": (run.start_loss, run.final_loss)}
    out |= {f"{name}: {key}": value for key, value in found.items() if value is not None}
print(json.dumps({"devices": len(jax.devices()), "over": over} | {k: np.asarray(v).tolist() for k, v in out.items()}))
"""


def in_a_process(devices):
    env = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)} if devices else {
        name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"
    }  # fmt: skip
    found = subprocess.run([sys.executable, "-c", RUN], env=env, capture_output=True, text=True, check=True)
    return json.loads(found.stdout)


@pytest.mark.slow
def test_the_number_of_devices_changes_nothing():
    """Three seeds on two devices, which do not divide them; and on as many as there are cores, which is the default."""
    one, two, every = (in_a_process(devices) for devices in (1, 2, None))
    assert (one.pop("devices"), two.pop("devices")) == (1, 2)
    assert (one.pop("over"), two.pop("over")) == (1, 2)  # a seed's agents
    assert every.pop("devices") == len(os.sched_getaffinity(0))
    for name, values in one.items():
        np.testing.assert_allclose(two[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(every[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
