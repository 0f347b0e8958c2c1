"""The first stage of a run: the local models, given or trained here, and aligned where the agents never met."""

import warnings
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule._version import __version__
from fewjoule.energy.metering import Around, Metering
from fewjoule.errors import DivergedWarning, InputError
from fewjoule.files import cache_folder
from fewjoule.models.code import is_code
from fewjoule.models.model import Model, OwnModel
from fewjoule.simulation.rules import loss_at
from fewjoule.simulation.work import training_flops
from fewjoule.studies.parts import Part, Parts
from fewjoule.studies.personal import judge_alone
from fewjoule.studies.prepare import Prepared, digest_of
from fewjoule.tasks.samples import AgentData, Agents, few
from fewjoule.training.align import align
from fewjoule.training.local import LocalModels, train_locally
from fewjoule.training.program import BRIEF_OPTIONS

LARGE_INPUT = 30.0
"""Where inputs are beyond this, it is these that make descent diverge sooner than its step."""


class Progress(Protocol):
    """Where a run tells how far it is."""

    def line(self, text: str) -> None: ...
    def stage(self, name: str, work: float) -> None: ...
    def advance(self, work: float) -> None: ...
    def finish(self) -> None: ...


def pretrain(prepared: Prepared, meter: Metering, progress: Progress) -> Part:
    """The local models for every seed: those that agents have, those trained here, aligned where they never met."""
    study, model, agents, own = prepared.study, prepared.model, prepared.agents, prepared.own
    given = {} if own is None else own.vectors
    missing = [i for i in range(len(agents)) if i not in given]
    models = np.zeros((len(study.seeds), len(agents), model.size), np.float32)
    different = [i for i in given if own is not None and own.nets[i].spec != model.spec]
    for i, vector in given.items():
        if i not in different:
            models[:, i] = vector
    flops, reading = np.zeros((len(study.seeds), len(agents)), int), None
    if missing:
        rest = agents if not given else agents.select(missing)

        local = _trained(prepared, rest, missing, meter, progress)
        models[:, missing] = local.arrays["models"]
        by = study.local
        steps = local.arrays["steps"]
        flops[:, missing] = training_flops(
            model,
            rest,
            steps,
            name=by.optimiser,
            learning_rate=by.learning_rate,
            batch=by.batch,
            max_steps=by.max_steps,
            early_stopping=by.early_stopping,
        )
        reading = meter.of_flops(local.facts["reading"], int(flops.sum()))
    facts: dict[str, Any] = {"reading": reading, "flops": flops.tolist()}
    if own is not None:
        merged = any(m.start == "average" or m.needs_local for m in (entry.build() for entry in study.methods))
        mode = study.family.align if merged and len(agents) > 1 else "never"  # type: ignore[union-attr]
        judged: dict[str, Any] = {"steps": study.evaluation.headline, "learning_rate": study.evaluation.learning_rate}
        aligned = [align(model, jnp.asarray(m), own.files.agents, mode=mode, **judged) for m in models]
        models = np.stack([np.asarray(a.models) for a in aligned])
        facts["trained"] = [i in missing for i in range(len(agents))]
        facts["alignment"] = [{k: v for k, v in a._asdict().items() if k != "models"} for a in aligned]
    losses = np.array(_losses(model, jnp.asarray(models), agents.data))
    for i in different:
        samples = jax.tree.map(lambda a, i=i: a[0, i], agents.data.train)
        losses[:, i] = own.nets[i].loss(given[i], samples)  # type: ignore[union-attr]
    return Part({"models": models, "loss": losses, **judge_alone(prepared, models)}, facts)


@partial(jax.jit, static_argnums=0, compiler_options=BRIEF_OPTIONS)
def _losses(model: Model, models: Array, data: AgentData) -> Array:
    """Every agent's loss [seeds, agents] at its own model, one agent after the other: some have many samples."""

    def own(of_seed: Any) -> Array:
        return jax.lax.map(lambda each: loss_at(model, *each), of_seed)

    return jax.lax.map(own, (models, data))


def models_of(prepared: Prepared, local: Part | None) -> Any:
    """The local models as `simulate` takes them: [seeds, agents, d], or one by one where architectures differ."""
    if local is None:
        return None
    models, own = jnp.asarray(local.arrays["models"]), prepared.own
    nets = {} if own is None else own.nets
    if own is None or all(net.spec == prepared.model.spec for net in nets.values()):
        return models
    return [
        OwnModel(nets[i], own.vectors[i]) if i in nets else OwnModel(prepared.model, models[:, i])
        for i in range(len(prepared.agents))
    ]


def _trained(prepared: Prepared, rest: Agents, missing: list[int], meter: Metering, progress: Progress) -> Part:
    """Train the agents without a model. Own agents' models are kept for other runs with the same data and settings."""
    study, own = prepared.study, prepared.own
    known = (__version__, prepared.model.spec, study.model.init, study.local, study.seeds, rest.names, meter.describe())
    name, kept = digest_of(repr(known), rest.data), None
    reusable = own is not None and not is_code(prepared.model.spec)  # code may change in files that nobody named
    if reusable and (folder := cache_folder("local")) is not None:
        kept = Parts(folder)
        if name in kept:
            progress.line("local models: as trained before, with the same data and settings, and with their energy")
            return kept.load(name)
    done = 0.0

    def told(share: float) -> None:
        nonlocal done
        progress.advance(max(0.0, share - done))
        done = max(done, share)

    def train(around: Around) -> LocalModels:
        settings = study.local.model_dump()
        return train_locally(prepared.model, rest, seed=list(study.seeds), **settings, around=around, told=told)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergedWarning)  # said below, with the agent and the cure
        local, reading = meter.read(train, None)
    gone = (local.stopped_by == "diverged") | ~np.isfinite(local.models).all(-1)
    if gone.any():
        first = missing[int(np.argwhere(gone)[0, 1])]
        who = f"agent {prepared.agents.names[first]!r}" if own is None else own.files.files[first]
        largest = float(np.abs(rest.data.train.x).max())
        cure = "lower --local-learning-rate (local.learning_rate)"
        if largest > LARGE_INPUT:
            cure = f"the inputs reach {largest:.3g}, so scale them to about 1 (--divide-by, --standardise), or {cure}"
        raise InputError(f"{who}: local training diverged at learning rate {study.local.learning_rate:g}; {cure}.")
    part = Part({"models": np.asarray(local.models), "steps": np.asarray(local.steps)}, {"reading": reading})
    if kept is not None:
        kept.save(name, part)
    return part


def lines_on(prepared: Prepared, local: Part) -> list[str]:
    """What to say of own agents' local models."""
    lines = []
    if any(local.facts["trained"]):
        losses = zip(prepared.agents.names, local.arrays["loss"][0], strict=True)
        lines.append("local losses: " + few([f"{name} {loss:.4g}" for name, loss in losses]))
    aligned, steps = local.facts["alignment"][0], prepared.study.evaluation.headline
    before, after = f"{aligned['adapted_before']:.4g}", f"{aligned['adapted_after']:.4g}"
    what = f"the average's loss on an agent's samples after {steps} steps"
    if aligned["applied"]:
        lines.append(f"aligned; {what}: {before} before, {after} after")
    elif before == after:
        lines.append(f"not aligned; {what}: {before}")
    else:
        lines.append(f"not aligned, which would not be a better start; {what}: {before}, aligned {after}")
    return lines
