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

RADII = ["auto", *(Schedule("constant", f) for f in (1e-6, 1e-4, 1e-2)), Schedule("linear", 1e-2)]
"""Shares of the agents' spread. The whole of it (`linear` from 1 on) diverges in nearly every run of the studies."""
LEARNING_RATES = (1e-3, 1e-2, 1e-1)
ROUNDS = (5, 50, 200)
TRAINING = {"sinusoid": (1000, 20000), "mnist": (20, 500)}
"""Steps of the local training: how accurate the agents' own models are. The last is the study's own."""
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


def sweep(study: Study, training_steps: int, quick: bool) -> Iterator[dict[str, Any]]:
    """A row per setting, with local models of this many training steps."""
    e, model, seeds = study.evaluation, study.build_model(), list(study.seeds)
    agents, tasks, _ = study.family.build(seeds, e)
    training = {**study.local.model_dump(), "max_steps": training_steps}
    local = train_locally(model, agents, seed=seeds, **training)
    is_loss = model.loss_name == "mse"
    statistic = np.median if e.statistic == "median" else np.mean
    for name, settings in settings_of(study, quick):
        run = simulate(method(name, **settings), model, agents, local, seed=seeds)
        result = adapt(model, run.meta, tasks, steps=[e.headline], learning_rate=e.learning_rate, optimiser=e.optimiser)
        values = (result.loss if is_loss else result.accuracy)[..., 0].astype(float)  # [seeds, tasks]
        good, half = ~np.isnan(values).any(1), e.tasks // 2
        chosen: float | None = None
        reported, low, high = None, None, None
        if good.any():
            chosen, reported = float(statistic(values[good, :half])), float(statistic(values[good, half:]))
            low, high = interval(statistic(values[good, half:], axis=1), ratio=is_loss)
        radius = settings.get("radius", "")
        yield {
            "training_steps": training_steps, "local_loss": float(np.mean(local.loss)),
            "method": name, "rounds": settings.get("rounds", 0), "learning_rate": settings.get("learning_rate", ""),
            "radius": radius if isinstance(radius, str) else f"{radius.kind} {radius.first:g}",
            "chosen": chosen, "reported": reported, "low": low, "high": high, "diverged": int((~good).sum()),
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
    for training_steps in TRAINING[name]:
        rows = []
        for row in sweep(study, training_steps, quick):
            rows.append(row)
            print(", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{v}" for k, v in row.items()), flush=True)
        found["rows"] += rows
        found["best"] += [
            best([row for row in rows if row["method"] == each], lower)
            for each in dict.fromkeys(row["method"] for row in rows)
        ]
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
