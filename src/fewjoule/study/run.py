"""Run a study: local training, every method over all seeds, adaptation to the new tasks; then the run folder.

Data comes from a `Study`; each finished stage is one file in the folder's `.parts`, so that a stopped run goes on where
it was; when all are there, `run_folder` turns them into the folder's files and the parts are deleted.
"""

import os
import platform
import shutil
import time
import warnings
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import tomli_w

from fewjoule._version import __version__
from fewjoule.energy.metering import Around, Metering
from fewjoule.errors import DivergedWarning, InputError
from fewjoule.files import write_atomically
from fewjoule.models.model import Model
from fewjoule.simulate.simulate import Simulation
from fewjoule.simulate.work import adaptation_flops, method_flops, training_flops
from fewjoule.study.folder import write_run_folder
from fewjoule.study.parts import PATHS, PRETRAINING, Part, Parts, method_part
from fewjoule.study.settings import FilesFamily, MethodEntry, Study, make_study, read_toml
from fewjoule.study.train_run import pretrain_files
from fewjoule.study.trajectories import kept_rounds, principal_paths
from fewjoule.tasks.samples import Agents, Tasks
from fewjoule.training.adapt import adapt
from fewjoule.training.local import Local, train_locally

PATH_METHODS = ("meta_backward", "maml", "imaml")
"""Methods whose agents' paths are drawn; the first of each in a study."""


class Progress(Protocol):
    """Where a run tells how far it is."""

    def line(self, text: str) -> None: ...
    def stage(self, name: str, work: float) -> None: ...
    def advance(self, work: float) -> None: ...
    def finish(self) -> None: ...


class Prepared(NamedTuple):
    """A study with everything it needs, built before the folder is touched."""

    study: Study
    model: Model
    agents: Agents
    tasks: Tasks
    data: str


def prepare(study: Study) -> Prepared:
    """Build a study's data; a missing or corrupt file is refused here, before anything is written."""
    agents, tasks, data = study.family.build(list(study.seeds), study.evaluation)
    if isinstance(study.family, FilesFamily):  # as many new tasks as there are files
        evaluation = study.evaluation.model_copy(update={"tasks": len(tasks.support.mask)})
        study = study.model_copy(update={"evaluation": evaluation})
    return Prepared(study, study.model.build(), agents, tasks, data)


def new_folder(study: Study, out: str | None) -> Path:
    """Create the run folder: `out`, or the first free of runs/NAME, runs/NAME-2, ..."""
    if out is None:
        taken = 1
        folder = Path("runs") / study.name
        while folder.exists():
            taken += 1
            folder = Path("runs") / f"{study.name}-{taken}"
    else:
        folder = Path(out)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(
                f"{folder} exists and is not empty; choose another --out, or go on with --resume {folder}."
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".parts").mkdir(exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be written to ({error.strerror}); choose another --out.") from error
    table = {**study.model_dump(mode="json", exclude_none=True), "host": host_facts()}
    write_atomically(folder / "study.toml", tomli_w.dumps(table).encode(), force=True)
    return folder


def stopped_study(folder: Path, name: str | None) -> Study:
    """The study of a run that was stopped, from its folder; `name` must be its name, where given."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the run folder of a stopped run.")
    if not (folder / "study.toml").is_file():
        raise InputError(f"{folder} is not a run folder: it has no study.toml.")
    table = read_toml(folder / "study.toml")
    table.pop("host", None)
    study = make_study(table, str(folder / "study.toml"))
    if name is not None and name != study.name:
        raise InputError(f"{folder} holds the study {study.name!r}, not {name!r}; leave the name out to resume it.")
    if not (folder / ".parts").is_dir():
        raise InputError(f"{folder} holds a finished run; nothing is left to resume.")
    return study


def host_facts() -> dict[str, Any]:
    """What may differ between two runs of the same study."""
    return {
        "fewjoule": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def run_study(prepared: Prepared, folder: Path, progress: Progress) -> None:
    """Run what is not yet in the folder's parts, then write the folder's files."""
    study, model, agents, _, data = prepared
    parts = Parts(folder / ".parts")
    meter = study.energy.metering()
    progress.line(f"data: {data}")
    progress.line(f"model: {model}; agents: {', '.join(agents.names)}; seeds: {', '.join(map(str, study.seeds))}")
    progress.line(f"arithmetic: {meter.describe()}")

    if PRETRAINING not in parts:
        progress.stage("local training", 1)
        parts.save(PRETRAINING, _train(prepared, meter))
        progress.advance(1)
    local = parts.load(PRETRAINING)
    models = jnp.asarray(local.arrays["models"])

    _run_methods(prepared, models, meter, parts, progress)

    if PATHS not in parts:
        progress.stage("paths", 1)
        parts.save(PATHS, _paths(prepared, local, parts))
        progress.advance(1)
    progress.stage("run folder", 1)
    write_run_folder(folder, prepared.study, model, agents, data, parts)
    progress.advance(1)
    progress.stage("report", 1)
    from fewjoule.report import write_report

    write_report(folder)
    progress.advance(1)
    progress.finish()
    shutil.rmtree(folder / ".parts")


def _train(prepared: Prepared, meter: Metering) -> Part:
    study, model, agents = prepared.study, prepared.model, prepared.agents
    if isinstance(study.family, FilesFamily):
        return pretrain_files(study, study.family, model, agents, meter)
    settings = study.local.model_dump()

    def train(around: Around) -> Local:
        return train_locally(model, agents, seed=list(study.seeds), **settings, around=around)

    local, reading = meter.read(train, None)
    if not bool(jnp.isfinite(local.models).all()):
        raise InputError(f"local training diverged at step {study.local.step:g}; lower local.step.")
    flops = training_flops(model, agents, np.asarray(local.steps), **study.local.work())
    names = ("models", "start", "loss", "gradient_norm", "steps", "sharpness")
    arrays = {name: np.asarray(getattr(local, name)) for name in names}
    return Part(arrays, {"reading": meter.of_flops(reading, sum(flops)), "flops": flops})


def _run_methods(prepared: Prepared, models: jax.Array, meter: Metering, parts: Parts, progress: Progress) -> None:
    """Run and evaluate the methods that are not among the parts.

    Compiling uses all cores and comes first, so that a meter around an execution sees nothing else.
    """
    study, model, agents = prepared.study, prepared.model, prepared.agents
    left = [entry for entry in study.methods if method_part(entry.name) not in parts]
    if not left:
        return
    drawn = _drawn(study)
    ready = {
        e.name: Simulation(e.build(), model, agents, models, seed=list(study.seeds), keep_paths=e.name in drawn)
        for e in left
    }
    progress.stage("compiling", len(left) + 1)
    jobs = [simulation.compile for simulation in ready.values()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting = [pool.submit(job) for job in (lambda: _evaluate(prepared, models[:, 0]), *jobs)]
        try:
            for done in as_completed(waiting):
                done.result()
                progress.advance(1)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    flops = {entry.name: method_flops(entry.build(), model, agents) for entry in left}
    work = {name: count * len(study.seeds) + 2e9 for name, count in flops.items()}
    progress.stage("methods", sum(work.values()))
    for entry in left:
        part = _run_method(prepared, entry, ready.pop(entry.name), flops[entry.name], meter)
        parts.save(method_part(entry.name), part)
        gone = [s for s, d in zip(study.seeds, part.arrays["diverged"], strict=True) if d]
        if gone:
            progress.line(f"{entry.name} DIVERGED for seeds {', '.join(map(str, gone))}; left out of every average")
        progress.advance(work[entry.name])


def _run_method(prepared: Prepared, entry: MethodEntry, simulation: Simulation, flops: int, meter: Metering) -> Part:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergedWarning)  # it stands in the part, and is told to the user from there
        run, computation = meter.read(simulation.run, flops * len(prepared.study.seeds))
    devices = len(prepared.study.seeds) * prepared.study.evaluation.tasks
    each = adaptation_flops(
        prepared.model, prepared.tasks, prepared.study.evaluation.headline, prepared.study.evaluation.step
    )
    result, adaptation = meter.read(lambda around: around(lambda: _evaluate(prepared, run.meta)), each * devices)
    arrays = {
        "meta": run.meta, "diverged": run.diverged, "loss": result.loss, "accuracy": result.accuracy,
        "uplink_bits": run.uplink_bits, "downlink_bits": run.downlink_bits,
        "start_loss": run.start_loss, "final_loss": run.final_loss,
        **{f"trace_{name}": value for name, value in run.trace._asdict().items()},
    }  # fmt: skip
    if run.meta_path is not None and run.agent_path is not None:
        rounds = kept_rounds(simulation.method.rounds)
        arrays |= {"path_rounds": rounds, "meta_path": run.meta_path[0][rounds]}
        arrays["agent_path"] = run.agent_path[0][rounds[1:] - 1]
    facts = {"computation": computation if simulation.method.rounds else None, "adaptation": adaptation, "flops": flops}
    facts["adaptation_flops"] = each
    return Part({name: np.asarray(value) for name, value in arrays.items()}, facts)


def _evaluate(prepared: Prepared, metas: jax.Array) -> Any:
    e = prepared.study.evaluation
    return adapt(prepared.model, metas, prepared.tasks, steps=e.steps, step=e.step, optimiser=e.optimiser)


def _drawn(study: Study) -> set[str]:
    """The names of the methods whose agents' paths are drawn: the first of each kind."""
    first = {entry.method: entry.name for entry in reversed(study.methods) if entry.method in PATH_METHODS}
    return set(first.values())


def _paths(prepared: Prepared, local: Part, parts: Parts) -> Part:
    """The agents' paths of the first seed, in the plane of their first two principal components."""
    kept = {name: parts.load(method_part(name)).arrays for name in sorted(_drawn(prepared.study))}
    paths = {
        name: (a["path_rounds"], a["meta_path"], a["agent_path"]) for name, a in kept.items() if not a["diverged"][0]
    }
    rows = principal_paths(paths, prepared.agents.names, local.arrays["models"][0])
    return Part({"pc": np.asarray([row[3:] for row in rows], np.float32)}, {"rows": [row[:3] for row in rows]})
