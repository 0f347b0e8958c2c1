"""A study that several processes run together: each takes some of the seeds, and all get the parts of all.

Seeds are independent, so processes exchange nothing within a stage. The first process keeps the run folder; the others
need no more of it than the study.
"""

import json
import socket
from typing import Any

import jax
import numpy as np

from fewjoule.energy.metering import Metering
from fewjoule.errors import InputError
from fewjoule.studies.parts import PRETRAINING, Part, Parts, packed, unpacked
from fewjoule.studies.prepare import Prepared, digest
from fewjoule.studies.settings import Study
from fewjoule.training.processes import Team

OF_FIRST_SEED = ("path_rounds", "meta_path", "agent_path")
"""Arrays of a method's part that have no axis of seeds."""
READINGS = ("reading", "computation", "server")
"""Facts that are what a meter read for all seeds; `adaptation` is of one meta-model."""
BY_SEED = ("alignment", "flops")
"""Facts that are lists over seeds; `flops` of a method is one number, the same for every seed."""


def check_processes(study: Study, processes: int) -> None:
    """Refuse more processes than seeds."""
    if not 1 <= processes <= len(study.seeds):
        raise InputError(
            f"processes share the seeds, so a run of {len(study.seeds)} seeds takes from 1 to {len(study.seeds)} "
            f"processes, got {processes}; give more --seeds or start fewer."
        )


def share_of(prepared: Prepared, team: Team) -> Prepared:
    """The study with this process's seeds alone."""
    own = team.share(len(prepared.study.seeds))
    seeds = prepared.study.seeds[own]
    agents = prepared.agents
    data = jax.tree.map(lambda array: array[own], agents.data)
    study = prepared.study.model_copy(update={"seeds": seeds})
    return prepared._replace(study=study, agents=type(agents)(data, agents.names, tuple(seeds)))


def agree(prepared: Prepared, team: Team, parts: Parts, names: list[str], meter: Metering) -> set[str]:
    """What the first process has finished already, of parts with these names; its local models become part of `parts`.

    Refuses processes that were started with other data or settings, and counters that would be read twice.
    """
    mine = {"digest": digest(prepared), "host": socket.gethostname(), "done": [n for n in names if n in parts]}
    told = [json.loads(text) for text in team.exchange(json.dumps(mine).encode())]
    other = [process for process, each in enumerate(told) if each["digest"] != told[0]["digest"]]
    if other:
        raise InputError(
            f"process {other[0]} found other data or settings than process 0; start all with the same study and files."
        )
    if meter.measured and len({each["host"] for each in told}) < team.count:
        raise InputError(
            "a counter of a whole machine would be read once by each of its processes; start one process on each "
            "machine, or give --set energy.meter=cpu-time."
        )
    done = set(told[0]["done"])
    if PRETRAINING in done and team.count > 1:
        content = team.exchange(packed(parts.load(PRETRAINING)) if team.index == 0 else b"")[0]
        if team.index:
            parts.save(PRETRAINING, unpacked(content))
    return done


def joined(own: Part, team: Team) -> Part:
    """The part for all seeds, from each process's own: joules add up, and seconds are those of the slowest process."""
    if team.count == 1:
        return own
    parts = [unpacked(content) for content in team.exchange(packed(own))]
    first = parts[0]
    arrays = {
        name: array if name in OF_FIRST_SEED else np.concatenate([part.arrays[name] for part in parts])
        for name, array in first.arrays.items()
    }
    facts: dict[str, Any] = dict(first.facts)
    for name, value in first.facts.items():
        every = [part.facts[name] for part in parts]
        if name in BY_SEED and isinstance(value, list):
            facts[name] = [row for rows in every for row in rows]
        elif name in READINGS and value is not None:
            joules, seconds = ([reading[unit] for reading in every] for unit in ("joules", "seconds"))
            facts[name] = {**value, "joules": sum(joules), "seconds": max(seconds)}
    return Part(arrays, facts)


def own_models(local: Part | None, team: Team) -> Part | None:
    """The local models of this process's seeds."""
    if local is None:
        return None
    own = team.share(len(local.arrays["models"]))
    return Part({"models": local.arrays["models"][own]}, {})
