"""The claims of lean, seed by seed, on the paper's two studies: quality and uplink energy beside Meta-Backward's.

    python bench/lean.py [sinusoid|mnist] [seeds] [folder of the whole MNIST]

Settings come from the rule alone. The studies' new tasks took no part in making the rule. Intervals are at 95 % over
seeds, of the paired difference (accuracy) or ratio (loss) to Meta-Backward or FedSGD with the same seed.
"""

import sys

import numpy as np
from scipy import stats

from fewjoule import adapt, method, simulate, train_locally
from fewjoule.energy import link
from fewjoule.files import use_compile_cache
from fewjoule.studies.settings import load_study
from fewjoule.studies.summary import interval


def compare(name: str, seeds: int, data_dir: str | None) -> None:
    study = load_study(name, seeds=list(range(seeds)), data_dir=data_dir)
    e, model = study.evaluation, study.build_model()
    agents, tasks, data = study.family.build(study.seeds, e)
    local = train_locally(model, agents, seed=study.seeds, **study.local.model_dump())
    rule = {"training_steps": study.local.max_steps, "learning_rate": study.local.learning_rate}
    entries = {
        "meta_backward": method("meta_backward"),
        "fedsgd": method("fedsgd", learning_rate=study.local.learning_rate),
        "lean match": method("lean", target="match", **rule),
        "lean better": method("lean", target="better", **rule),
        "lean best": method("lean", target="best", **rule),
    }
    loss = model.loss_name == "mse"
    print(f"{name}: {data}; {seeds} seeds, {e.tasks} new tasks, {e.statistic} {'loss' if loss else 'accuracy'}")
    each, joules = {}, {}
    for label, built in entries.items():
        run = simulate(built, model, agents, local, seed=study.seeds)
        result = adapt(model, run.meta, tasks, steps=[e.headline], learning_rate=e.learning_rate)
        values = (result.loss if loss else result.accuracy)[..., 0].astype(float)
        each[label] = np.median(values, 1) if loss else values.mean(1)
        whole = float(np.median(values) if loss else values.mean())
        price = link(study.energy.link).energy_joules
        joules[label] = float(np.vectorize(price)(run.uplink_bits).sum(1).mean())  # of one agent
        low, high = interval(each[label], ratio=loss)
        less = joules["meta_backward"] / joules[label]
        print(f"  {label:14} {whole:.4f} [{low:.4f}, {high:.4f}]  {joules[label]:8.3f} J up, {less:6.0f} times less")
    for label in ("lean match", "lean better", "lean best"):
        for rival in ("meta_backward", "fedsgd"):
            # Student's interval of the mean difference, of logarithms for a loss
            against = np.log(each[label] / each[rival]) if loss else each[label] - each[rival]
            half = stats.t.ppf(0.975, seeds - 1) * against.std(ddof=1) / np.sqrt(seeds)
            middle, low, high = (against.mean() + w for w in (0.0, -half, half))
            if loss:
                middle, low, high = np.exp([middle, low, high])
            print(f"  {label} {'/' if loss else '-'} {rival}: {middle:+.4f} [{low:+.4f}, {high:+.4f}]", flush=True)


if __name__ == "__main__":
    use_compile_cache()
    chosen = [sys.argv[1]] if len(sys.argv) > 1 else ["sinusoid", "mnist"]
    for study_name in chosen:
        compare(study_name, int(sys.argv[2]) if len(sys.argv) > 2 else 10, sys.argv[3] if len(sys.argv) > 3 else None)
