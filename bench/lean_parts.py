"""What supports each part of lean's rule: one change at a time, on seeds and new tasks that judge nothing else.

    python bench/measure.py lean_parts      keeps the numbers, and makes the table of docs/lean.md

Quality is after the study's fine-tuning steps: median loss (sinusoid) or mean accuracy (MNIST).
"""

from typing import Any

import numpy as np

from fewjoule import adapt, method, mnist, simulate, sinusoid, train_locally
from fewjoule.studies.settings import load_study

SEEDS = list(range(200, 208))
TASKS = {"sinusoid": 200, "mnist": 100}
TASK_SEED = 77  # not the studies'
TENTH = "top-k:0.1:2"


def fedavgm(total: int, rounds: int, codec: str | None = TENTH, **settings: Any) -> tuple[str, dict[str, Any]]:
    """FedAvg with so many local steps in all, no momentum and a float32 way down unless asked."""
    coding = {} if codec is None else {"codec": codec, "feedback": rounds <= 2}
    steps = max(1, round(total / rounds))
    return "fedavgm", {"rounds": rounds, "local_steps": steps, "momentum": 0.0, **coding, **settings}


def parts(total: int) -> dict[str, dict[str, tuple[str, dict[str, Any]]]]:
    """The changes by part of the rule; `total` is a tenth of the offline training's steps."""
    return {
        "rounds": {
            "none, a quarter of the weights": ("average", {"codec": "top-k:0.25:2"}),
            **{str(n): fedavgm(total, n) for n in (1, 4, 9, 19)},
        },
        "bits of a value": {str(b): fedavgm(total, 1, f"top-k:0.1:{b}") for b in (1, 2, 3)},
        "local steps in all, 9 rounds": {
            f"{share} of the tenth": fedavgm(int(total * share), 9) for share in (0.5, 1, 2)
        },
        "feedback": {
            f"{n} round{'s' * (n > 1)}, {said}": fedavgm(total, n, feedback=on)
            for n in (1, 9)
            for said, on in (("on", True), ("off", False))
        },
        "server momentum, 9 rounds": {str(m): fedavgm(total, 9, momentum=m) for m in (0.0, 0.3, 0.5, 0.7)},
        "the way down, 9 rounds": {
            down or "float32": fedavgm(total, 9, **({"down_codec": down} if down else {}))
            for down in (None, "top-k:0.25:3", TENTH)
        },
    }


def measure(name: str) -> dict[str, Any]:
    study = load_study(name, seeds=SEEDS)
    e, model = study.evaluation, study.build_model()
    agents = study.family.build(SEEDS, e).agents  # type: ignore[union-attr]
    draw = sinusoid.new_tasks if name == "sinusoid" else mnist.new_tasks
    tasks = draw(TASKS[name], shots=e.shots, queries=e.queries, seed=TASK_SEED)  # type: ignore[operator]
    local = train_locally(model, agents, seed=SEEDS, **study.local.model_dump())
    rows = []
    for part, settings in parts(study.local.max_steps // 10).items():
        for setting, (kind, chosen) in settings.items():
            step = {"learning_rate": study.local.learning_rate} if kind != "average" else {}
            run = simulate(method(kind, **step, **chosen), model, agents, local, seed=SEEDS)
            found = adapt(model, run.meta, tasks, steps=[e.headline], learning_rate=e.learning_rate)
            values = np.asarray(found.loss if name == "sinusoid" else found.accuracy)[..., 0]
            quality = float(np.median(values) if name == "sinusoid" else values.mean())
            bits = float(run.uplink_bits.sum(1).mean()) / model.size
            rows.append({"part": part, "setting": setting, "quality": quality, "bits_per_weight": bits})
            print(f"{name}: {part}, {setting}: {quality:.4f} at {bits:.2f} bits a weight", flush=True)
    return {"seeds": SEEDS, "tasks": TASKS[name], "rows": rows}


def table(found: dict[str, Any]) -> str:
    """The rows of both studies, a line per part."""
    lines = ["| part of the rule | sinusoid: loss (bits a weight) | MNIST: accuracy (bits a weight) |", "|---|---|---|"]
    for part in dict.fromkeys(row["part"] for row in found["sinusoid"]["rows"]):
        cells = []
        for name, form in (("sinusoid", ".3f"), ("mnist", ".3f")):
            of_part = [row for row in found[name]["rows"] if row["part"] == part]
            said = [f"{r['setting']}: {r['quality']:{form}} ({r['bits_per_weight']:.2g})" for r in of_part]
            cells.append("; ".join(said))
        lines.append(f"| {part} | {' | '.join(cells)} |")
    return "\n".join(lines)
