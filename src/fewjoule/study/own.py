"""A user's own agents: the models they already have, and a study of one method over them."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from fewjoule.errors import InputError
from fewjoule.models.model import Model, check_fit
from fewjoule.models.nets import model_from_spec
from fewjoule.models.weights import read_model
from fewjoule.study.families import FilesFamily
from fewjoule.study.settings import ModelSettings, Study, make_study
from fewjoule.tasks.files import AgentFiles, DataFormat, read_agents

CONTROLS = ("average", "local", "random")
"""Stand beside the method wherever new tasks judge it."""


class OwnAgents(NamedTuple):
    """The agents' files, the architecture, and the models that agents already have."""

    files: AgentFiles
    model: Model
    source: str  # where the architecture comes from
    vectors: dict[int, Array]  # by the agent's position
    layouts: dict[int, str]  # whose order of axes the agent's file had


def read_own(family: FilesFamily, settings: ModelSettings, *, seed: int, needs_validation: bool) -> OwnAgents:
    """The agents' files; the architecture from the settings or the first agent's weights; and all weights, checked."""
    share = family.validation if family.validation is not None else 0.2 if needs_validation else 0.0
    form = DataFormat(family.target, family.task, family.divide_by)
    found = read_agents(family.folder, form, validation=share, seed=seed)
    for path, held in zip(found.files, found.agents.data.validation.mask.sum(-1), strict=True):
        if needs_validation and not held:
            raise InputError(f"{path}: the method needs held-out samples; give x_test and y_test, or --validation 0.2.")
    loss = "mse" if found.format.task == "regression" else "cross_entropy"
    if settings.loss not in (None, loss):
        raise InputError(
            f"{family.folder} holds a {found.format.task} task, but model.loss is {settings.loss}; set {loss}."
        )
    paths = {i: path for i, path in enumerate(found.models) if path is not None}
    if settings.spec is not None:
        model, source = model_from_spec(settings.spec, init=settings.init, loss=loss), "as given"
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
    loaded = {i: read_model(path, model=model, layout=family.layout) for i, path in paths.items()}
    layouts = {i: m.layout for i, m in loaded.items()}
    return OwnAgents(found, model, source, {i: m.vector for i, m in loaded.items()}, layouts)


def own_study(
    tables: dict[str, Any], *, folder: Path, method: str, settings: dict[str, Any], seed: int, where: str
) -> Study:
    """A study of one method over own agents, with the controls that every comparison needs where new tasks judge.

    `tables` are the study's family, model, local, energy and evaluation; `where` names them in errors.
    """
    name = folder.resolve().name
    entries = [{"name": method, "label": method, "method": method, **settings}]
    if tables["family"].get("new_tasks"):
        entries += [{"name": control, "label": control, "method": control} for control in CONTROLS if control != method]
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
