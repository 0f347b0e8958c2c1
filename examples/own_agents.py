"""Own agents in ten lines: files in, a meta-model and a fine-tuned model out.

Run it with `python examples/own_agents.py`; it writes to a temporary folder.
"""

import tempfile
from pathlib import Path

import numpy as np

import fewjoule


def main(folder: Path) -> dict[int, float]:
    """The whole way, from agents that never met; gives the median error on new tasks by number of steps."""
    make_files(folder)

    found = fewjoule.read_agents(folder / "agents")
    model = fewjoule.mlp([1, 40, 40, 1])
    local = fewjoule.train_locally(model, found.agents, shared_start=False, max_steps=3000)
    aligned = fewjoule.align(model, local.models, found.agents)
    run = fewjoule.simulate(fewjoule.reptile(rounds=10), model, found.agents, aligned.models)
    fewjoule.write_model(folder / "meta.safetensors", model, run.meta, run.method.describe())
    new = fewjoule.read_tasks(folder / "new", found.format, shots=20)
    result = fewjoule.adapt(model, run.meta, new.tasks, steps=[0, 1, 10])

    print(f"barrier of the average: {aligned.barrier_before:.3g}, aligned {aligned.barrier_after:.3g}")
    print("median error on new tasks:", {steps: round(error, 3) for steps, error in result.median().items()})
    print("bits sent by each agent:", run.uplink_bits.sum(0))
    return result.median()


def make_files(folder: Path) -> None:
    """Files as three devices in the field would leave them, and ten new ones; yours take their place."""
    rng = np.random.default_rng(0)
    for name, amplitudes in (("agents", (2, 6, 10)), ("new", rng.uniform(0.1, 10, 10))):
        (folder / name).mkdir()
        for i, amplitude in enumerate(amplitudes):
            x = rng.uniform(-5, 5, 200)
            np.savez(folder / name / f"device{i}.npz", x=x, y=amplitude * np.sin(x))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
