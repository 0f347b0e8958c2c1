"""Methods on real federations, beside published numbers: docs/benchmarks.json and the tables of docs/benchmarks.md.

    python bench/benchmarks.py --data-dir DATA                          # all federations with their studies' seeds
    python bench/benchmarks.py --data-dir DATA hapt writers --seeds 3   # some of them; the others' numbers stay
    python bench/benchmarks.py --data-dir DATA --quick                  # small ones, marked so in the page
    python bench/benchmarks.py --draw                                   # only the tables, from the numbers there are

Each federation is one run of its study, in a folder that is kept under --runs. Other numbers of shots are judged from
the run's meta-models, and other links are priced from its messages, so nothing is trained twice.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fewjoule as fj
from fewjoule.energy import link as named_link
from fewjoule.files import use_compile_cache, write_atomically
from fewjoule.reporting.run_folder import RunFolder, Spread
from fewjoule.studies.prepare import prepare
from fewjoule.studies.settings import Study, load_study
from fewjoule.studies.summary import interval
from fewjoule.training.adapt import adapt
from fewjoule.training.mesh import use_all_cores

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, this file's folder is there instead
from bench.answers import put

MARKS = ("<!-- made by bench/benchmarks.py -->", "<!-- end of benchmarks -->")
LINKS = ("wifi", "lte", "lora-sf7")
PAGE, NUMBERS = Path("docs/benchmarks.md"), Path("docs/benchmarks.json")


class Federation(NamedTuple):
    """A study with settings, and the numbers of shots that new devices are judged with beside the study's own."""

    study: str
    settings: dict[str, Any]
    shots: tuple[int, ...]
    title: str


FEDERATIONS = {
    "omniglot-964": Federation("omniglot", {}, (1, 5), "Omniglot, 964/659 (30 alphabets), 5-way"),
    "omniglot-1200": Federation(
        "omniglot", {"family.split": "vinyals"}, (1, 5), "Omniglot, 1200/423 (Vinyals; not turned), 5-way"
    ),
    "writers": Federation("writers", {}, (1, 5, 10), "MNIST by its writers"),
    "hapt": Federation("hapt", {}, (1, 5, 10), "Activities from phones (HAPT)"),
    "fashion-classes": Federation("fashion", {}, (10,), "Fashion-MNIST, two classes each"),
    "fashion-dirichlet": Federation("fashion", {"family.split": "dirichlet"}, (10,), "Fashion-MNIST, Dirichlet 0.1"),
}


class Published(NamedTuple):
    """A published accuracy in per cent, of a federation's new tasks (with so many shots) or of its agents (None)."""

    federation: str
    method: str
    shots: int | None
    percent: float
    source: str
    differs: str


CENTRAL = "centralised, 64 filters with batch normalisation, turned characters, tens of thousands of episodes"
ROUNDS = "2000 rounds, a convolution net, all images, no image set aside; mean over images, ours over agents"
PUBLISHED = (
    Published("omniglot-1200", "MAML", 1, 98.7, "Finn et al. 2017", CENTRAL),
    Published("omniglot-1200", "MAML", 5, 99.9, "Finn et al. 2017", CENTRAL),
    Published("omniglot-1200", "ProtoNet", 1, 98.8, "Snell et al. 2017", CENTRAL),
    Published("omniglot-1200", "ProtoNet", 5, 99.7, "Snell et al. 2017", CENTRAL),
    Published("omniglot-1200", "Reptile", 1, 98.6, "re-implementations of Nichol et al. 2018", CENTRAL),
    Published("omniglot-1200", "Reptile", 5, 99.5, "re-implementations of Nichol et al. 2018", CENTRAL),
    Published("fashion-classes", "FedAvg", None, 80.4, "PFLlib", ROUNDS),
    Published("fashion-classes", "FedRep", None, 99.56, "PFLlib", ROUNDS),
    Published("fashion-classes", "Ditto", None, 99.44, "PFLlib", ROUNDS),
    Published("fashion-dirichlet", "FedAvg", None, 85.9, "PFLlib", ROUNDS),
    Published("fashion-dirichlet", "FedRep", None, 97.56, "PFLlib", ROUNDS),
    Published("fashion-dirichlet", "Ditto", None, 97.47, "PFLlib", ROUNDS),
)


def measure(name: str, *, data_dir: str, runs: Path, seeds: list[int] | None, quick: bool) -> dict[str, Any]:
    """Run a federation's study and give what the tables need of it."""
    chosen = FEDERATIONS[name]
    study = load_study(chosen.study, settings=chosen.settings, seeds=seeds, quick=quick, data_dir=data_dir)
    folder = runs / name
    if folder.exists():
        shutil.rmtree(folder)
    run = study.run(folder, show=lambda line: print(f"{name}: {line}", flush=True))
    return figures(study, run, chosen.shots) | {"quick": quick}


def figures(study: Study, run: RunFolder, shots: tuple[int, ...]) -> dict[str, Any]:
    """Quality with interval for every number of shots, what agents get, and what messages cost on three links."""
    summary = run.summary
    metas = {name: _metas(run, name) for name, method in summary.methods.items() if method.quality}
    judged = {k: _judge(study, metas, k) for k in sorted({*shots, study.evaluation.shots})}
    methods = {}
    for name, method in summary.methods.items():
        methods[name] = {
            "label": method.label,
            "rounds": method.rounds,
            "diverged": method.diverged,
            "new_devices": {k: each[name] for k, each in judged.items() if name in each},
            "agents": {s: _spread(spread) for s, spread in method.personal.items()},
            **_messages(run, name),
        }
    return {
        "seeds": summary.seeds,
        "agents": len(summary.agents),
        "model": summary.model,
        "weights": summary.weights,
        "data": summary.data,
        "steps": study.evaluation.headline,
        "most_steps": study.evaluation.steps[-1],
        "devices": {k: each.pop("devices") for k, each in judged.items()},
        "alone": None if summary.alone is None else _spread(summary.alone),
        "methods": methods,
    }


def _metas(run: RunFolder, name: str) -> Any:
    """The meta-models [seeds, d] of the seeds that went well."""
    good = [seed for seed in run.summary.seeds if seed not in run.summary.methods[name].diverged]
    return np.stack([fj.read_model(run.path / "meta" / f"{name}-{seed}.safetensors").vector for seed in good])


def _judge(study: Study, metas: dict[str, Any], shots: int) -> dict[str, Any]:
    """Mean accuracy of new devices with so many samples of a class, after the headline's and after the most steps."""
    evaluation = study.evaluation.model_copy(update={"shots": shots, "own_test": 0.0})
    prepared = prepare(study.model_copy(update={"evaluation": evaluation, "seeds": study.seeds[:1]}))
    assert prepared.tasks is not None
    found: dict[str, Any] = {"devices": len(prepared.tasks.query.mask)}
    for name, vectors in metas.items():
        result = adapt(prepared.model, vectors, prepared.tasks, **evaluation.adapting())
        per_step = result.accuracy.mean(1)  # [seeds, steps]
        found[name] = _bounded(per_step[:, evaluation.steps.index(evaluation.headline)])
        found[name]["longest"] = _bounded(per_step[:, -1])
    return found


def _bounded(per_seed: Any) -> dict[str, Any]:
    low, high = interval(per_seed)
    return {"mean": float(per_seed.mean()), "low": low, "high": high}


def _messages(run: RunFolder, name: str) -> dict[str, Any]:
    """Bits that an agent sends, and their joules on each link: means over agents and seeds, every message priced."""
    sent = [row.bits for row in run.ledger if row.method == name and row.phase == "uplink" and row.bits]
    share = len(run.summary.agents) * len(run.summary.seeds)
    joules = {link: sum(named_link(link).energy_joules(bits) for bits in sent) / share for link in LINKS}
    return {"uplink_bits": sum(sent) / share, "joules": joules}


def _spread(spread: Spread) -> dict[str, Any]:
    return spread.model_dump(exclude_none=True)


def tables(numbers: dict[str, Any]) -> str:
    """All tables of the page."""
    lines = []
    for name, federation in FEDERATIONS.items():
        if name not in numbers:
            lines += [f"### {federation.title}", "", "Not run yet.", "", *_published(name, None), ""]
            continue
        of = numbers[name]
        size = "a small run (`--quick`): it shows that the study runs, not what methods reach. " if of["quick"] else ""
        lines += [
            f"### {federation.title}",
            "",
            f"{size}{of['agents']} agents, {of['model']} ({of['weights']} weights), seeds "
            f"{', '.join(map(str, of['seeds']))}; accuracy in per cent after {of['steps']} steps"
            + (", in brackets 95 % over seeds." if len(of["seeds"]) > 2 else "; too few seeds for an interval."),
            "",
            *_table(of),
            "",
            *_published(name, of),
            "",
        ]
    return "\n".join(lines)


def _table(of: dict[str, Any]) -> Iterator[str]:
    shots = list(of["devices"])
    heads = [f"new devices, {k} shot{'s' if int(k) > 1 else ''} ({of['devices'][k]})" for k in shots]
    links = [f"J on {link}" for link in LINKS]
    yield _row(["method", *heads, "agents, before", "agents", "worst tenth", "bits sent by an agent", *links])
    yield _row(["---"] * (len(heads) + len(links) + 5))
    if of["alone"]:
        yield _row(
            ["alone (own local model)", *["–"] * len(heads), "–", *_agents(of["alone"]), "0", *["0"] * len(links)]
        )
    if "random" in of["methods"]:
        alone = [_percent(of["methods"]["random"]["new_devices"][k]["longest"]) for k in shots]
        label = f"a new device alone (random start, {of['most_steps']} steps)"
        yield _row([label, *alone, "–", "–", "–", "0", *["0"] * len(links)])
    first = shots[0]
    order = sorted(of["methods"].values(), key=lambda m: -m["new_devices"].get(first, {"mean": 0})["mean"])
    for method in order:
        new = [_percent(method["new_devices"].get(k)) for k in shots]
        before, after = (method["agents"].get(str(s)) for s in (0, of["steps"]))
        sent = [f"{method['uplink_bits']:,.0f}", *(_joules(method["joules"][link]) for link in LINKS)]
        yield _row([method["label"], *new, _percent(before, short=True), *_agents(after), *sent])


def _published(name: str, of: dict[str, Any] | None) -> Iterator[str]:
    rows = [p for p in PUBLISHED if p.federation == name]
    if not rows:
        return
    yield _row(["published", "shots", "per cent", "source", "what differs from ours"])
    yield _row(["---"] * 5)
    for p in rows:
        shots = "–" if p.shots is None else str(p.shots)
        yield _row([p.method, shots, f"{p.percent:g}", p.source, p.differs])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _agents(spread: dict[str, Any] | None) -> list[str]:
    if spread is None:
        return ["–", "–"]
    return [_percent(spread), f"{100 * spread['worst_tenth']:.1f}"]


def _percent(numbers: dict[str, Any] | None, *, short: bool = False) -> str:
    if numbers is None:
        return "–"
    bounded = not short and numbers.get("low") is not None
    around = f" [{100 * numbers['low']:.1f}, {100 * numbers['high']:.1f}]" if bounded else ""
    return f"{100 * numbers['mean']:.1f}{around}"


def _joules(value: float) -> str:
    return "0" if value == 0 else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("federations", nargs="*", metavar="FEDERATION", help=", ".join(FEDERATIONS))
    parser.add_argument("--data-dir", help="folder of the data sets")
    parser.add_argument("--seeds", type=int, help="how many; by default those of the studies")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--runs", type=Path, default=Path("runs/benchmarks"))
    parser.add_argument("--draw", action="store_true", help="only the tables, from the numbers that are there")
    given = parser.parse_args()
    if unknown := [name for name in given.federations if name not in FEDERATIONS]:
        parser.error(f"unknown federation {unknown[0]!r}; one of {', '.join(FEDERATIONS)}")
    if not given.draw and not given.data_dir:
        parser.error("give the folder of the data sets with --data-dir, or --draw")
    use_all_cores()
    use_compile_cache()
    done = json.loads(NUMBERS.read_text("utf-8")) if NUMBERS.exists() else {}
    for name in () if given.draw else given.federations or FEDERATIONS:
        wanted = None if given.seeds is None else list(range(given.seeds))
        done[name] = measure(name, data_dir=given.data_dir, runs=given.runs, seeds=wanted, quick=given.quick)
        write_atomically(NUMBERS, (json.dumps(done, indent=1) + "\n").encode(), force=True)
        done = json.loads(NUMBERS.read_text("utf-8"))  # keys of tables are text there
    put(tables(done), MARKS, PAGE)
