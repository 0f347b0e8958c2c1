"""A study with its data: everything that can be wrong with files is found here, before any work begins.

A user's own agents may bring models that they already have; `own_study` makes a study of one method over them.
"""

import hashlib
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array

from fewjoule.errors import InputError
from fewjoule.models.model import Model, check_alike, check_fit
from fewjoule.models.weights import read_model
from fewjoule.simulation.rules import needs_one_architecture
from fewjoule.studies.families import TASK_SEED, FilesFamily
from fewjoule.studies.settings import ModelSettings, Study, make_study
from fewjoule.tasks.files import AgentFiles, read_agents, read_tasks
from fewjoule.tasks.format import DataFormat
from fewjoule.tasks.held_out import hold_out
from fewjoule.tasks.samples import Agents, Samples, Tasks, for_seeds

BASELINES = ("average", "local", "random")
"""Methods that every other one is compared with, where there are new tasks."""


class OwnAgents(NamedTuple):
    """The agents' files, the architecture, and the models that agents already have."""

    files: AgentFiles
    model: Model
    source: str  # where the architecture comes from
    vectors: dict[int, Array]  # by the agent's position
    nets: dict[int, Model]  # their architectures, which differ only where the method asks for answers alone
    layouts: dict[int, str]  # whose order of axes the agent's file had


class Prepared(NamedTuple):
    """A study with everything it needs, built before the folder is touched."""

    study: Study
    model: Model
    agents: Agents
    tasks: Tasks | None  # None where nothing is judged
    data: str
    own: OwnAgents | None = None
    tests: Samples | None = None  # [seeds, agents, n, ...] that agents are tested on themselves


def prepare(study: Study, own: OwnAgents | None = None) -> Prepared:
    """Build a study's data; a missing or corrupt file is refused here, before anything is written.

    `own` are the agents' files, where they are read already.
    """
    seeds, family = list(study.seeds), study.family
    if family is None or study.federation is not None:
        raise InputError("a study with [federation] runs between machines; start it with: fewjoule federation run.")
    share = study.evaluation.own_test
    if not isinstance(family, FilesFamily):
        built = family.build(seeds, study.evaluation)
        agents, tests = built.agents, built.tests
        if share and tests is None:
            agents, tests = hold_out(agents, share, seeds)
        elif agents.seeds is None:
            agents = for_seeds(lambda seed: built.agents, seeds)
            tests = tests and _for_seeds(tests, seeds)
        return Prepared(study, study.build_model(), agents, built.tasks, built.data, None, tests)
    if own is None:
        needs = any(entry.build().needs_validation for entry in study.methods)
        alike = any(needs_one_architecture(entry.build()) for entry in study.methods)
        own = read_own(family, study.model, seed=seeds[0], needs_validation=needs, one_architecture=alike)
    tests = None
    if share:
        less, held = hold_out(own.files.agents, share, seeds[0])
        own, tests = own._replace(files=own.files._replace(agents=less)), _for_seeds(held, seeds)
    agents, tasks, evaluation = own.files.agents, None, study.evaluation
    data = f"{len(own.files.files)} agents of {family.folder}"
    if family.new_tasks is not None:
        tasks, names, *_ = read_tasks(family.new_tasks, own.files.format, shots=evaluation.shots, seed=TASK_SEED)
        data += f", {len(names)} new tasks of {family.new_tasks}"
        evaluation = evaluation.model_copy(update={"tasks": len(names)})  # as many new tasks as there are files
    spec = study.model.spec or own.model.spec  # code keeps its path, so that a stopped run finds it again
    model = ModelSettings(spec=spec, init=study.model.init, loss=own.model.loss_name)
    study = study.model_copy(update={"model": model, "evaluation": evaluation})
    return Prepared(study, own.model, for_seeds(lambda seed: agents, seeds), tasks, data, own, tests)


def _for_seeds(samples: Samples, seeds: list[int]) -> Samples:
    """The same samples for every seed, on a leading axis."""
    repeated: Samples = jax.device_put(jax.tree.map(lambda a: np.stack([a] * len(seeds)), samples))
    return repeated


def digest(prepared: Prepared) -> str:
    """What stands for the settings and all data of a run: another digest, other numbers."""
    own = () if prepared.own is None else tuple(prepared.own.vectors.values())
    return digest_of(prepared.study.model_dump_json(), (prepared.agents.data, prepared.tasks, own, prepared.tests))


def digest_of(text: str, arrays: Any) -> str:
    total = hashlib.sha256(text.encode())
    for leaf in jax.tree.leaves(arrays):
        total.update(np.ascontiguousarray(leaf).tobytes())
    return total.hexdigest()


def read_own(
    family: FilesFamily, settings: ModelSettings, *, seed: int, needs_validation: bool, one_architecture: bool = True
) -> OwnAgents:
    """The agents' files; the architecture from the settings or the first agent's weights; and all weights, checked.

    Without `one_architecture` every agent's model may have its own, with the same inputs and outputs.
    """
    share = family.validation if family.validation is not None else 0.2 if needs_validation else 0.0
    form = DataFormat(family.target, family.task, family.divide_by)
    found = read_agents(family.folder, form, validation=share, seed=seed, standardise=family.standardise)
    for path, held in zip(found.files, found.agents.data.validation.mask.sum(-1), strict=True):
        if needs_validation and not held:
            raise InputError(f"{path}: the method needs held-out samples; give x_test and y_test, or --validation 0.2.")
    loss = "mse" if found.format.task == "regression" else "cross_entropy"
    if settings.loss not in (None, loss):
        raise InputError(
            f"{family.folder} holds a {found.format.task} task, but model.loss is {settings.loss}; set {loss}."
        )
    paths = {i: path for i, path in enumerate(found.models) if path is not None}
    if paths and family.standardise:
        raise InputError(
            f"{next(iter(paths.values()))} was trained on inputs as they are; leave standardise (--standardise) out, "
            "or move the agents' models away so that they are trained here."
        )
    if settings.spec is not None:
        model, source = settings.build(settings.spec, loss), "as given"
    elif paths:
        first = next(iter(paths.values()))
        model, source = read_model(first, loss=loss, layout=family.layout).model, f"from {first.name}"
    else:
        width = int(np.prod(found.agents.data.train.x.shape[2:]))
        raise InputError(
            f"{family.folder}: no agent has a model, so the architecture is not known; give it, as in --model "
            f"mlp:{width}-40-40-{_outputs(found)}."
        )
    try:
        check_fit(model, found.agents)
    except InputError as error:
        raise InputError(f"{family.folder}: {error}") from error
    known: dict[str, Any] = {"model": model} if one_architecture else {"loss": loss}
    loaded = {i: read_model(path, **known, layout=family.layout) for i, path in paths.items()}
    for i, m in loaded.items():
        if m.model is not model:
            check_alike(m.model, model, str(paths[i]))
    layouts, nets = {i: m.layout for i, m in loaded.items()}, {i: m.model for i, m in loaded.items()}
    return OwnAgents(found, model, source, {i: m.vector for i, m in loaded.items()}, nets, layouts)


def own_study(
    tables: dict[str, Any], *, folder: Path, method: str, settings: dict[str, Any], seed: int, where: str,
    one_architecture: bool = True,
) -> Study:  # fmt: skip
    """A study of one method over own agents, with the baselines that every comparison needs, if there are new tasks.

    `tables` are the study's family, model, local, energy and evaluation; `where` names them in errors.
    """
    name = folder.resolve().name
    entries = [{"name": method, "label": method, "method": method, **settings}]
    if tables["family"].get("new_tasks"):
        baselines = BASELINES if one_architecture else BASELINES[-1:]  # nothing else takes models that differ
        entries += [{"name": each, "label": each, "method": each} for each in baselines if each != method]
    table = {
        "name": re.sub(r"[^A-Za-z0-9_.-]", "-", name).lstrip("_.-")[:60] or "agents",
        "title": f"Own agents: {name}",
        "seeds": [seed],
        **tables,
        "methods": entries,
    }
    return make_study(table, where)


def _outputs(found: AgentFiles) -> int:
    y = found.agents.data.train.y
    if found.format.task == "regression":
        return int(y.shape[-1])
    return len(found.format.classes) if found.format.classes else int(y.max()) + 1
