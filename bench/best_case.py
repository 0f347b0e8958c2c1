"""The best case for the paper: Meta-Backward over radius x learning rate x rounds x accuracy of the local models.

    python bench/best_case.py [sinusoid] [mnist] [--seeds N] [--quick] [--data-dir FOLDER]
    python bench/measure.py best_case       keeps the numbers, and makes the table of docs/reproduction.md

Every setting is run over the same seeds and new tasks. The best one is *chosen* on the first half of the new tasks and
*reported* on the second, so that the choice does not flatter it. The controls have the same local models: the plain
average, FedSGD and FedAvg.
"""

import argparse
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from fewjoule.files import use_compile_cache
from fewjoule.methods import Schedule, method
from fewjoule.simulation.simulate import simulate
from fewjoule.studies.settings import Study, load_study
from fewjoule.studies.summary import interval
from fewjoule.training.adapt import adapt
from fewjoule.training.local import train_locally

RADII = ["auto", *(Schedule(kind, first) for kind in ("constant", "linear") for first in (1e-6, 1e-5, 1e-4))]
"""Shares of the agents' spread, to where nearly every run diverges."""
LEARNING_RATES = (1e-3, 1e-2)
ROUNDS = (50, 200)
TRAINING = {"sinusoid": (20000, 1000), "mnist": (500, 20)}
"""Steps of the local training: how accurate the agents' own models are. The first is the study's own."""
TASKS = 200
Settings = dict[str, Any]


def settings_of(study: Study, quick: bool) -> Iterator[tuple[str, Settings]]:
    """The grid of Meta-Backward and its controls; `quick` takes one of four."""
    grid = list(product(ROUNDS, LEARNING_RATES, RADII))
    for rounds, learning_rate, radius in grid[::4] if quick else grid:
        yield "meta_backward", {"rounds": rounds, "learning_rate": learning_rate, "radius": radius}
    yield "average", {}
    yield "fedsgd", {"rounds": 50, "learning_rate": study.local.learning_rate}
    yield "fedavg", {"rounds": 5, "local_steps": 100, "learning_rate": study.local.learning_rate}


def sweep(study: Study, quick: bool) -> Iterator[dict[str, Any]]:
    """A row per setting and length of the local training. All lengths run at once, each with seeds of its own."""
    e, model, lengths, count = study.evaluation, study.build_model(), TRAINING[study.name], len(study.seeds)
    seeds = [[1000 * i + seed for seed in study.seeds] for i in range(len(lengths))]
    training, build, local = study.local.model_dump(), study.family.build, []  # type: ignore[union-attr]
    for own, steps in zip(seeds, lengths, strict=True):
        local.append(train_locally(model, build(own, e)[0], seed=own, **(training | {"max_steps": steps})))
    every_seed = [seed for own in seeds for seed in own]
    agents, tasks, _ = build(every_seed, e)
    models = np.concatenate([np.asarray(own.models) for own in local])
    is_loss = model.loss_name == "mse"
    statistic = np.median if e.statistic == "median" else np.mean
    for name, settings in settings_of(study, quick):
        run = simulate(method(name, **settings), model, agents, models, seed=every_seed)
        result = adapt(model, run.meta, tasks, steps=[e.headline], learning_rate=e.learning_rate, optimiser=e.optimiser)
        every = np.asarray(result.loss if is_loss else result.accuracy, float)[..., 0]  # [lengths x seeds, tasks]
        for i, steps in enumerate(lengths):
            values, half = every[i * count : (i + 1) * count], e.tasks // 2
            good = ~np.isnan(values).any(1)
            row: dict[str, Any] = dict.fromkeys(("chosen", "reported", "low", "high"))
            if good.any():
                row["chosen"], row["reported"] = (float(statistic(v)) for v in np.split(values[good], [half], axis=1))
                row["low"], row["high"] = interval(statistic(values[good, half:], axis=1), ratio=is_loss)
            radius = settings.get("radius", "")
            yield {
                "training_steps": steps, "local_loss": float(np.mean(local[i].loss)), "method": name,
                "rounds": settings.get("rounds", 0), "learning_rate": settings.get("learning_rate", ""),
                "radius": radius if isinstance(radius, str) else f"{radius.kind} {radius.first:g}",
                **row, "diverged": int((~good).sum()),
            }  # fmt: skip


def best(rows: list[dict[str, Any]], lower: bool) -> dict[str, Any]:
    """The row that is chosen on the first half; a setting that diverged on some seeds is out."""
    sound = [row for row in rows if not row["diverged"]]
    return min(sound, key=lambda row: row["chosen"] if lower else -row["chosen"])


def measure(name: str, *, seeds: int = 10, quick: bool = False, data_dir: str | None = None) -> dict[str, Any]:
    """The map of one study: all `rows`, and for every length of the local training the `best` row of each method."""
    folder = data_dir if name == "mnist" else None
    study = load_study(name, settings={"evaluation.tasks": TASKS}, seeds=list(range(seeds)), data_dir=folder)
    lower = study.build_model().loss_name == "mse"
    found: dict[str, Any] = {"seeds": study.seeds, "tasks": TASKS, "rows": [], "best": []}
    for row in sweep(study, quick):
        found["rows"].append(row)
        print(", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()), flush=True)
    kinds = dict.fromkeys((row["training_steps"], row["method"]) for row in found["rows"])
    for kind in sorted(kinds, key=lambda kind: kind[0]):
        same = [row for row in found["rows"] if (row["training_steps"], row["method"]) == kind]
        found["best"].append(best(same, lower))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("studies", nargs="*", default=["sinusoid", "mnist"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data-dir")
    asked = parser.parse_args()
    use_compile_cache()
    for name in asked.studies:
        for row in measure(name, seeds=asked.seeds, quick=asked.quick, data_dir=asked.data_dir)["best"]:
            print(
                f"{name}, local models of {row['training_steps']} steps: best of {row['method']}: rounds "
                f"{row['rounds']}, learning rate {row['learning_rate']}, radius {row['radius']}: {row['reported']:.4g} "
                f"[{row['low']:.4g}, {row['high']:.4g}]"
            )


if __name__ == "__main__":
    main()
