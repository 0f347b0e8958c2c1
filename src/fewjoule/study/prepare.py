"""A study with its data: everything that can be wrong with files is found here, before any work begins."""

import hashlib
from typing import Any, NamedTuple

import jax
import numpy as np

from fewjoule.errors import InputError
from fewjoule.methods import Method
from fewjoule.models.model import Model
from fewjoule.study.families import FilesFamily
from fewjoule.study.own import OwnAgents, read_own
from fewjoule.study.settings import ModelSettings, Study
from fewjoule.tasks.samples import Agents, Tasks


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
    agents, tasks, data = family.build_from(own.files, seeds, study.evaluation.shots)
    model = ModelSettings(spec=own.model.spec, init=study.model.init, loss=own.model.loss_name)
    count = {} if tasks is None else {"tasks": len(tasks.support.mask)}  # as many new tasks as there are files
    study = study.model_copy(update={"model": model, "evaluation": study.evaluation.model_copy(update=count)})
    return Prepared(study, own.model, agents, tasks, data, own)


def digest(prepared: Prepared) -> str:
    """What stands for the settings and all data of a run: another digest, other numbers."""
    own = () if prepared.own is None else tuple(prepared.own.vectors.values())
    return digest_of(prepared.study.model_dump_json(), (prepared.agents.data, prepared.tasks, own))


def digest_of(text: str, arrays: Any) -> str:
    total = hashlib.sha256(text.encode())
    for leaf in jax.tree.leaves(arrays):
        total.update(np.ascontiguousarray(leaf).tobytes())
    return total.hexdigest()


def uses_local(method: Method) -> bool:
    """Whether a method asks for the agents' own models."""
    return method.start != "random" or method.needs_local
