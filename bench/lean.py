"""The claims of lean, seed by seed, on the paper's two studies: quality and uplink energy beside Meta-Backward's.

    python bench/lean.py [sinusoid] [mnist] [--seeds N] [--data-dir FOLDER]
    python bench/measure.py lean            keeps the numbers, and makes the table of docs/lean.md

Settings come from the rule alone. Seeds and new tasks took no part in making it. Intervals are at 95 % over seeds, of
the paired difference (accuracy) or ratio (loss) to Meta-Backward or FedSGD with the same seed.
"""

import argparse
from typing import Any

import numpy as np
from scipy import stats

from fewjoule import adapt, method, simulate, train_locally
from fewjoule.energy import link
from fewjoule.files import use_compile_cache
from fewjoule.studies.settings import load_study
from fewjoule.studies.summary import interval

FIRST_SEED = 4000  # the rule was made on others
TARGETS = ("match", "better", "best")


def measure(name: str, *, seeds: int = 10, data_dir: str | None = None) -> dict[str, Any]:
    study = load_study(name, seeds=list(range(FIRST_SEED, FIRST_SEED + seeds)), data_dir=data_dir)
    e, model = study.evaluation, study.build_model()
    agents, tasks, data, _ = study.family.build(study.seeds, e)  # type: ignore[union-attr]
    local = train_locally(model, agents, seed=study.seeds, **study.local.model_dump())
    rule = {"training_steps": study.local.max_steps, "learning_rate": study.local.learning_rate}
    entries = {
        "meta_backward": method("meta_backward"),
        "fedsgd": method("fedsgd", learning_rate=study.local.learning_rate),
        **{f"lean, {target}": method("lean", target=target, **rule) for target in TARGETS},
    }
    loss = model.loss_name == "mse"
    print(f"{name}: {data}; {seeds} seeds, {e.tasks} new tasks, {e.statistic} {'loss' if loss else 'accuracy'}")
    each: dict[str, Any] = {}
    rows: dict[str, dict[str, Any]] = {}
    for label, built in entries.items():
        run = simulate(built, model, agents, local, seed=study.seeds)
        result = adapt(model, run.meta, tasks, steps=[e.headline], learning_rate=e.learning_rate)
        values = np.asarray(result.loss if loss else result.accuracy, float)[..., 0]
        each[label] = np.median(values, 1) if loss else values.mean(1)
        low, high = interval(each[label], ratio=loss)
        price = link(study.energy.link).energy_joules
        joules = float(np.vectorize(price)(run.uplink_bits).sum(1).mean())  # of one agent
        quality = float(np.median(values) if loss else values.mean())
        rows[label] = {"quality": quality, "low": low, "high": high, "uplink_joules": joules}
        print(f"  {label:14} {quality:.4f} [{low:.4f}, {high:.4f}]  {joules:8.3f} J up", flush=True)
    against = []
    for label in list(entries)[2:]:
        for rival in ("meta_backward", "fedsgd"):
            # Student's interval of the mean difference, of logarithms for a loss
            paired = np.log(each[label] / each[rival]) if loss else each[label] - each[rival]
            half = stats.t.ppf(0.975, seeds - 1) * paired.std(ddof=1) / np.sqrt(seeds)
            bounds = paired.mean() + np.array([0.0, -half, half])
            mean, low, high = (np.exp(bounds) if loss else bounds).tolist()
            against.append({"of": label, "to": rival, "mean": mean, "low": low, "high": high})
            print(f"  {label} {'/' if loss else '-'} {rival}: {mean:+.4f} [{low:+.4f}, {high:+.4f}]", flush=True)
    return {"seeds": study.seeds, "tasks": e.tasks, "data": data, "rows": rows, "against": against}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("studies", nargs="*", default=["sinusoid", "mnist"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--data-dir")
    asked = parser.parse_args()
    use_compile_cache()
    for name in asked.studies:
        measure(name, seeds=asked.seeds, data_dir=asked.data_dir if name == "mnist" else None)


if __name__ == "__main__":
    main()
