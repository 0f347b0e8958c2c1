"""The best case for the paper: Meta-Backward over radius x learning rate x rounds x accuracy of the local models.

    python bench/best_case.py [sinusoid|mnist] [--out FILE.csv] [--seeds N] [--quick] [--data-dir FOLDER]

From the built-in studies to one CSV with a row per setting. Every setting is run over the same seeds and new tasks. The
best one is *chosen* on the first half of the new tasks and *reported* on the second, so that the choice does not
flatter it. The controls stand in the same file, with the same local models: the plain average, FedSGD and FedAvg.
"""

import argparse
import csv
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fewjoule.files import use_compile_cache
from fewjoule.methods import Schedule, method
from fewjoule.simulation.simulate import simulate
from fewjoule.studies.settings import Study, load_study
from fewjoule.studies.summary import interval
from fewjoule.training.adapt import adapt
from fewjoule.training.local import train_locally

RADII = [
    "auto",
    *(Schedule("constant", f) for f in (1e-6, 1e-4, 1e-2, 1.0)),
    *(Schedule("linear", f) for f in (1e-2, 1.0)),
]
LEARNING_RATES = (1e-4, 1e-3, 1e-2, 1e-1)
ROUNDS = (5, 50, 200)
TRAINING = {"sinusoid": (1000, 5000, 20000), "mnist": (20, 100, 500)}
"""Steps of the local training: how accurate the agents' own models are. The last is the study's own."""
HEAD = ("study", "training_steps", "local_loss", "method", "rounds", "learning_rate", "radius", "chosen", "reported",
        "low", "high", "diverged")  # fmt: skip
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
        chosen, reported, low, high = (np.nan,) * 4
        if good.any():
            chosen, reported = float(statistic(values[good, :half])), float(statistic(values[good, half:]))
            low, high = interval(statistic(values[good, half:], axis=1), ratio=is_loss)
        radius = settings.get("radius", "")
        yield {
            "study": study.name, "training_steps": training_steps, "local_loss": float(np.mean(local.loss)),
            "method": name, "rounds": settings.get("rounds", 0), "learning_rate": settings.get("learning_rate", ""),
            "radius": radius if isinstance(radius, str) else f"{radius.kind} {radius.first:g}",
            "chosen": chosen, "reported": reported, "low": low, "high": high, "diverged": int((~good).sum()),
        }  # fmt: skip


def best(rows: list[dict[str, Any]], lower: bool) -> dict[str, Any]:
    """The row that is chosen on the first half; a setting that diverged on some seeds is out."""
    sound = [row for row in rows if not row["diverged"]]
    return min(sound, key=lambda row: row["chosen"] if lower else -row["chosen"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("studies", nargs="*", default=["sinusoid", "mnist"])
    parser.add_argument("--out", type=Path, default=Path("best-case.csv"))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data-dir")
    options = parser.parse_args()
    use_compile_cache()
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, HEAD, lineterminator="\n")
        writer.writeheader()
        for name in options.studies:
            folder = options.data_dir if name == "mnist" else None
            study = load_study(
                name, settings={"evaluation.tasks": 200}, seeds=list(range(options.seeds)), data_dir=folder
            )
            for training_steps in TRAINING[name][:: 2 if options.quick else 1]:
                rows: dict[str, list[dict[str, Any]]] = {}
                for row in sweep(study, training_steps, options.quick):
                    rows.setdefault(row["method"], []).append(row)
                    writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
                    file.flush()
                for each in rows.values():
                    row = best(each, study.build_model().loss_name == "mse")
                    print(
                        f"{name}, local models of {training_steps} steps: {row['method']} rounds {row['rounds']}, "
                        f"learning rate {row['learning_rate']}, radius {row['radius']}: {row['reported']:.4g} "
                        f"[{row['low']:.4g}, {row['high']:.4g}]",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
