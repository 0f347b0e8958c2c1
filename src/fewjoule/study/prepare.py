"""A study with its data: everything that can be wrong with files is found here, before any work begins."""

import hashlib
from typing import NamedTuple

import jax
import numpy as np

from fewjoule.errors import InputError
from fewjoule.models.model import Model
from fewjoule.study.families import TASK_SEED, FilesFamily
from fewjoule.study.own import OwnAgents, read_own
from fewjoule.study.settings import ModelSettings, Study
from fewjoule.tasks.files import read_tasks
from fewjoule.tasks.samples import Agents, Tasks, for_seeds


class Prepared(NamedTuple):
    """A study with everything it needs, built before the folder is touched."""

    study: Study
    model: Model
    agents: Agents
    tasks: Tasks | None  # None where nothing is judged
    data: str
    own: OwnAgents | None = None


def prepare(study: Study, own: OwnAgents | None = None) -> Prepared:
    """Build a study's data; a missing or corrupt file is refused here, before anything is written.

    `own` are the agents' files, where they are read already.
    """
    seeds, family = list(study.seeds), study.family
    if family is None or study.federation is not None:
        raise InputError("a study with [federation] runs between machines; start it with: fewjoule federation run.")
    if not isinstance(family, FilesFamily):
        return Prepared(study, study.build_model(), *family.build(seeds, study.evaluation))
    if own is None:
        needs = any(entry.build().needs_validation for entry in study.methods)
        own = read_own(family, study.model, seed=seeds[0], needs_validation=needs)
    agents, tasks, evaluation = own.files.agents, None, study.evaluation
    data = f"{len(own.files.files)} agents of {family.folder}"
    if family.new_tasks is not None:
        tasks, names, *_ = read_tasks(family.new_tasks, own.files.format, shots=evaluation.shots, seed=TASK_SEED)
        data += f", {len(names)} new tasks of {family.new_tasks}"
        evaluation = evaluation.model_copy(update={"tasks": len(names)})  # as many new tasks as there are files
    model = ModelSettings(spec=own.model.spec, init=study.model.init, loss=own.model.loss_name)
    study = study.model_copy(update={"model": model, "evaluation": evaluation})
    return Prepared(study, own.model, for_seeds(lambda seed: agents, seeds), tasks, data, own)


def digest(prepared: Prepared) -> str:
    """What stands for the settings and all data of a run: another digest, other numbers."""
    total = hashlib.sha256(prepared.study.model_dump_json().encode())
    own = () if prepared.own is None else tuple(prepared.own.vectors.values())
    for leaf in jax.tree.leaves((prepared.agents.data, prepared.tasks, own)):
        total.update(np.ascontiguousarray(leaf).tobytes())
    return total.hexdigest()
