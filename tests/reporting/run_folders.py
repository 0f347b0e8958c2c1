"""Run folders for tests, in the form `fewjoule run` writes: invented losses, real radio charges."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from fewjoule.energy import LINKS, Ledger, charge_radio
from fewjoule.reporting.predictions import Predictions
from fewjoule.studies.summary import messages_of

WEIGHTS = {"loss": 1761, "accuracy": 6442}
AGENTS = {"loss": ["amplitude 2", "amplitude 6", "amplitude 10"], "accuracy": ["digits 012", "digits 789"]}
STEPS = [0, 1, 5, 10, 50]

# name: label, method, rounds, uploads first, loss after 0 and 50 steps, seconds of computation
METHODS: dict[str, tuple[str, str, int, int, float, float, float]] = {
    "meta_backward": ("Meta-Backward", "meta_backward", 50, 3, 3.6, 0.070, 0.011),
    "average": ("average", "average", 0, 3, 2.4, 0.073, 0.0),
    "local": ("one local model", "local", 0, 1, 2.1, 0.053, 0.0),
    "random": ("random start", "random", 0, 0, 13.0, 10.9, 0.0),
    "fedsgd": ("FedSGD", "fedsgd", 50, 3, 2.0, 0.069, 0.012),
    "fedavg-5x100": ("FedAvg 5 x 100", "fedavg", 5, 3, 1.2, 0.044, 0.09),
    "reptile-50x50": ("Reptile 50 x 50", "reptile", 50, 3, 0.35, 0.027, 0.44),
    "maml": ("MAML", "maml", 500, 3, 0.5, 0.046, 0.71),
    "fomaml": ("FOMAML", "fomaml", 500, 3, 0.6, 0.048, 0.33),
    "imaml-50-50": ("iMAML-50-50", "imaml", 50, 3, 2.6, 0.088, 0.61),
    "imaml-500-50": ("iMAML-500-50", "imaml", 500, 3, 3.9, 0.122, 6.2),
    "imaml-50-500": ("iMAML-50-500", "imaml", 50, 3, 2.5, 0.085, 5.9),
    "meta_backward-linear": ("Meta-Backward, linear radius", "meta_backward", 50, 3, -1.0, -1.0, 0.011),
    "invented": ("Invented tasks", "invented", 0, 0, 2.2, 0.072, 0.0),
    "answers": ("Answers (20 of 6 bits)", "answers", 0, 3, 0.9, 0.065, 0.002),
}
OWN_BITS = {"answers": 120}
"""Of a message, where a method does not send its weights."""


def make_folder(
    path: Path,
    *,
    metric: str = "loss",
    methods: dict[str, tuple[str, str, int, int, float, float, float]] | None = None,
    seeds: int = 2,
    tasks: int = 60,
    predictions: bool = True,
) -> Path:
    """Write a run folder of invented results and return its path."""
    methods = METHODS if methods is None else methods
    path.mkdir(parents=True)
    ledger, summary, evaluation = Ledger(), {}, []
    scores = {name: _scores(row, metric, seeds, tasks) for name, row in methods.items() if row[4] >= 0}
    for name, row in methods.items():
        _charge(ledger, name, row, metric, seeds)
        summary[name] = _summary(name, row, metric, seeds, scores, ledger)
        if name in scores:
            evaluation += _evaluation(name, scores[name], metric)
    ledger.to_csv(path / "energy.csv")
    _csv(path / "evaluation.csv", "method,seed,task,steps,loss,accuracy", evaluation)
    _csv(path / "trace.csv", "method,seed,round,loss,spread,step,radius,active,present", _trace(methods, seeds, metric))
    _csv(path / "paths.csv", "method,agent,round,pc1,pc2", _paths(methods, metric))
    (path / "study.toml").write_text(
        'study = "sinusoid"\nseed = 0\n\n[link]\nname = "paper"\nbandwidth_hz = 5000.0\n', encoding="utf-8"
    )
    link = LINKS["paper"]
    document = {
        "format": 1,
        "study": "sinusoid" if metric == "loss" else "mnist",
        "metric": metric,
        "better": "lower" if metric == "loss" else "higher",
        "steps": STEPS,
        "headline_steps": 10,
        "model": "mlp:1-40-40-1" if metric == "loss" else "mlp:784-8-8-10",
        "weights": WEIGHTS[metric],
        "agents": AGENTS[metric],
        "seeds": list(range(seeds)),
        "tasks": tasks,
        "data": "y = a sin(x), drawn afresh" if metric == "loss" else "MNIST, the part in the package",
        "link": {
            "name": "paper",
            "bandwidth_hz": link.bandwidth_hz,
            "power_watts": link.power_watts,
            "noise_watts_per_hz": link.noise_watts_per_hz,
            "bits_per_weight": 32,
        },
        "methods": summary,
    }
    (path / "summary.json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    if predictions:
        invented_predictions(metric, list(scores)).write(path)
    return path


def bits_of(name: str, row: tuple[Any, ...], metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Bits up and down [rounds + 1, agents], as in `Run.uplink_bits`: row 0 is before the first round."""
    agents, bits = len(AGENTS[metric]), OWN_BITS.get(name, 32 * WEIGHTS[metric])
    first = [bits if i < row[3] else 0 for i in range(agents)]
    return np.array([first, *[[bits] * agents] * row[2]]), np.array([[0] * agents, *[[bits] * agents] * row[2]])


def invented_predictions(metric: str, names: list[str]) -> Predictions:
    """Sines of falling amplitudes, or images of a growing square, and methods that come nearer with every step."""
    rng, tasks, queries, steps = np.random.default_rng(0), 3, 12, [0, 1, 10]
    if metric == "loss":
        x = rng.uniform(-5, 5, (tasks, queries, 1))
        y = np.arange(1, tasks + 1)[:, None, None] * np.sin(x)
        said = {name: np.stack([y * (1 - 0.5 / (1 + s)) for s in steps]).astype(np.float32) for name in names}
        return Predictions(steps, 0, x.astype(np.float16), y.astype(np.float32), x.astype(np.float16),
                           y.astype(np.float32), said)  # fmt: skip
    images = np.zeros((tasks, queries, 8, 8), np.float16)
    classes = (np.arange(tasks * queries).reshape(tasks, queries) % 4).astype(np.int32)
    for at, label in np.ndenumerate(classes):
        images[at][: label + 2, : label + 2] = 1
    wrong = (classes + 1) % 4
    said = {name: np.stack([np.where(np.arange(queries) < s, classes, wrong) for s in steps]) for name in names}
    none = (images.reshape(tasks, queries, 64)[:, :0], classes[:, :0])
    return Predictions(steps, 0, *none, images.reshape(tasks, queries, 64), classes, said)


def _scores(row: tuple[Any, ...], metric: str, seeds: int, tasks: int) -> np.ndarray:
    """Losses [seeds, tasks, steps]: log-normal around a line from the first to the last loss."""
    rng = np.random.default_rng([len(row[0]), row[2], int(100 * row[4])])
    level = np.log(row[4]) + (np.log(row[5]) - np.log(row[4])) * np.log1p(STEPS) / np.log1p(50)
    spread = rng.normal(0, 1, (seeds, tasks, 1)) * 0.9 + rng.normal(0, 0.1, (seeds, 1, 1))
    loss = np.exp(level + spread)
    return loss if metric == "loss" else loss / (1 + loss)


def _accuracy(loss: np.ndarray) -> np.ndarray:
    return np.round(1 - 0.9 * loss, 3)


def _quantiles(values: np.ndarray) -> dict[str, float]:
    q = np.quantile(values, [0.05, 0.25, 0.5, 0.75, 0.95])
    each = np.median(values, axis=1)
    names = ("q05", "q25", "median", "q75", "q95")
    return {**dict(zip(names, q.tolist(), strict=True)), "mean": float(values.mean())} | {
        "low": float(each.min()),
        "high": float(each.max()),
    }


def _charge(ledger: Ledger, name: str, row: tuple[Any, ...], metric: str, seeds: int) -> None:
    agents, (sent, _) = AGENTS[metric], bits_of(name, row, metric)
    for seed in range(seeds):
        about = {"method": name, "seed": seed}
        if row[3]:
            ledger.add(
                **about,
                phase="pretraining",
                kind="modelled",
                source="CPU time x 15 W",
                joules=24.0,
                seconds=1.6,
                round=0,
            )
        if row[6]:
            ledger.add(
                **about, phase="computation", kind="modelled", source="CPU time x 15 W",
                joules=15 * row[6], seconds=row[6], flops=row[2] * 10**8,
            )  # fmt: skip
        charge_radio(ledger, LINKS["paper"], **about, agents=agents, uplink_bits=sent)
        ledger.add(**about, phase="adaptation", kind="modelled", source="CPU time x 15 W", joules=1.2, seconds=0.08)


def _summary(
    name: str, row: tuple[Any, ...], metric: str, seeds: int, scores: dict[str, np.ndarray], ledger: Ledger
) -> dict[str, Any]:
    energy: dict[str, dict[str, dict[str, float | None]]] = {}
    for line in ledger.select(method=name):
        at = energy.setdefault(line.phase, {}).setdefault(
            line.kind, {"joules": 0.0, "seconds": 0.0, "bits": None, "flops": None}
        )
        at["joules"] += line.joules / seeds
        at["seconds"] += line.seconds / seeds
        if line.bits is not None:
            at["bits"] = (at["bits"] or 0.0) + line.bits / seeds
    quality = {}
    if name in scores:
        for i, steps in enumerate(STEPS):
            loss = scores[name][..., i]
            accuracy = _quantiles(_accuracy(loss)) if metric == "accuracy" else None
            quality[str(steps)] = {"loss": _quantiles(loss), "accuracy": accuracy}
    best = np.stack([s[..., STEPS.index(10)] for s in scores.values()]).argmin(0) if scores else np.zeros(1)
    uploads = (row[3] if row[3] < 3 else len(AGENTS[metric])) + row[2] * len(AGENTS[metric])
    return {
        "label": row[0],
        "method": row[1],
        "settings": {"rounds": row[2]},
        "rounds": row[2],
        "sent": f"each agent sends its weights {row[2] + 1} times" if row[2] else "each agent sends its weights once",
        "diverged": [] if name in scores else list(range(seeds)),
        "quality": quality,
        "share_best": float((best == list(scores).index(name)).mean()) if name in scores else 0.0,
        "energy": energy,
        "messages": {
            way: messages_of(np.stack([bits] * seeds)).model_dump()
            for way, bits in zip(("uplink", "downlink"), bits_of(name, row, metric), strict=True)
        },
        "uplink_values": uploads * WEIGHTS[metric],
        "downlink_values": row[2] * len(AGENTS[metric]) * WEIGHTS[metric],
    }


def _evaluation(name: str, scores: np.ndarray, metric: str) -> list[list[Any]]:
    rows = []
    for (seed, task, i), loss in np.ndenumerate(scores):
        accuracy = float(_accuracy(loss)) if metric == "accuracy" else ""
        rows.append([name, seed, task, STEPS[i], float(loss), accuracy])
    return rows


def _trace(methods: dict[str, tuple[Any, ...]], seeds: int, metric: str) -> list[list[Any]]:
    rows = []
    for name, row in methods.items():
        for seed in range(seeds):
            for at in range(1, row[2] + 1):
                part, own = at / row[2], row[1] == "meta_backward"
                radius, active = (0.02 * (1 - part) + 1e-3, 1.0) if own else ("", "")
                spread = (radius if own else 2.0 * (0.3 + np.exp(-5 * part))) * (1 + 0.1 * seed)
                rows.append([name, seed, at, 2 + part, spread, 0.05 / at, radius, active, len(AGENTS[metric])])
    return rows


def _paths(methods: dict[str, tuple[Any, ...]], metric: str) -> list[list[Any]]:
    rows = []
    ends = [(-4.0, 1.5), (1.0, -2.5), (3.5, 2.0)]
    for name in ("meta_backward", "maml", "imaml-50-50"):
        if name not in methods:
            continue
        rounds = min(methods[name][2], 60)
        pull = {"meta_backward": 8.0, "maml": 1.5, "imaml-50-50": 3.0}[name]
        centre = {"meta_backward": (0.1, 0.4), "maml": (0.9, -1.1), "imaml-50-50": (0.3, 0.2)}[name]
        for at in range(rounds + 1):
            rest = np.exp(-pull * at / rounds)
            for agent, (x, y) in zip(AGENTS[metric], ends, strict=False):
                rows.append([name, agent, at, centre[0] + (x - centre[0]) * rest, centre[1] + (y - centre[1]) * rest])
            rows.append([name, "", at, centre[0] * (1 - rest), 0.3 + (centre[1] - 0.3) * (1 - rest)])
    return rows


def _csv(path: Path, header: str, rows: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header.split(","))
        writer.writerows(rows)
