"""Which start and method to choose where tasks differ much: ten agents with random phases that never met.

    python bench/random_phases.py [--seeds 3] [--tasks 200]

Each agent has a sinusoid of its own amplitude (2 to 10) and phase (0 to 2 pi), 400 samples, and a model that it trained
from a random start of its own. Prints the median error on new tasks of the same family (40 samples, SGD 0.01) after 1,
10 and 50 steps, and what `worth` says about the start; for comparison also phases that are all the same.
"""

import argparse
import math
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np

import fewjoule as fj
from fewjoule.randomness import key_for
from fewjoule.training.worth import Worth, adapted_loss, constant_loss

STEPS = (1, 10, 50)
MODEL = fj.mlp([1, 40, 40, 1])
MANY: dict[str, Any] = {"rounds": 50, "local_steps": 50}
METHODS = {
    "random": (fj.random_start(), None),
    "local": (fj.local_model(), "never"),
    "average, not aligned": (fj.average(), "never"),
    "average, aligned": (fj.average(), "always"),
    "meta_backward, not aligned": (fj.meta_backward(), "never"),
    "meta_backward, aligned": (fj.meta_backward(), "always"),
    "fedavg 5 x 100 from the average, aligned": (fj.fedavg(rounds=5, local_steps=100), "always"),
    "fedavg 5 x 100 from random": (fj.fedavg(rounds=5, local_steps=100, start="random"), None),
    "reptile 50 x 50 from the average, not aligned": (fj.reptile(**MANY), "never"),
    "reptile 50 x 50 from the average, aligned": (fj.reptile(**MANY), "always"),
    "reptile 50 x 50 from random": (fj.reptile(**MANY, start="random"), None),
    "reptile 500 x 50 from random": (fj.reptile(rounds=500, local_steps=50, start="random"), None),
    "fomaml from the average, aligned": (fj.fomaml(), "always"),
    "answers, 20 of 6 bits": (fj.answers(questions="range:-5:5"), "never"),
}


def compare(seeds: int, count: int, *, random_phases: bool) -> None:
    errors: dict[str, list[Any]] = {name: [] for name in METHODS}
    said: dict[str, list[Worth]] = {name: [] for name in METHODS}
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        phases = (rng.uniform(0, 2 * math.pi, 10) * random_phases).tolist()
        agents = fj.sinusoid.agents(rng.uniform(2, 10, 10).tolist(), phases=phases, seed=seed)
        tasks = fj.sinusoid.new_tasks(
            count, amplitude=(2, 10), phase=(0, 2 * math.pi * random_phases), shots=40, queries=100, seed=seed + 1000
        )
        own = fj.train_locally(MODEL, agents, seed=seed, max_steps=5000, shared_start=False).models
        models = {"never": own, "always": fj.align(MODEL, own, agents, mode="always").models}
        for name, (method, aligned) in METHODS.items():
            run = fj.simulate(method, MODEL, agents, None if aligned is None else models[aligned], seed=seed)
            errors[name].append(fj.adapt(MODEL, run.meta, tasks, steps=STEPS, learning_rate=0.01).loss)
            three = jnp.stack([MODEL.init(key_for(seed, "start")), run.start, run.meta])
            losses = adapted_loss(MODEL, three, agents, steps=10, learning_rate=0.01, optimiser="sgd")
            said[name].append(Worth(10, float(constant_loss(MODEL, agents)), *losses.tolist()))
    print(f"{'random' if random_phases else 'equal'} phases, {seeds} seeds x {count} new tasks")
    print(f"| start and method | {' | '.join(f'{s} step' + 's' * (s > 1) for s in STEPS)} | warned about |")
    print("|---|---|---|---|---|")
    for name, losses in errors.items():
        medians = np.median(np.concatenate(losses), 0)
        warned = sum(bool(worth.remarks()) for worth in said[name])
        print(f"| {name} | {' | '.join(f'{m:.3g}' for m in medians)} | {warned} of {seeds} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=200)
    given = parser.parse_args()
    warnings.simplefilter("ignore", fj.DivergedWarning)
    for random_phases in (True, False):
        compare(given.seeds, given.tasks, random_phases=random_phases)


if __name__ == "__main__":
    main()
