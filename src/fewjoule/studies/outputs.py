"""The files of a run folder that scripts may rely on, made from a study's finished stages.

    study.toml, evaluation.csv, personal.csv, energy.csv, trace.csv, paths.csv, summary.json, predictions.safetensors,
    meta/<method>-<seed>.safetensors

`docs/run-folder.md` describes every column. The report reads these files and nothing else.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewjoule.energy import Ledger, charge_radio, link
from fewjoule.energy.ledger import SERVER
from fewjoule.files import write_atomically
from fewjoule.models.model import Model
from fewjoule.models.weights import write_model
from fewjoule.reporting.run_folder import ENERGY, EVALUATION, PATHS, PERSONAL, SUMMARY, TRACE, Summary
from fewjoule.simulation.rules import uses_local
from fewjoule.simulation.run import Trace
from fewjoule.studies.parts import Part
from fewjoule.studies.predictions import NewDevice, predict_new_tasks
from fewjoule.studies.prepare import Prepared
from fewjoule.studies.settings import MethodEntry, Study
from fewjoule.studies.summary import summarise, worth_of
from fewjoule.training.tuning import card_of

Array = np.ndarray[Any, Any]


class Finished(NamedTuple):
    """All finished stages of a run."""

    local: Part | None  # None where no method asks for local models
    methods: dict[str, Part]
    paths: Part


def write_run_folder(folder: Path, prepared: Prepared, finished: Finished, ledger: Ledger) -> None:
    """Write every file of the contract except study.toml, which stands there from the beginning."""
    study, model = prepared.study, prepared.model
    rows = zip(finished.paths.facts["rows"], as_text(finished.paths.arrays["pc"]), strict=True)
    PATHS.write(folder, ((*label, *point) for label, point in rows))
    names, local = prepared.agents.names, finished.local
    if prepared.tests is not None and local is not None:
        PERSONAL.write(folder, _personal(study, names, local, finished.methods))
    summary = summarise(study, model, names, prepared.data, finished.methods, ledger, local)
    cards = {
        entry.name: [model_card(prepared, entry, i, finished) for i in range(len(study.seeds))]
        for entry in study.methods
    }
    write_results(folder, study, model, finished.methods, ledger, summary, cards)
    if prepared.tasks is not None:
        starts = {
            e.name: NewDevice(part.arrays["meta"][0], e.build().tuning, part.arrays.get("rates", [None])[0])
            for e, part in zip(study.methods, finished.methods.values(), strict=True)
        }
        predict_new_tasks(model, starts, prepared.tasks, study.evaluation, study.seeds[0]).write(folder)


def write_results(
    folder: Path, study: Study, model: Model, finished: dict[str, Part], ledger: Ledger, summary: Summary,
    cards: dict[str, list[dict[str, Any]]],
) -> None:  # fmt: skip
    """The files that a simulated and a federated run have in common."""
    EVALUATION.write(folder, _evaluation(study, finished))
    TRACE.write(folder, _trace(study, finished))
    ledger.to_csv(folder / ENERGY, force=True)
    write_atomically(folder / SUMMARY, summary.to_json().encode(), force=True)
    (folder / "meta").mkdir(exist_ok=True)
    for name, part in finished.items():
        rates = part.arrays.get("rates", [None] * len(study.seeds))
        for seed, vector, own, card in zip(study.seeds, part.arrays["meta"], rates, cards[name], strict=True):
            if np.isfinite(vector).all():
                write_model(folder / "meta" / f"{name}-{seed}.safetensors", model, vector, card, rates=own, force=True)


def model_card(prepared: Prepared, entry: MethodEntry, i: int, finished: Finished) -> dict[str, Any]:
    """What the meta-model of the seed at position `i` says about itself, beside its architecture and loss."""
    study, own, part, local = prepared.study, prepared.own, finished.methods[entry.name], finished.local
    method, sizes = entry.build(), prepared.agents.sizes
    agents: list[dict[str, Any]] = [
        {"name": name, "samples": size} for name, size in zip(prepared.agents.names, sizes, strict=True)
    ]
    card: dict[str, Any] = {
        "study": study.name,
        "method": method.describe(),
        "seed": study.seeds[i],
        "agents": agents,
        "local_training": None,
        "loss_on_agents": {"start": part.arrays["start_loss"][i], "final": part.arrays["final_loss"][i]},
        "link": study.energy.link,
    }
    card |= card_of(method.tuning)
    if (worth := worth_of(study, part, [i])) is not None:
        card |= {"worth": worth._asdict(), "remarks": worth.remarks()}
    if own is not None:
        form = own.files.format
        classes = list(form.classes) if form.classes else None
        card |= {"task": form.task, "classes": classes, "reading": form._asdict(), "alignment": None}
    if local is None or not uses_local(method):
        return card
    trained = local.facts.get("trained", [True] * len(agents))
    for agent, loss, here in zip(agents, local.arrays["loss"][i], trained, strict=True):
        agent |= {"loss": float(loss), "model": "trained here" if here else "given"}
    if any(trained):
        card["local_training"] = study.local.model_dump()
    if own is not None:
        card["alignment"] = local.facts["alignment"][i]
    return card


def ledger_of(study: Study, agents: Sequence[str], finished: Finished) -> Ledger:
    """Every method's pretraining, computation, radio, server and adaptation, for every seed.

    A reading covers all seeds at once and is shared out evenly; its source says so.
    """
    ledger, chosen, local = Ledger(), link(study.energy.link), finished.local
    for entry in study.methods:
        method, part = entry.build(), finished.methods[entry.name]
        for i, seed in enumerate(study.seeds):
            same: dict[str, Any] = {"method": entry.name, "seed": seed}
            if local is not None and uses_local(method) and local.facts["reading"] is not None:
                _charge_pretraining(ledger, local, method.start, agents, i, **same, phase="pretraining")
            if part.facts["computation"] is not None:
                reading, shares, flops = part.facts["computation"], len(study.seeds), part.facts["flops"]
                ledger.add_reading(reading, **same, phase="computation", shares=shares, of="seed", flops=flops)
            if part.facts["server"] is not None:
                reading, shares, flops = part.facts["server"], len(study.seeds), part.facts["server_flops"]
                served: dict[str, Any] = {**same, "phase": "server", "agent": SERVER}
                ledger.add_reading(reading, **served, shares=shares, of="seed", flops=flops)
            charge_adaptation(ledger, study, part, **same)
            up, down = part.arrays["uplink_bits"][i], part.arrays["downlink_bits"][i]
            charge_radio(ledger, chosen, **same, agents=agents, uplink_bits=up, downlink_bits=down)
    return ledger


def _charge_pretraining(
    ledger: Ledger, local: Part, start: str | int, agents: Sequence[str], i: int, **same: Any
) -> None:
    """The offline training of all agents; or of the one whose model is the start, as its share of the operations."""
    reading, flops = local.facts["reading"], local.facts["flops"]
    if not isinstance(start, int):
        ledger.add_reading(reading, **same, shares=len(flops), of="seed", flops=sum(flops[i]))
        return
    share = flops[i][start] / max(sum(map(sum, flops)), 1)
    source = f"{reading['source']}; share of {agents[start]} by operation counts"
    ledger.add(
        **same, agent=agents[start], round=0, kind="modelled", source=source, joules=share * reading["joules"],
        seconds=share * reading["seconds"], flops=flops[i][start],
    )  # fmt: skip


def charge_adaptation(ledger: Ledger, study: Study, part: Part, *, method: str, seed: int) -> None:
    """What one new device spends on its fine-tuning: the reading covers all of them."""
    if part.facts["adaptation"] is not None:
        shares, flops = part.arrays["loss"].shape[1], part.facts["adaptation_flops"]
        same: dict[str, Any] = {"method": method, "seed": seed, "phase": "adaptation"}
        ledger.add_reading(part.facts["adaptation"], **same, shares=shares, of="new task", flops=flops)


def energy_table(ledger: Ledger) -> list[dict[str, Any]]:
    """Joules, seconds, bits and FLOPs by phase and kind, those that are known; kinds are never added up."""
    table = []
    for spent in ledger.spent():
        counts = {"bits": spent.bits, "flops": spent.flops}
        whole = {key: int(count) for key, count in counts.items() if count is not None}
        cell = {"phase": spent.phase, "kind": spent.kind, "source": spent.sources[0], "joules": spent.joules} | whole
        table.append(cell if spent.seconds is None else cell | {"seconds": spent.seconds})
    return table


def _evaluation(study: Study, finished: dict[str, Part]) -> Iterator[tuple[Any, ...]]:
    for name, part in finished.items():
        for i, seed in enumerate(study.seeds):
            if part.arrays["diverged"][i]:
                continue
            loss, accuracy = as_text(part.arrays["loss"][i]), as_text(part.arrays["accuracy"][i])
            for task in range(len(loss)):
                for k, steps in enumerate(study.evaluation.steps):
                    yield name, seed, task, steps, loss[task, k], accuracy[task, k]


def _personal(study: Study, agents: Sequence[str], local: Part, finished: dict[str, Part]) -> Iterator[tuple[Any, ...]]:
    alone = [as_text(local.arrays[name]) for name in ("alone_loss", "alone_accuracy")]
    for name, part in finished.items():
        own = [as_text(part.arrays[name]) for name in ("own_loss", "own_accuracy")]
        for i, seed in enumerate(study.seeds):
            for a, agent in enumerate(() if part.arrays["diverged"][i] else agents):
                for k, steps in enumerate(study.evaluation.steps):
                    yield name, seed, agent, steps, *(v[i, a, k] for v in own), *(v[i, a] for v in alone)


def _trace(study: Study, finished: dict[str, Part]) -> Iterator[tuple[Any, ...]]:
    for name, part in finished.items():
        for i, seed in enumerate(study.seeds):
            columns = [as_text(part.arrays[f"trace_{field}"][i]) for field in Trace._fields]
            for round_, values in enumerate(zip(*columns, strict=True), start=1):
                yield name, seed, round_, *values


def as_text(values: Array) -> Array:
    """Numbers as the shortest text that reads back as the same float32; NaN is an empty cell."""
    text = values.astype(np.float32).astype(str).astype(object)
    text[np.isnan(values)] = ""
    return text
