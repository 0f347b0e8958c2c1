"""Own agents as a study: the same run folder and report as any other, with the mandatory controls beside the method."""

import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.energy import Ledger
from fewjoule.energy.metering import Around, Metering
from fewjoule.errors import InputError
from fewjoule.models.model import Model
from fewjoule.simulate.work import training_flops
from fewjoule.study.parts import Part
from fewjoule.study.settings import FilesFamily, Study, make_study
from fewjoule.study.train import given_models
from fewjoule.tasks.samples import Agents
from fewjoule.training.align import align
from fewjoule.training.local import Local, train_locally

CONTROLS = ("average", "local", "random")


def pretrain_files(study: Study, family: FilesFamily, model: Model, agents: Agents, meter: Metering) -> Part:
    """The local models of agents in files, for every seed: those they have, those trained here, aligned."""
    found = family.read(study.seeds[0])
    given = given_models(found, study.model.spec, init=study.model.init, layout=family.layout)
    if given.model.loss_name != model.loss_name:
        raise InputError(
            f"{family.folder} holds a {found.format.task} task, but model.loss is {model.loss_name}; "
            f"set {given.model.loss_name}."
        )
    missing = [i for i in range(len(agents)) if i not in given.vectors]
    shape = (len(study.seeds), len(agents), model.size)
    models = np.zeros(shape, np.float32)
    for i, vector in given.vectors.items():
        models[:, i] = vector
    facts: dict[str, Any] = {"reading": None, "flops": [0] * len(study.seeds)}
    if missing:
        rest = agents.select(missing)

        def train(around: Around) -> Local:
            return train_locally(model, rest, seed=list(study.seeds), **study.local.model_dump(), around=around)

        local, reading = meter.read(train, None)
        if (local.stopped_by == "diverged").any() or not bool(jnp.isfinite(local.models).all()):
            raise InputError(f"local training diverged at step {study.local.step:g}; lower local.step.")
        models[:, missing] = local.models
        flops = training_flops(model, rest, np.asarray(local.steps), **study.local.work())
        facts = {"reading": meter.of_flops(reading, sum(flops)), "flops": flops}
    mode = family.align if len(agents) > 1 else "never"
    aligned = [align(model, jnp.asarray(m), found.agents, mode=mode).models for m in models]
    return Part({"models": np.asarray(jnp.stack(aligned))}, facts)


def study_of(
    family: dict[str, Any],
    *,
    model: Model,
    init: str,
    method: str,
    settings: dict[str, Any],
    seed: int,
    local: dict[str, Any],
    energy: dict[str, Any],
    evaluation: dict[str, Any],
) -> Study:
    """A study of one method over own agents, with the controls that every comparison needs."""
    folder = Path(family["folder"]).resolve().name
    entries = [{"name": method, "label": method, "method": method, **settings}]
    entries += [{"name": name, "label": name, "method": name} for name in CONTROLS if name != method]
    table = {
        "name": re.sub(r"[^A-Za-z0-9_.-]", "-", folder).lstrip("_.-")[:60] or "agents",
        "title": f"Own agents: {folder}",
        "seeds": [seed],
        "family": {"kind": "files", **family},
        "model": {"spec": model.spec, "init": init, "loss": model.loss_name},
        "local": local,
        "energy": energy,
        "evaluation": evaluation,
        "methods": entries,
    }
    return make_study(table, folder)


def pretraining_part(models: Array, ledger: Ledger) -> Part:
    """Local models that are already there, with what the ledger has for them, as the run's finished stage."""
    rows = list(ledger.select(phase="pretraining"))
    reading = None
    if rows:
        reading = {key: getattr(rows[0], key) for key in ("joules", "seconds", "kind", "source")}
    return Part({"models": np.asarray(models)[None]}, {"reading": reading, "flops": [rows[0].flops if rows else 0]})
