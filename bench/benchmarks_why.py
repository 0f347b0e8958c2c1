"""Why `lean` and `answers` are where they are on HAPT: docs/benchmarks_why.json and its table in docs/benchmarks.md.

    python bench/benchmarks_why.py --data-dir DATA

The study's seeds, agents and new devices, with one thing changed at a time: lean's codec, local steps and rounds; the
questions of answers, and how long the server learns from them.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from fewjoule.files import use_compile_cache, write_atomically
from fewjoule.studies.prepare import prepare
from fewjoule.studies.settings import MethodEntry, Study, load_study
from fewjoule.training.mesh import use_all_cores

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, this file's folder is there instead
from bench.answers import put
from bench.benchmark_tables import percent, table_row
from bench.benchmarks import PAGE, finished_run, judge, messages, new_tasks
from bench.federations import FEW

NUMBERS = Path("docs/benchmarks_why.json")
MARKS = ("<!-- made by bench/benchmarks_why.py -->", "<!-- end of benchmarks_why -->")
LEAN: dict[str, Any] = {"method": "lean", "target": "better", "training_steps": 1000, "learning_rate": 0.1, "batch": 50}
PLAIN: dict[str, Any] = {"method": "fedavgm", "rounds": 9, "learning_rate": 0.1, "batch": 50, "momentum": 0.5}
ANSWERS: dict[str, Any] = {
    "method": "answers", "questions": "range:-1:1", "number": 100, "bits": 4, "classes": 6, "episodes": 25, "tasks": 4,
    "steps": 100, "learning_rate": 0.1,
}  # fmt: skip


def entries(study: Study) -> list[MethodEntry]:
    """The methods with one thing changed each."""
    windows = np.asarray(study.family.build(study.seeds[:1], study.evaluation).agents.data.train.x)  # type: ignore[union-attr]
    rows = windows.reshape(-1, windows.shape[-1])
    rows = rows[np.abs(rows).sum(-1) > 0]  # no padding
    own = rows[np.random.default_rng(0).choice(len(rows), 100, replace=False)].round(4).tolist()
    changed = {
        "lean": LEAN,
        "lean, ten times its local steps": {**LEAN, "training_steps": 10_000},
        "lean's rounds and steps, nothing coded": {**PLAIN, "local_steps": 11},
        "lean's rounds, ten times its steps, nothing coded": {**PLAIN, "local_steps": 110},
        "answers": ANSWERS,
        "answers to the agents' own windows": {**ANSWERS, "questions": own},
        "answers, ten times the episodes": {**ANSWERS, "episodes": 250},
        "answers to own windows, ten times the episodes": {**ANSWERS, "questions": own, "episodes": 250},
    }
    return [
        MethodEntry.model_validate({"name": f"m{i}", "label": label, **settings})
        for i, (label, settings) in enumerate(changed.items())
    ]


def table(numbers: dict[str, Any]) -> str:
    heads = ["method", *(f"{judged.key} shots" for judged in FEW), "bits sent by an agent"]
    lines = [table_row(heads), table_row(["---"] * len(heads))]
    for label, of in numbers.items():
        lines.append(table_row([label, *(percent(of["new_devices"][j.key]) for j in FEW), f"{of['uplink_bits']:,.0f}"]))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="folder of the data sets")
    asked = parser.parse_args()
    use_all_cores()
    use_compile_cache()
    study = load_study("hapt", settings={"evaluation.steps": [0, 10]}, data_dir=asked.data_dir)
    study = study.model_copy(update={"methods": entries(study)})
    numbers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        run = finished_run(prepare(study), Path(place) / "why", lambda line: print(line[:100], flush=True))
        for entry in study.methods:
            numbers[entry.label] = {"new_devices": {}, "uplink_bits": messages(run, entry.name)["uplink_bits"]}
            for judged in FEW:
                found = judge(study, run, entry.name, new_tasks(study, judged), [study.evaluation.headline])
                numbers[entry.label]["new_devices"][judged.key] = found["new_devices"]
    write_atomically(NUMBERS, (json.dumps(numbers, indent=1) + "\n").encode(), force=True)
    put(table(numbers), MARKS, PAGE)
