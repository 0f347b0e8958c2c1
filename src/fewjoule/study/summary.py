"""The summary of a run: per method its quality, its share of the new tasks where it is the best, and its energy.

From finished parts and the ledger to the table that becomes summary.json.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from fewjoule.energy import Ledger, ShannonLink, link
from fewjoule.models.model import Model
from fewjoule.report.run_folder import FORMAT, LEAST_SEEDS, Summary
from fewjoule.study.parts import Part
from fewjoule.study.settings import Study

Array = np.ndarray[Any, Any]
QUANTILES = {"q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}


def summarise(
    study: Study, model: Model, agents: Sequence[str], data: str, finished: dict[str, Part], ledger: Ledger
) -> Summary:
    """Everything of summary.json. Energies are per seed, quality is over all new tasks and the seeds that went well."""
    metric = "accuracy" if model.loss_name == "cross_entropy" else "loss"
    at = study.evaluation.steps.index(study.evaluation.headline)
    shares = share_best(finished, metric, at)
    rivals = {e.name: finished[e.name] for e in study.methods if e.paper}
    paper = share_best(rivals, metric, at) if rivals else {}
    energies = _energies(ledger, len(study.seeds))
    methods = {}
    for entry in study.methods:
        part = finished[entry.name]
        good = ~part.arrays["diverged"]
        methods[entry.name] = {
            "label": entry.label or entry.name,
            "method": entry.method,
            "settings": entry.settings,
            "rounds": entry.build().rounds,
            "diverged": [s for s, ok in zip(study.seeds, good, strict=True) if not ok],
            "quality": _quality(study, part, good, metric),
            "share_best": shares[entry.name],
            **({"share_best_in_paper": paper[entry.name]} if entry.name in paper else {}),
            "energy": energies.get(entry.name, {}),
            "uplink_values": _values(part.arrays["uplink_bits"]),
            "downlink_values": _values(part.arrays["downlink_bits"]),
        }
    table = {
        "format": FORMAT,
        "study": study.name,
        "title": study.title or study.name,
        "metric": metric,
        "better": "higher" if metric == "accuracy" else "lower",
        "statistic": study.evaluation.statistic,
        "steps": study.evaluation.steps,
        "headline_steps": study.evaluation.headline,
        "model": model.spec,
        "weights": model.size,
        "agents": list(agents),
        "seeds": study.seeds,
        "tasks": next(iter(finished.values())).arrays["loss"].shape[1],
        "data": data,
        "link": _link(study.energy.link),
        "methods": methods,
    }
    return Summary.model_validate(table)


def share_best(finished: dict[str, Part], metric: str, at: int) -> dict[str, float]:
    """Share of (seed, new task) pairs in which each method has the best value; a tie is shared out evenly.

    A diverged seed never wins. The shares sum to 1, unless every method diverged somewhere.
    """
    names = list(finished)
    values = np.stack([finished[n].arrays[metric][..., at].ravel() for n in names])
    if values.size == 0:  # a federation's operator may have no new tasks to judge by
        return dict.fromkeys(names, 0.0)
    signed = np.where(np.isnan(values), -np.inf, values if metric == "accuracy" else -values)
    winners = (signed == signed.max(0)) & ~np.isnan(values)
    shares = (winners / np.maximum(winners.sum(0), 1)).mean(1)
    return {name: float(share) for name, share in zip(names, shares, strict=True)}


def interval(per_seed: Array, *, ratio: bool = False) -> tuple[float | None, float | None]:
    """A 95 % Student interval of the mean over seeds; none from fewer than three, which would say nothing.

    With `ratio` the interval is of the logarithm's mean: losses are compared by ratios, and none lies below 0. Without
    it the values are shares, and the interval ends at 0 and 1.
    """
    if len(per_seed) < LEAST_SEEDS or not np.isfinite(per_seed).all() or (ratio and per_seed.min() <= 0):
        return None, None
    values = np.log(per_seed) if ratio else per_seed
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values))
    low, high = float(values.mean() - half), float(values.mean() + half)
    return (_exp(low), _exp(high)) if ratio else (max(low, 0.0), min(high, 1.0))


def _exp(value: float) -> float | None:
    return math.exp(value) if value < 700 else None


def _quality(study: Study, part: Part, good: Array, metric: str) -> dict[str, Any]:
    if not good.any() or part.arrays["loss"].size == 0:
        return {}
    table = {}
    for k, steps in enumerate(study.evaluation.steps):
        loss = _statistics(part.arrays["loss"][good][..., k], study.evaluation.statistic, ratio=True)
        accuracy = _statistics(part.arrays["accuracy"][good][..., k], study.evaluation.statistic, ratio=False)
        table[str(steps)] = {"loss": loss, "accuracy": accuracy if metric == "accuracy" else None}
    return table


def _statistics(values: Array, statistic: str, *, ratio: bool) -> dict[str, Any]:
    """Quantiles and mean over [seeds, tasks]; low and high bound the headline statistic over seeds.

    A fine-tuning that overflowed counts as infinity, which JSON cannot carry: such a number is None.
    """
    values = values.astype(np.float64)
    per_seed = np.median(values, 1) if statistic == "median" else values.mean(1)
    low, high = interval(per_seed, ratio=ratio)
    numbers = {name: float(np.quantile(values, q)) for name, q in QUANTILES.items()}
    numbers["mean"] = float(values.mean())
    return {k: v if math.isfinite(v) else None for k, v in numbers.items()} | {"low": low, "high": high}


def _energies(ledger: Ledger, seeds: int) -> dict[str, Any]:
    """Per method, phase and kind: joules, seconds, bits and FLOPs per seed. Amounts nobody knows are None."""
    table: dict[str, Any] = {}
    for spent in ledger.spent(seeds=seeds):
        amounts = {name: getattr(spent, name) for name in ("joules", "seconds", "bits", "flops")}
        table.setdefault(spent.method, {}).setdefault(spent.phase, {})[spent.kind] = amounts
    return table


def _values(bits: Array) -> float:
    """Numbers sent by all agents per seed, at 32 bits each."""
    return float(bits.sum() / 32 / len(bits))


def _link(name: str) -> dict[str, Any]:
    chosen = link(name)
    table: dict[str, Any] = {"name": chosen.name, "source": chosen.source, "bits_per_weight": 32}
    if isinstance(chosen, ShannonLink):
        table |= {
            "bandwidth_hz": chosen.bandwidth_hz,
            "power_watts": chosen.power_watts,
            "noise_watts_per_hz": chosen.noise_watts_per_hz,
            "gain": chosen.gain,
            "amplifier_efficiency": chosen.amplifier_efficiency,
            "circuit_watts": chosen.circuit_watts,
            "outage": chosen.outage,
        }
    return table
