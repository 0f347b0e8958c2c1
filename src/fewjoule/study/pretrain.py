"""The first stage of a run: the local models, given or trained here, and aligned where the agents never met."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fewjoule.energy.metering import Around, Metering
from fewjoule.errors import DivergedWarning, InputError
from fewjoule.simulate.work import training_flops
from fewjoule.study.parts import Part
from fewjoule.study.prepare import Prepared
from fewjoule.training.align import align
from fewjoule.training.local import LocalModels, train_locally

LARGE_INPUT = 30.0
"""Where inputs are beyond this, it is these that make descent diverge sooner than its step."""


def pretrain(prepared: Prepared, meter: Metering) -> Part:
    """The local models for every seed: those that agents have, those trained here, aligned where they never met."""
    study, model, agents, own = prepared.study, prepared.model, prepared.agents, prepared.own
    given = {} if own is None else own.vectors
    missing = [i for i in range(len(agents)) if i not in given]
    models = np.zeros((len(study.seeds), len(agents), model.size), np.float32)
    for i, vector in given.items():
        models[:, i] = vector
    nothing = np.zeros((len(study.seeds), len(agents)), int)
    facts: dict[str, Any] = {"reading": None, "flops": nothing.tolist()}
    if missing:
        rest = agents if not given else agents.select(missing)

        def train(around: Around) -> LocalModels:
            return train_locally(model, rest, seed=list(study.seeds), **study.local.model_dump(), around=around)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergedWarning)  # said below, with the agent and the cure
            local, reading = meter.read(train, None)
        gone = (local.stopped_by == "diverged") | ~np.isfinite(local.models).all(-1)
        if gone.any():
            first = missing[int(np.argwhere(gone)[0, 1])]
            who = f"agent {agents.names[first]!r}" if own is None else own.files.files[first]
            largest = float(np.abs(rest.data.train.x).max())
            cure = "lower --local-step (local.step)"
            if largest > LARGE_INPUT:
                cure = f"the inputs reach {largest:.3g}, so scale them to about 1 (--divide-by, divide_by), or {cure}"
            raise InputError(f"{who}: local training diverged at step {study.local.step:g}; {cure}.")
        models[:, missing] = local.models
        nothing[:, missing] = training_flops(model, rest, np.asarray(local.steps), **study.local.work())
        facts = {"reading": meter.of_flops(reading, int(nothing.sum())), "flops": nothing.tolist()}
    if own is not None:
        merged = any(m.start == "average" or m.needs_local for m in (entry.build() for entry in study.methods))
        mode = study.family.align if merged and len(agents) > 1 else "never"  # type: ignore[union-attr]
        aligned = [align(model, jnp.asarray(m), own.files.agents, mode=mode) for m in models]
        models = np.stack([np.asarray(a.models) for a in aligned])
        facts["trained"] = [i in missing for i in range(len(agents))]
        facts["alignment"] = [{k: v for k, v in a._asdict().items() if k != "models"} for a in aligned]
    losses = jax.jit(jax.vmap(jax.vmap(model.loss)))(models, agents.data.train)
    return Part({"models": models, "loss": np.asarray(losses)}, facts)


def told(prepared: Prepared, local: Part) -> list[str]:
    """What to say of own agents' local models."""
    lines = []
    if any(local.facts["trained"]):
        losses = zip(prepared.agents.names, local.arrays["loss"][0], strict=True)
        lines.append("local losses: " + ", ".join(f"{name} {loss:.4g}" for name, loss in losses))
    aligned = local.facts["alignment"][0]
    before, after = f"{aligned['barrier_before']:.4g}", f"{aligned['barrier_after']:.4g}"
    if aligned["applied"]:
        lines.append(f"aligned; barrier of the average {before} before, {after} after")
    elif before == after:
        lines.append(f"not aligned; barrier of the average {before}")
    else:
        lines.append(f"not aligned: that does not lower the barrier of the average ({before}, aligned {after})")
    return lines
