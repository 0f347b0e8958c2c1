"""How far answers carry: larger models, more agents, other starts, phases, digits and images.

    python bench/answers_reach.py [PART ...] [--fashion FOLDER] [--seeds 3] [--out docs/answers_reach.json]

Parts: weights, agents, starts, phases, digits, fashion (with the four original files of Fashion-MNIST in FOLDER). Every
number is over `--seeds` seeds from 5000 on. The numbers go to one JSON file; the table of docs/answers-limits.md
between its markers is made from it, alone with `--draw`.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import fewjoule as fj
from fewjoule.files import use_compile_cache, write_atomically
from fewjoule.simulation.work import server_flops
from fewjoule.studies.settings import load_study
from fewjoule.tasks import fashion as fashion_mnist
from fewjoule.tasks import mnist
from fewjoule.tasks.originals import Images

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, this file's folder is there instead
from bench.answers import put

FIRST_SEED = 5000
MARKS = ("<!-- made by bench/answers_reach.py -->", "<!-- end of reach -->")
RANGE = {"questions": "range:-5:5"}
STUDY_MODEL = fj.mlp([1, 40, 40, 1])
SIZES = (
    (30, 10_000, 1200, 3), (30, 10_000, 150, 3), (30, 10_000, 20, 3),
    (100, 4000, 600, 3), (315, 1000, 150, 2), (1000, 250, 20, 1),
)  # fmt: skip
"""Units of each of two hidden layers, steps of the agents' own training, episodes of the server's, and seeds at most.
The larger ones get less of all three, since one step costs as much as a thousand; the smallest also gets as little."""
PAIRS = (((0, 1, 2), (7, 8, 9)), ((3, 4, 5), (6, 7, 8)), ((0, 2, 4), (1, 3, 5)), ((5, 6, 7), (1, 4, 9)))

Row = dict[str, Any]


def row(part: str, case: str, method: str, values: Any, bits: Any, flops: int, metric: str) -> Row:
    """One line of the table: the median over seeds, and each seed's value."""
    each = [float(v) for v in values]
    print(f"{part}: {case}: {method}: {np.median(each):.4f} {np.round(each, 4).tolist()}", flush=True)
    return {
        "part": part, "case": case, "method": method, "quality": float(np.median(each)), "seeds": each,
        "uplink_bits_per_agent": int(np.max(bits)), "server_flops": int(flops), "metric": metric,
    }  # fmt: skip


def losses(
    part: str, case: str, name: str, method: Any, model: Any, setups: list[Any], learning_rate: float = 0.01
) -> Row:
    """The median loss after 10 steps, for each of some (seed, agents, new tasks, local models)."""
    each, bits = [], []
    for seed, agents, tasks, local in setups:
        run = fj.simulate(method, model, agents, local, seed=seed)
        each.append(fj.adapt(model, run.meta, tasks, steps=[10], learning_rate=learning_rate).median()[10])
        bits.append(run.uplink_bits.sum(0).max())
    flops = server_flops(method, model, len(setups[0][1]))
    return row(part, case, name, each, bits, flops, "loss")


def weights(seeds: list[int]) -> list[Row]:
    """Agents and meta-model of d weights. The learning rate falls as the width grows, as stability asks."""
    rows = []
    for width, steps, episodes, most in SIZES:
        model, rate, setups = fj.mlp([1, width, width, 1]), 0.01 * min(1, 40 / width), []
        for seed in seeds[:most]:
            who = fj.sinusoid.agents(seed=seed)
            local = fj.train_locally(
                model, who, seed=seed, optimiser="adam", learning_rate=rate / 4, batch=50, max_steps=steps
            ).models
            setups.append((seed, who, fj.sinusoid.new_tasks(100, seed=seed), local))
        method = fj.answers(**RANGE, episodes=episodes, learning_rate=rate)
        rows.append(
            losses("weights", f"d = {model.size:,}, {episodes} episodes", "answers", method, model, setups, rate)
        )
    return rows


def agents(seeds: list[int]) -> list[Row]:
    """3 to 300 agents with amplitudes from 2 to 10, each trained for 1500 steps of Adam."""
    rows = []
    for count in (3, 10, 30, 100, 300):
        setups = []
        for seed in seeds:
            drawn = np.random.default_rng(seed).uniform(2, 10, count).round(4).tolist()
            who = fj.sinusoid.agents(drawn, seed=seed)
            local = fj.train_locally(
                STUDY_MODEL, who, seed=seed, optimiser="adam", learning_rate=0.003, batch=50, max_steps=1500
            ).models
            setups.append((seed, who, fj.sinusoid.new_tasks(200, seed=seed), local))
        rows.append(losses("agents", f"{count} agents", "answers", fj.answers(**RANGE), STUDY_MODEL, setups))
    return rows


def starts(seeds: list[int]) -> list[Row]:
    """The study's agents, but each from a start of its own."""
    setups: dict[str, list[Any]] = {"never": [], "always": []}
    for seed in seeds:
        who, tasks = fj.sinusoid.agents(seed=seed), fj.sinusoid.new_tasks(200, seed=seed)
        own = fj.train_locally(STUDY_MODEL, who, seed=seed, shared_start=False).models
        setups["never"].append((seed, who, tasks, own))
        setups["always"].append((seed, who, tasks, fj.align(STUDY_MODEL, own, who, mode="always").models))
    methods = {"answers": fj.answers(**RANGE), "average": fj.average(), "meta_backward": fj.meta_backward()}
    return [
        losses("starts", "own starts" + ", aligned" * (aligned == "always"), name, method, STUDY_MODEL, each)
        for name, method in methods.items()
        for aligned, each in setups.items()
        if aligned == "never" or name != "answers"
    ]


def phases(seeds: list[int]) -> list[Row]:
    """Ten agents with random phases that never met, as in bench/random_phases.py."""
    setups: dict[str, list[Any]] = {"never": [], "always": []}
    for seed in seeds:
        rng = np.random.default_rng(seed)
        drawn = rng.uniform(0, 2 * math.pi, 10).tolist()
        who = fj.sinusoid.agents(rng.uniform(2, 10, 10).tolist(), phases=drawn, seed=seed)
        tasks = fj.sinusoid.new_tasks(200, amplitude=(2, 10), phase=(0, 2 * math.pi), seed=seed)
        own = fj.train_locally(STUDY_MODEL, who, seed=seed, max_steps=5000, shared_start=False).models
        setups["never"].append((seed, who, tasks, own))
        setups["always"].append((seed, who, tasks, fj.align(STUDY_MODEL, own, who, mode="always").models))
    rows = [
        ("answers", fj.answers(**RANGE), "never"),
        ("answers, 4000 episodes", fj.answers(**RANGE, episodes=4000), "never"),
        ("invented", fj.invented(**RANGE, scale=10.0), "never"),
        ("average", fj.average(), "always"),
        ("reptile 50 x 50", fj.reptile(rounds=50, local_steps=50, start="random"), "never"),
    ]
    return [
        losses("phases", "ten agents, random phases", name, method, STUDY_MODEL, setups[aligned])
        for name, method, aligned in rows
    ]


def images(part: str, case: str, data: Images, pair: Any, seeds: list[int], questions: tuple[str, ...]) -> list[Row]:
    """The MNIST study with other agents or images."""
    study = load_study("mnist", seeds=seeds)
    model, e = study.build_model(), study.evaluation
    who = mnist.agents(data, pair, seed=seeds)
    tasks = mnist.new_tasks(images=data, **e.drawing())
    local = fj.train_locally(model, who, seed=seeds, **study.local.model_dump())
    entries = {entry.name: entry for entry in study.methods}
    methods = {name: entries[name].build() for name in ("meta_backward", "fedsgd", "invented")}
    for asked in questions:
        methods[f"answers, {asked.split(':')[0]}"] = fj.answers(**{**entries["answers"].settings, "questions": asked})
    rows = []
    for name, method in methods.items():
        run = fj.simulate(method, model, who, local, seed=seeds)
        reached = fj.adapt(model, run.meta, tasks, steps=[e.headline], learning_rate=e.learning_rate)
        each = np.asarray(reached.accuracy)[..., 0].mean(1)
        flops = server_flops(method, model, len(who))
        rows.append(row(part, case, name, each, run.uplink_bits.sum(-2).max(), flops, "accuracy"))
    return rows


def digits(seeds: list[int]) -> list[Row]:
    """The paper's pair of MNIST agents and three others."""
    rows = []
    for pair in PAIRS:
        case = " and ".join("".join(map(str, group)) for group in pair)
        rows += images("digits", case, mnist.load(), pair, seeds, ("strokes:28x28",))
    return rows


def fashion(seeds: list[int], folder: Path) -> list[Row]:
    """Fashion-MNIST: things, not drawings, so that lines do not look like them."""
    asked = ("strokes:28x28", "noise:28x28")
    return images("fashion", "Fashion-MNIST, 012 and 789", fashion_mnist.load(folder), PAIRS[0], seeds, asked)


PARTS: dict[str, Callable[..., list[Row]]] = {
    "weights": weights, "agents": agents, "starts": starts, "phases": phases, "digits": digits, "fashion": fashion,
}  # fmt: skip


def table(rows: list[Row]) -> str:
    """The table of docs/answers-limits.md, in Markdown."""
    lines = [
        "| case | method | bits sent by one agent | quality, median of seeds | each seed | server GFLOP |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        seeds = ", ".join(f"{v:.3g}" for v in r["seeds"])
        quality = f"{r['metric']} {r['quality']:.3g}"
        flops = f"{r['server_flops'] / 1e9:,.1f}"
        lines.append(
            f"| {r['case']} | {r['method']} | {r['uplink_bits_per_agent']:,} | {quality} | {seeds} | {flops} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--fashion", type=Path, help="folder of the four original files")
    parser.add_argument("--out", type=Path, default=Path("docs/answers_reach.json"))
    parser.add_argument("--draw", action="store_true", help="only draw from the numbers that are there")
    given = parser.parse_args()
    use_compile_cache()
    seeds = list(range(FIRST_SEED, FIRST_SEED + given.seeds))
    rows: list[Row] = json.loads(given.out.read_text("utf-8")) if given.out.exists() else []
    for name in () if given.draw else given.parts:
        if name == "fashion" and given.fashion is None:
            print("fashion: left out, since no --fashion FOLDER is given", flush=True)
            continue
        new = PARTS[name](seeds, given.fashion) if name == "fashion" else PARTS[name](seeds)
        rows = [r for r in rows if r["part"] != name] + new
        rows.sort(key=lambda r: list(PARTS).index(r["part"]))
        write_atomically(given.out, (json.dumps(rows, indent=1) + "\n").encode(), force=True)
    put(table(rows), MARKS, given.out.parent / "answers-limits.md")


if __name__ == "__main__":
    main()
