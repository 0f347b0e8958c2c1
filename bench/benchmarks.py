"""Methods on real federations, beside published numbers: docs/benchmarks.json and the tables of docs/benchmarks.md.

    python bench/benchmarks.py --data-dir DATA                         # all federations with their studies' seeds
    python bench/benchmarks.py --data-dir DATA omniglot                # both splits of one study
    python bench/benchmarks.py --data-dir DATA hapt --methods fedrep ditto --seeds 5
    python bench/benchmarks.py --data-dir DATA --estimate              # only how long everything would take here
    python bench/benchmarks.py --data-dir DATA --quick                 # small ones, marked so in the page
    python bench/benchmarks.py --draw                                  # only the tables, from the numbers there are

What is done is kept: a method's row with the same settings is not run again (--again runs it, as it must be for more
seeds), and a run that was stopped goes on where it was, in its folder under --runs. Each row says when and how it was
made, and with which seeds. Other numbers of shots and ways are judged from the run's meta-models, and other links are
priced from its messages, so nothing is trained twice.
"""

import argparse
import csv
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fewjoule as fj
from fewjoule.energy import link as named_link
from fewjoule.energy.counts import count
from fewjoule.files import use_compile_cache, write_atomically
from fewjoule.reporting.run_folder import SUMMARY, RunFolder, Spread
from fewjoule.simulation.rules import uses_local
from fewjoule.simulation.work import adaptation_flops, server_flops, training_flops
from fewjoule.studies.parts import new_folder
from fewjoule.studies.prepare import Prepared, prepare
from fewjoule.studies.run import Told, flops_of, run_study
from fewjoule.studies.settings import MethodEntry, Study, load_study
from fewjoule.studies.summary import interval
from fewjoule.tasks.samples import Tasks
from fewjoule.training.adapt import adapt
from fewjoule.training.descent import descend, optimiser
from fewjoule.training.mesh import use_all_cores
from fewjoule.training.tuning import tuning_of

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, this file's folder is there instead
from bench.answers import put
from bench.benchmark_tables import LINKS, tables
from bench.federations import FEDERATIONS, Federation, Judged, named

MARKS = ("<!-- made by bench/benchmarks.py -->", "<!-- end of benchmarks -->")
PAGE, NUMBERS = Path("docs/benchmarks.md"), Path("docs/benchmarks.json")


def measure(name: str, given: argparse.Namespace) -> None:
    """Run what is not done yet of a federation, and save row by row what the tables need of it."""
    federation, numbers = FEDERATIONS[name], read_numbers()
    study = load_study(
        federation.study, settings=federation.settings, seeds=None if given.seeds is None else list(range(given.seeds)),
        quick=given.quick, data_dir=given.data_dir,
    )  # fmt: skip
    done = numbers.get(name, {})
    keys = {entry.name: key_of(study, entry) for entry in study.methods}
    rows = {n: row for n, row in done.get("methods", {}).items() if (row["how"] or {}).get("key") == keys.get(n, "")}
    wanted = [entry for entry in study.methods if not given.methods or entry.name in given.methods]
    left = [entry for entry in wanted if given.again or entry.name not in rows]
    print(f"{name}: {len(wanted) - len(left)} of {len(wanted)} methods are done with these settings", flush=True)
    if not left:
        return
    study = study.model_copy(update={"methods": left})
    prepared = prepare(study)
    for method, seconds in estimates(prepared, federation):
        print(f"{name}: about {seconds / 60:6.1f} minutes  {method}", flush=True)
    if given.estimate:
        return
    run = finished_run(prepared, given.runs / name, lambda line: print(f"{name}: {line}", flush=True))
    facts = header(study, run, federation) | {"quick": given.quick, "methods": rows}
    if "random" in rows:  # it was judged with it
        facts |= {name: done[name] for name in ("new_alone", "alone") if done.get(name)}
    how = {"when": datetime.now(UTC).isoformat(timespec="seconds"), "command": command(name, given)}
    how |= {"version": fj.__version__, "cores": len(os.sched_getaffinity(0))}
    for entry in left:
        rows[entry.name] = row_of(prepared, run, entry.name) | {"how": how | {"key": keys[entry.name]}}
    for judged in federation.judged:
        tasks = new_tasks(study, judged)
        facts["devices"][judged.key] = len(tasks.query.mask)
        for entry in left if judged.ways in (None, getattr(study.family, "ways", None)) else episodic(left):
            few, more, long = study.evaluation.headline, federation.more_steps, federation.alone_steps
            is_random = entry.method == "random"
            steps = [few, long] if is_random else [few] if more is None else [few, more]
            found = judge(study, run, entry.name, tasks, steps)
            if found and is_random:
                facts["new_alone"][judged.key] = found.pop("more_steps")
            for what, reached in found.items():
                rows[entry.name].setdefault(what, {})[judged.key] = reached
        print(f"{name}: judged with {judged.key} of each class", flush=True)
    numbers = read_numbers() | {name: facts}  # another federation may have come in since
    write_atomically(NUMBERS, (json.dumps(numbers, indent=1) + "\n").encode(), force=True)


def command(name: str, given: argparse.Namespace) -> str:
    """What makes a federation's rows anywhere: without this machine's folders."""
    methods = [] if not given.methods else ["--methods", *given.methods]
    seeds = [] if given.seeds is None else ["--seeds", str(given.seeds)]
    return " ".join(["python bench/benchmarks.py --data-dir DATA", name, *methods, *seeds, *["--quick"] * given.quick])


def read_numbers() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(NUMBERS.read_text("utf-8")) if NUMBERS.exists() else {}
    return found


def key_of(study: Study, entry: MethodEntry) -> str:
    """Stands for all that decides a method's row but the seeds, which it names: other settings, another key."""
    table = study.model_dump(mode="json", exclude={"methods": True, "seeds": True, "family": {"folder"}})
    text = json.dumps([table, entry.model_dump(mode="json")], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def finished_run(prepared: Prepared, folder: Path, show: Any) -> RunFolder:
    """The study's run: from its folder where it is there whole or in parts, else anew."""
    begun = folder.with_suffix(".begun")
    study = prepared.study
    what = " ".join([str(study.seeds), *(key_of(study, entry) for entry in study.methods)])
    if folder.exists() and (not begun.exists() or begun.read_text("utf-8") != what):
        shutil.rmtree(folder)
    if not folder.exists():
        new_folder(prepared.study, str(folder))
        begun.write_text(what, "utf-8")
    if not (folder / SUMMARY).exists():
        run_study(prepared, folder, Told(show))
    return RunFolder.read(folder)


def estimates(prepared: Prepared, federation: Federation) -> Iterator[tuple[str, float]]:
    """Seconds that each method will take on this machine, by its operations and the speed of the model's gradient."""
    study, model, tasks = prepared.study, prepared.model, prepared.tasks
    assert tasks is not None
    e, seeds = study.evaluation, len(study.seeds)
    speed = flops_per_second(prepared) * min(jax.local_device_count(), seeds)
    samples = [
        j.shots * (j.ways or 1) for j in (Judged(e.shots, getattr(study.family, "ways", None)), *federation.judged)
    ]
    more = 1 + sum(samples[1:]) / samples[0]  # than the study's own new devices
    train = jax.tree.map(lambda a: a[0], prepared.agents.data.train)
    agents, total = Tasks(train, train), 0.0
    if any(uses_local(entry.build()) for entry in study.methods) or prepared.tests is not None:
        steps = np.full((seeds, len(prepared.agents)), study.local.max_steps)
        local: dict[str, Any] = study.local.model_dump(
            include={"learning_rate", "batch", "max_steps", "early_stopping"}
        )
        total = float(training_flops(model, prepared.agents, steps, name=study.local.optimiser, **local).sum()) / speed
        yield "local training", total
    for entry in study.methods:
        method = entry.build()
        flops = flops_of(prepared, entry) + server_flops(method, model, len(prepared.agents))
        by: dict[str, Any] = {"learning_rate": e.learning_rate, "name": e.optimiser, "tuning": method.tuning}
        new = more * len(tasks.query.mask) * adaptation_flops(model, tasks, e.steps[-1], **by)
        all_own = len(prepared.agents) * adaptation_flops(model, agents, e.steps[-1], **by)
        share = min(1, e.worth_samples / agents.support.mask.shape[-1]) * e.headline / e.steps[-1]
        judging = new + all_own * (2.5 * share + (prepared.tests is not None))  # 2.5: see `worth` in the run folder
        seconds = seeds * (flops + judging) / speed
        total += seconds
        yield entry.name, seconds
    yield "all of them", total


def flops_per_second(prepared: Prepared) -> float:
    """Of one device, for gradients of the model's loss on 50 samples of an agent."""
    model = prepared.model
    samples = jax.tree.map(lambda a: a[0, 0], prepared.agents.data.train)
    few = samples._replace(x=samples.x[:50], y=samples.y[:50], mask=samples.mask[:50])
    vector, by = model.init(jax.random.key(0)), optimiser("sgd", 1e-6)
    once = count(jax.grad(model.loss), vector, few).flops
    steps = max(3, round(2e9 / once))
    descent = jax.jit(lambda v, s: descend(model.loss, v, s, by=by, steps=steps).vector)
    jax.block_until_ready(descent(vector, few))  # type: ignore[no-untyped-call]
    began = time.perf_counter()
    jax.block_until_ready(descent(vector, few))  # type: ignore[no-untyped-call]
    return steps * once / (time.perf_counter() - began)


def header(study: Study, run: RunFolder, federation: Federation) -> dict[str, Any]:
    """What stands above a table and in its first rows."""
    summary = run.summary
    return {
        "seeds": summary.seeds,
        "agents": len(summary.agents),
        "model": summary.model,
        "weights": summary.weights,
        "data": summary.data,
        "steps": study.evaluation.headline,
        "alone_steps": federation.alone_steps,
        "more_steps": federation.more_steps,
        "devices": {},
        "alone": None if summary.alone is None else spread(summary.alone),
        "new_alone": {},
    }


def row_of(prepared: Prepared, run: RunFolder, name: str) -> dict[str, Any]:
    """What the run says of a method: what agents get, and what its messages cost on three links."""
    method = run.summary.methods[name]
    return {
        "label": method.label,
        "seeds": [seed for seed in run.summary.seeds if seed not in method.diverged],
        "rounds": method.rounds,
        "diverged": method.diverged,
        "seconds": sum(row.seconds or 0 for row in run.ledger if row.method == name and row.phase == "computation"),
        "new_devices": {},
        "agents": {str(s): spread(each) for s, each in method.personal.items()},
        "over_images": over_images(prepared, run, name),
        "worth": method.worth,  # losses on the agents' own samples
        **messages(run, name),
    }


def over_images(prepared: Prepared, run: RunFolder, name: str) -> float | None:
    """Mean accuracy of the agents' models before fine-tuning, over all of their test samples and all seeds."""
    if prepared.tests is None:
        return None
    sizes = np.asarray(prepared.tests.mask.sum(-1))
    of = {(s, a): sizes[i, k] for i, s in enumerate(prepared.study.seeds) for k, a in enumerate(prepared.agents.names)}
    with (run.path / "personal.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == name and row["steps"] == "0"]
    weights = [of[int(row["seed"]), row["agent"]] for row in rows]
    return float(np.average([float(row["accuracy"]) for row in rows], weights=weights)) if rows else None


def messages(run: RunFolder, name: str) -> dict[str, Any]:
    """Bits that an agent sends, and their joules on each link: means over agents and seeds, every message priced."""
    sent = [row.bits for row in run.ledger if row.method == name and row.phase == "uplink" and row.bits]
    share = len(run.summary.agents) * len(run.summary.seeds)
    joules = {link: sum(named_link(link).energy_joules(bits) for bits in sent) / share for link in LINKS}
    return {"uplink_bits": sum(sent) / share, "joules": joules}


def episodic(entries: list[MethodEntry]) -> list[MethodEntry]:
    """Those that learn in episodes, and the random start: only they are judged on more classes than the study's."""
    return [entry for entry in entries if entry.settings.get("ways") or entry.method == "random"]


def new_tasks(study: Study, judged: Judged) -> Tasks:
    """The study's new devices, with so many samples and classes."""
    evaluation = study.evaluation.model_copy(update={"shots": judged.shots, "own_test": 0.0})
    family = study.family if judged.ways is None else study.family.model_copy(update={"ways": judged.ways})  # type: ignore[union-attr]
    if judged.ways is not None:  # as many queries in all
        ways = study.family.ways  # type: ignore[union-attr]
        evaluation = evaluation.model_copy(update={"tasks": max(20, evaluation.tasks * ways // judged.ways)})
    tasks: Tasks = family.build(study.seeds[:1], evaluation).tasks  # type: ignore[union-attr]
    return tasks


def judge(study: Study, run: RunFolder, name: str, tasks: Tasks, steps: list[int]) -> dict[str, Any]:
    """Mean accuracy of new devices after so few steps, and after more where they are asked for, with intervals over
    seeds, or over devices where seeds are too few; nothing where all seeds diverged."""
    e, files = study.evaluation, meta_files(run, name)
    if not files:
        return {}
    rates = None if files[0].rates is None else jnp.stack([file.rates for file in files])
    by: dict[str, Any] = {"learning_rate": e.learning_rate, "optimiser": e.optimiser, "rates": rates}
    vectors = jnp.stack([file.vector for file in files])
    model, tuning = study.build_model(), tuning_of(files[0].card)
    reached = adapt(model, vectors, tasks, steps=steps, tuning=tuning, **by).accuracy
    names = ("new_devices", "more_steps")[: len(steps)]
    return {name: bounded(reached[..., i]) for i, name in enumerate(names)}


def meta_files(run: RunFolder, name: str) -> list[fj.ModelFile]:
    """The meta-models of the seeds that went well."""
    good = [seed for seed in run.summary.seeds if seed not in run.summary.methods[name].diverged]
    return [fj.read_model(run.path / "meta" / f"{name}-{seed}.safetensors") for seed in good]


def bounded(reached: Any) -> dict[str, Any]:
    """The mean of accuracies [seeds, devices], with an interval."""
    per_seed = reached.mean(1)
    low, high = interval(per_seed)
    values: dict[str, Any] = {"mean": float(per_seed.mean()), "low": low, "high": high}
    over_devices = interval(reached.mean(0))
    if low is None and over_devices[0] is not None:
        values["over_devices"] = over_devices
    return values | {"per_seed": [float(one) for one in per_seed]}


def spread(one: Spread) -> dict[str, Any]:
    return one.model_dump(exclude_none=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*FEDERATIONS, *{one.study for one in FEDERATIONS.values()} - FEDERATIONS.keys()]
    parser.add_argument("federations", nargs="*", metavar="FEDERATION", help=", ".join(known))
    parser.add_argument("--data-dir", help="folder of the data sets")
    parser.add_argument("--methods", nargs="+", help="only these, by their names in the study")
    parser.add_argument("--seeds", type=int, help="how many; by default those of the studies")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--again", action="store_true", help="run what is done too")
    parser.add_argument("--estimate", action="store_true", help="only say how long it would take")
    parser.add_argument("--runs", type=Path, default=Path("runs/benchmarks"))
    parser.add_argument("--draw", action="store_true", help="only the tables, from the numbers that are there")
    asked = parser.parse_args()
    if unknown := [name for name in asked.federations if name not in known]:
        parser.error(f"unknown federation {unknown[0]!r}; one of {', '.join(known)}")
    if not asked.draw and not asked.data_dir:
        parser.error("give the folder of the data sets with --data-dir, or --draw")
    use_all_cores()
    use_compile_cache()
    for each in () if asked.draw else named(asked.federations):
        measure(each, asked)
        put(tables(read_numbers()), MARKS, PAGE)
    if asked.draw:
        put(tables(read_numbers()), MARKS, PAGE)
