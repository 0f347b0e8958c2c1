"""Run a study: local training, every method over all seeds, adaptation to the new tasks; then the run folder.

Data comes from a `Study`; each finished stage is one file in the folder's `.parts`, so that a stopped run goes on where
it was; when all are there, `outputs` turns them into the folder's files and the parts are deleted.
"""

import shutil
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from fewjoule.energy import Ledger
from fewjoule.energy.metering import Around, Metering
from fewjoule.errors import DivergedWarning
from fewjoule.files import locked, sweep
from fewjoule.methods.method import Method
from fewjoule.models.model import Model
from fewjoule.reporting import write_report
from fewjoule.simulation.rules import uses_local
from fewjoule.simulation.run import Run
from fewjoule.simulation.simulate import Simulation, present_of
from fewjoule.simulation.work import adaptation_flops, method_flops, server_flops
from fewjoule.studies.families import Evaluation
from fewjoule.studies.outputs import Finished, ledger_of, write_run_folder
from fewjoule.studies.parts import PATHS, PRETRAINING, Part, Parts, method_part, new_folder
from fewjoule.studies.personal import judge_agents, models_to_judge
from fewjoule.studies.predictions import predict_ahead
from fewjoule.studies.prepare import Prepared, digest, prepare
from fewjoule.studies.pretrain import Progress, lines_on, models_of, pretrain
from fewjoule.studies.settings import MethodEntry, Study
from fewjoule.studies.shares import agree, check_processes, joined, own_models, share_of
from fewjoule.studies.trajectories import kept_rounds, principal_paths
from fewjoule.tasks.samples import Agents, Tasks, few
from fewjoule.training.adapt import FineTuning, adapt, adapt_ahead
from fewjoule.training.processes import ALONE, Team
from fewjoule.training.program import compile_all
from fewjoule.training.start import random_start
from fewjoule.training.tuning import ALL_WEIGHTS, Tuning
from fewjoule.training.worth import adapted_loss, adapted_loss_ahead, constant_loss

Readings = dict[tuple[Tuning, bool], dict[str, Any]]
"""What a new device spends, for each way to fine-tune, with learned rates or without: the program is the same for every
meta-model, so it is read once for all methods."""


class Shared(NamedTuple):
    """What methods of a study have in common."""

    worth: dict[tuple[Tuning, bytes], np.ndarray[Any, Any]]  # the agents' mean losses [seeds] from the same starts
    readings: Readings


DRAWN = ("meta_backward", "maml", "imaml")
"""Methods whose agents' trajectories are drawn; the first of each in a study."""


def run_study(prepared: Prepared, folder: Path, progress: Progress, team: Team = ALONE) -> tuple[Finished, Ledger]:
    """Run what is not yet in the folder's parts, then write the folder's files; the results and what they cost.

    With a `team` of several processes this is the first of them, and the others `take_part`.
    """
    busy = f"{folder} is being run by another process; wait for it, or stop it first."
    with locked(folder / ".parts" / "lock", busy):
        sweep(folder)
        study, agents = prepared.study, prepared.agents
        parts = Parts(folder / ".parts")
        parts.begin(digest(prepared))
        local = _compute(prepared, parts, progress, team)
        if PATHS not in parts:
            progress.stage("trajectories", 1)
            parts.save(PATHS, _trajectories(prepared, local, parts))
            progress.advance(1)
        progress.stage("run folder", 1)
        finished = Finished(local, {e.name: parts.load(method_part(e.name)) for e in study.methods}, parts.load(PATHS))
        ledger = ledger_of(study, agents.names, finished)
        write_run_folder(folder, prepared, finished, ledger)
        progress.advance(1)
        if prepared.tasks is not None:
            progress.stage("report", 1)
            write_report(folder)
            progress.advance(1)
        progress.finish()
        shutil.rmtree(folder / ".parts")
        return finished, ledger


def take_part(prepared: Prepared, team: Team) -> None:
    """Run the share of a process that is not the first; nothing stays on its disk."""
    with TemporaryDirectory(prefix="fewjoule-parts-") as place:
        _compute(prepared, Parts(Path(place)), Told(lambda line: None), team)


def _compute(prepared: Prepared, parts: Parts, progress: Progress, team: Team) -> Part | None:
    """All stages before the folder is written, those that are not among the parts; the local models."""
    study, meter = prepared.study, prepared.study.energy.metering()
    check_processes(study, team.count)
    stages = [PRETRAINING, *(method_part(entry.name) for entry in study.methods)]
    done = agree(prepared, team, parts, stages, meter)
    own, seeds = share_of(prepared, team), ", ".join(map(str, study.seeds))
    progress.line(f"data: {prepared.data}")
    progress.line(f"model: {prepared.model}")
    progress.line(f"agents: {few(prepared.agents.names)}; seeds: {seeds}")
    progress.line(f"energy: {meter.describe()}")
    if team.count > 1:
        progress.line(f"processes: {team.count}, which share the seeds; this one has {len(own.study.seeds)}")

    if prepared.tests is None and not any(uses_local(entry.build()) for entry in study.methods):
        progress.line("no local models are needed: every method starts at random here")
    elif PRETRAINING not in done:
        progress.stage("local training", 1)
        parts.save(PRETRAINING, joined(pretrain(own, meter, progress), team))
    local = parts.load(PRETRAINING) if PRETRAINING in parts else None
    for line in lines_on(prepared, local) if local is not None and prepared.own is not None else ():
        progress.line(line)

    left = [entry for entry in study.methods if method_part(entry.name) not in done]
    for name, part in _run_methods(own, left, own_models(local, team), meter, progress):
        whole = joined(part, team)
        parts.save(method_part(name), whole)
        gone = [s for s, d in zip(study.seeds, whole.arrays["diverged"], strict=True) if d]
        if gone:
            progress.line(f"{name} DIVERGED for seeds {', '.join(map(str, gone))}; left out of every average")
    return local


def _run_methods(
    prepared: Prepared, left: list[MethodEntry], local: Part | None, meter: Metering, progress: Progress
) -> Iterator[tuple[str, Part]]:
    """Run and evaluate the methods that are left, one after the other.

    Compiling uses all cores and comes first, so that a meter around an execution sees nothing else.
    """
    study, model = prepared.study, prepared.model
    if not left:
        return
    drawn, models = _drawn(study), models_of(prepared, local)
    ready = {}
    for entry in left:
        method = entry.build()
        kept = kept_rounds(method.rounds)[1:].tolist() if entry.name in drawn else False
        own = models if uses_local(method) else None
        whose = agents_of(prepared, entry)
        ready[entry.name] = Simulation(
            method, model, whose, own, seed=list(study.seeds), participation=entry.participation, keep_paths=kept
        )
    jobs = [*_judging(prepared, [entry.build() for entry in left]), *(one.compile for one in ready.values())]
    progress.stage("compiling", len(jobs))
    compile_all(jobs, lambda: progress.advance(1))
    flops = {entry.name: flops_of(prepared, entry) for entry in left}
    work = {name: count * len(study.seeds) + 2e9 for name, count in flops.items()}
    progress.stage("methods", sum(work.values()))
    shared = Shared({}, {})
    for entry in left:
        yield entry.name, _run_method(prepared, entry, ready.pop(entry.name), flops[entry.name], meter, shared)
        progress.advance(work[entry.name])


def _judging(prepared: Prepared, methods: list[Method]) -> Iterator[Callable[[], Any]]:
    """What compiles the judging of these methods: a program each for every way to fine-tune."""
    e, tasks, count = prepared.study.evaluation, prepared.tasks, len(prepared.study.seeds)
    ways = dict.fromkeys((m.tuning, m.rates is not None) for m in methods)
    if tasks is not None:
        for tuning, rated in ways:
            how: dict[str, Any] = {**e.adapting(), "tuning": tuning, "rated": rated}
            yield partial(adapt_ahead, prepared.model, count, tasks, **how)
            blank = np.zeros(prepared.model.size, np.float32)
            yield _fine_tuning(prepared.model, blank, tasks, e, tuning, blank if rated else None).compile
            yield partial(predict_ahead, prepared.model, tasks, e, tuning, rated)
    for tuning, rated in ways | {(tuning, False): None for tuning, _ in ways}:  # a random start has no rates
        how = {**_worth_settings(e), "tuning": tuning, "rated": rated}
        yield partial(adapted_loss_ahead, prepared.model, count, prepared.agents, **how)


def flops_of(prepared: Prepared, entry: MethodEntry) -> int:
    """Of all agents over all rounds, for one seed; of those that take part."""
    agents, method = agents_of(prepared, entry), entry.build()
    share = present_of(len(agents), entry.participation) / len(agents)
    return round(method_flops(method, prepared.model, agents) * share)


def agents_of(prepared: Prepared, entry: MethodEntry) -> Agents:
    """The study's agents; for a ceiling, tasks of the new tasks' own family, which nobody has."""
    return prepared.study.true_agents(entry.ceiling) if entry.ceiling else prepared.agents


def _run_method(
    prepared: Prepared, entry: MethodEntry, simulation: Simulation, flops: int, meter: Metering, shared: Shared
) -> Part:
    study = prepared.study
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergedWarning)  # it stands in the part, and is told to the user from there
        run, computation, server = _metered(prepared, simulation, flops, meter)
    kept = ("meta", "diverged", "uplink_bits", "downlink_bits", "start_loss", "final_loss")
    arrays = {name: getattr(run, name) for name in kept}
    arrays |= {f"trace_{name}": value for name, value in run.trace._asdict().items()}
    anywhere = np.stack([random_start(prepared.model, np.uint32(seed)) for seed in study.seeds])
    tuning = simulation.method.tuning
    for name, start in (("worth_random", anywhere), ("worth_start", np.asarray(run.start))):
        which = (tuning, start.tobytes())
        if which not in shared.worth:
            shared.worth[which] = _adapted(prepared, start, tuning)
        arrays[name] = shared.worth[which]
    arrays["worth_final"] = _adapted(prepared, run.meta, tuning, run.rates)
    arrays["worth_constant"] = np.broadcast_to(constant_loss(prepared.model, prepared.agents), len(study.seeds))
    facts: dict[str, Any] = {"computation": computation if simulation.method.rounds else None, "flops": flops}
    facts |= {"server": server, "server_flops": server_flops(simulation.method, prepared.model, len(run.agents))}
    if entry.ceiling:  # nobody can have it, so nobody sends: all its arithmetic is the server's
        facts |= {"computation": None, "server": computation, "server_flops": flops}
        nothing = np.zeros((len(study.seeds), 1, len(prepared.agents)), np.int64)
        arrays |= {"uplink_bits": nothing, "downlink_bits": nothing}
    if run.rates is not None:
        arrays["rates"] = run.rates
    e = study.evaluation
    judged = judge(prepared.model, prepared.tasks, run.meta, e, meter, tuning, run.rates, shared.readings)
    if run.meta_path is not None and run.agent_path is not None:
        rounds = kept_rounds(simulation.method.rounds)
        arrays |= {"path_rounds": rounds, "meta_path": run.meta_path, "agent_path": run.agent_path}
    arrays |= judged.arrays | judge_agents(prepared, models_to_judge(run), tuning)
    return Part({name: np.asarray(value) for name, value in arrays.items()}, facts | judged.facts)


def _adapted(prepared: Prepared, metas: Any, tuning: Tuning = ALL_WEIGHTS, rates: Any = None) -> np.ndarray[Any, Any]:
    """The agents' mean loss [seeds] from meta-models [seeds, d] after the headline's fine-tuning steps."""
    settings = _worth_settings(prepared.study.evaluation)
    return adapted_loss(prepared.model, metas, prepared.agents, **settings, tuning=tuning, rates=rates)


def _worth_settings(e: Evaluation) -> dict[str, Any]:
    by = {"learning_rate": e.learning_rate, "optimiser": e.optimiser}
    return {"steps": e.headline, **by, "most": e.worth_samples}


def _metered(
    prepared: Prepared, simulation: Simulation, flops: int, meter: Metering
) -> tuple[Run, dict[str, Any] | None, dict[str, Any] | None]:
    """The run, and what the agents' arithmetic and the server's own learning cost; None where there is none."""
    method, seeds, server = simulation.method, len(prepared.study.seeds), None
    if not method.rounds and method.learn is None:
        return simulation.run(), None, None

    def agents(around: Around) -> Run:
        nonlocal server
        if method.learn is None:
            return simulation.run(around)
        work = server_flops(method, prepared.model, len(prepared.agents)) * seeds
        run, server = meter.read(lambda inner: simulation.run(around, inner), work)
        return run

    run, computation = meter.read(agents, flops * seeds)
    return run, computation, server


def judge(
    model: Model, tasks: Tasks | None, metas: Any, e: Evaluation, meter: Metering, tuning: Tuning = ALL_WEIGHTS,
    rates: Any = None, readings: Readings | None = None,
) -> Part:  # fmt: skip
    """Adapt meta-models [seeds, d] to the new tasks: quality, and what one new device spends on the headline's steps.

    The reading is of fine-tuning alone, one meta-model to all tasks: the work whose FLOPs are counted. It is taken from
    `readings` if it is there. Where a device takes no steps (`Tuning.prototypes`), quality is the same after every
    number of them.
    """
    if tasks is None:
        nothing = np.zeros((len(metas), 0, len(e.steps)))
        return Part({"loss": nothing, "accuracy": nothing}, {"adaptation": None, "adaptation_flops": 0})
    metas = np.asarray(metas)
    result = adapt(model, metas, tasks, **e.adapting(), tuning=tuning, rates=rates)
    each = adaptation_flops(model, tasks, e.headline, e.learning_rate, e.optimiser, tuning)
    readings, which = {} if readings is None else readings, (tuning, rates is not None)
    if which not in readings:
        finite = np.flatnonzero(np.isfinite(metas).all(-1))
        first = finite[0] if len(finite) else 0
        own_rates = None if rates is None else np.asarray(rates)[first]
        fine_tuning = _fine_tuning(model, metas[first], tasks, e, tuning, own_rates)
        readings[which] = meter.read(fine_tuning.run, each * len(tasks.support.mask))[1]
    facts = {"adaptation": readings[which], "adaptation_flops": each}
    return Part({"loss": np.asarray(result.loss), "accuracy": np.asarray(result.accuracy)}, facts)


def _fine_tuning(model: Model, meta: Any, tasks: Tasks, e: Evaluation, tuning: Tuning, rates: Any) -> FineTuning:
    """What one new device does, for every task, from one meta-model [d]."""
    by = {"learning_rate": e.learning_rate, "optimiser": e.optimiser, "tuning": tuning}
    return FineTuning(model, meta, tasks.support, steps=e.headline, rates=rates, **by)  # type: ignore[arg-type]


def _drawn(study: Study) -> set[str]:
    """The names of the methods whose agents' trajectories are drawn: the first of each kind."""
    all_there = [entry for entry in study.methods if entry.participation == 1]
    first = {entry.method: entry.name for entry in reversed(all_there) if entry.method in DRAWN}
    return set(first.values())


def _trajectories(prepared: Prepared, local: Part | None, parts: Parts) -> Part:
    """The agents' trajectories of the first seed, in the plane of their first two principal components."""
    kept = {name: parts.load(method_part(name)).arrays for name in sorted(_drawn(prepared.study))}
    paths = {
        name: (a["path_rounds"], a["meta_path"], a["agent_path"]) for name, a in kept.items() if not a["diverged"][0]
    }
    own = np.zeros((len(prepared.agents), prepared.model.size)) if local is None else local.arrays["models"][0]
    labels, points = principal_paths(paths, prepared.agents.names, own)
    return Part({"pc": points.astype(np.float32)}, {"rows": labels})


class Told:
    """Progress as lines of text for a function."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self.line = show

    def stage(self, name: str, work: float) -> None:
        self.line(name)

    def advance(self, work: float) -> None: ...

    def finish(self) -> None: ...


def run_into(study: Study, out: str | Path | None, show: Callable[[str], None]) -> Path:
    """Run a study into a new folder and give its path."""
    prepared = prepare(study)
    folder = new_folder(prepared.study, None if out is None else str(out))
    run_study(prepared, folder, Told(show))
    return folder
