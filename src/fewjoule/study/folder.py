"""The run folder: the files that scripts may rely on, made from a study's finished parts.

    study.toml, evaluation.csv, energy.csv, trace.csv, paths.csv, summary.json, meta/<method>-<seed>.safetensors

`docs/run-folder.md` describes every column. The report reads these files and nothing else.
"""

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from fewjoule.energy import Ledger, charge_radio, link
from fewjoule.files import write_atomically
from fewjoule.models.model import Model
from fewjoule.models.weights import write_model
from fewjoule.simulate.simulate import Trace
from fewjoule.study.parts import PATHS, PRETRAINING, Part, Parts, method_part
from fewjoule.study.settings import MethodEntry, Study
from fewjoule.study.summary import summarise
from fewjoule.tasks.samples import Agents

Array = np.ndarray[Any, Any]


def write_run_folder(folder: Path, study: Study, model: Model, agents: Agents, data: str, parts: Parts) -> None:
    """Write every file of the contract except study.toml, which stands there from the beginning."""
    finished = {entry.name: parts.load(method_part(entry.name)) for entry in study.methods}
    local = parts.load(PRETRAINING)
    ledger = Ledger()
    for entry in study.methods:
        charge_method(ledger, study, entry, agents, finished[entry.name], local)
    _put(folder / "paths.csv", _paths(parts.load(PATHS)))
    summary = summarise(study, model, agents, data, finished, ledger)
    write_results(folder, study, model, finished, ledger, summary)


def write_results(
    folder: Path, study: Study, model: Model, finished: dict[str, Part], ledger: Ledger, summary: dict[str, Any]
) -> None:
    """The files that a simulated and a federated run have in common."""
    _put(folder / "evaluation.csv", _evaluation(study, finished))
    _put(folder / "trace.csv", _trace(study, finished))
    ledger.to_csv(folder / "energy.csv", force=True)
    write_atomically(folder / "summary.json", (json.dumps(summary, indent=1) + "\n").encode(), force=True)
    (folder / "meta").mkdir(exist_ok=True)
    for entry in study.methods:
        for seed, vector in zip(study.seeds, finished[entry.name].arrays["meta"], strict=True):
            if np.isfinite(vector).all():
                card = {"method": entry.method, "settings": entry.settings, "study": study.name, "seed": seed}
                write_model(folder / "meta" / f"{entry.name}-{seed}.safetensors", model, vector, card, force=True)


def charge_method(ledger: Ledger, study: Study, entry: MethodEntry, agents: Agents, part: Part, local: Part) -> None:
    """Put one method's pretraining, computation, radio and adaptation on the ledger, for every seed.

    A reading covers all seeds at once and is shared out evenly; its source says so.
    """
    method, seeds = entry.build(), study.seeds
    for i, seed in enumerate(seeds):
        about: dict[str, Any] = {"method": entry.name, "seed": seed}
        each_seed: dict[str, Any] = {**about, "shares": len(seeds), "of": "seed"}
        if (method.start != "random" or method.needs_local) and local.facts["reading"] is not None:
            flops = local.facts["flops"][i]
            ledger.add_reading(local.facts["reading"], **each_seed, phase="pretraining", flops=flops)
        if part.facts["computation"] is not None:
            ledger.add_reading(part.facts["computation"], **each_seed, phase="computation", flops=part.facts["flops"])
        up, down = part.arrays["uplink_bits"][i], part.arrays["downlink_bits"][i]
        charge_radio(ledger, link(study.energy.link), **about, agents=agents.names, uplink_bits=up, downlink_bits=down)
        charge_adaptation(ledger, study, part, **about)


def charge_adaptation(ledger: Ledger, study: Study, part: Part, *, method: str, seed: int) -> None:
    """One new task's share of the reading over all seeds and all new tasks."""
    ledger.add_reading(
        part.facts["adaptation"],
        method=method,
        seed=seed,
        phase="adaptation",
        shares=len(study.seeds) * study.evaluation.tasks,
        of="new task",
        flops=part.facts["adaptation_flops"],
    )


def _evaluation(study: Study, finished: dict[str, Part]) -> Iterable[str]:
    yield "method,seed,task,steps,loss,accuracy\n"
    for name, part in finished.items():
        for i, seed in enumerate(study.seeds):
            if part.arrays["diverged"][i]:
                continue
            loss, accuracy = _text(part.arrays["loss"][i]), _text(part.arrays["accuracy"][i])
            for task in range(len(loss)):
                for k, steps in enumerate(study.evaluation.steps):
                    yield f"{name},{seed},{task},{steps},{loss[task, k]},{accuracy[task, k]}\n"


def _trace(study: Study, finished: dict[str, Part]) -> Iterable[str]:
    yield ",".join(("method", "seed", "round", *Trace._fields)) + "\n"
    for name, part in finished.items():
        for i, seed in enumerate(study.seeds):
            columns = [_text(part.arrays[f"trace_{field}"][i]) for field in Trace._fields]
            for round_, values in enumerate(zip(*columns, strict=True), start=1):
                yield f"{name},{seed},{round_},{','.join(values)}\n"


def _paths(part: Part) -> Iterable[str]:
    yield "method,agent,round,pc1,pc2\n"
    for (method, agent, round_), (x, y) in zip(part.facts["rows"], _text(part.arrays["pc"]), strict=True):
        yield f"{method},{agent},{round_},{x},{y}\n"


def _text(values: Array) -> Array:
    """Numbers as the shortest text that reads back as the same float32; NaN is an empty cell."""
    text = values.astype(np.float32).astype(str).astype(object)
    text[np.isnan(values)] = ""
    return text


def _put(path: Path, lines: Iterable[str]) -> None:
    buffer = io.StringIO()
    buffer.writelines(lines)
    write_atomically(path, buffer.getvalue().encode(), force=True)
