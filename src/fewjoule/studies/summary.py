"""The summary of a run: per method its quality, its share of the new tasks where it is the best, and its energy.

From finished parts and the ledger to the table that becomes summary.json.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

import numpy as np

from fewjoule.energy import Ledger, ShannonLink, link
from fewjoule.models.model import Model
from fewjoule.reporting.run_folder import FORMAT, LEAST_SEEDS, LinkFacts, Messages, MethodSummary, Spread, Summary
from fewjoule.studies.parts import Part
from fewjoule.studies.settings import Study
from fewjoule.training.worth import Worth

Array = np.ndarray[Any, Any]
QUANTILES = {"q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}


def summarise(
    study: Study, model: Model, agents: Sequence[str], data: str, finished: dict[str, Part], ledger: Ledger,
    local: Part | None = None,
) -> Summary:  # fmt: skip
    """Everything of summary.json. Energies are per seed, quality is over all new tasks and the seeds that went well.

    `local` is what the agents have alone, where they keep test samples of their own.
    """
    metric: Literal["accuracy", "loss"] = "accuracy" if model.loss_name == "cross_entropy" else "loss"
    at = study.evaluation.steps.index(study.evaluation.headline)
    ceilings = {e.name: 0.0 for e in study.methods if e.ceiling}  # nobody can have them, so they win nothing
    shares = share_best({k: v for k, v in finished.items() if k not in ceilings}, metric, at) | ceilings
    paper = share_best({e.name: finished[e.name] for e in study.methods if e.paper}, metric, at)
    energies = _energies(ledger, len(study.seeds))
    methods = {}
    for entry in study.methods:
        part = finished[entry.name]
        good = ~part.arrays["diverged"]
        method = entry.build()
        in_paper: dict[str, Any] = {"share_best_in_paper": paper[entry.name]} if entry.paper else {}
        methods[entry.name] = MethodSummary(
            label=entry.label or entry.name,
            method=entry.method,
            settings=entry.settings,
            rounds=method.rounds,
            sent=method.sent_in_words,
            ceiling=bool(entry.ceiling),
            diverged=[s for s, ok in zip(study.seeds, good, strict=True) if not ok],
            quality=_quality(study, part, good, metric),
            **_personal(study, part, local, good, metric),
            **_worth(study, part, good),
            share_best=shares[entry.name],
            **in_paper,
            energy=energies.get(entry.name, {}),
            messages={
                "uplink": messages_of(part.arrays["uplink_bits"]),
                "downlink": messages_of(part.arrays["downlink_bits"]),
            },
            uplink_values=_values(part.arrays["uplink_bits"]),
            downlink_values=_values(part.arrays["downlink_bits"]),
        )
    return Summary(
        format=FORMAT,
        study=study.name,
        title=study.title or study.name,
        metric=metric,
        better="higher" if metric == "accuracy" else "lower",
        statistic=study.evaluation.statistic,
        steps=study.evaluation.steps,
        headline_steps=study.evaluation.headline,
        model=model.spec,
        weights=model.size,
        agents=list(agents),
        seeds=study.seeds,
        tasks=next(iter(finished.values())).arrays["loss"].shape[1],
        data=data,
        link=_link(study.energy.link),
        **_alone(local, metric),
        methods=methods,
    )


def _alone(local: Part | None, metric: str) -> dict[str, Any]:
    values = None if local is None else local.arrays.get(f"alone_{metric}")
    return {} if values is None else {"alone": spread_of(values, metric)}


def _personal(study: Study, part: Part, local: Part | None, good: Array, metric: str) -> dict[str, Any]:
    """What the agents get after each number of steps; nothing where they keep no test samples or all seeds diverged."""
    values = part.arrays.get(f"own_{metric}")
    if values is None or local is None or not good.any():
        return {}
    alone, steps = local.arrays[f"alone_{metric}"][good], study.evaluation.steps
    return {"personal": {s: spread_of(values[good][..., k], metric, alone) for k, s in enumerate(steps)}}


def spread_of(values: Array, metric: str, alone: Array | None = None) -> Spread:
    """Worst tenth (the mean over those agents, at least one), median and mean of values [seeds, agents]."""
    values, sign = values.astype(np.float64), 1 if metric == "accuracy" else -1
    worst = np.sort(sign * values, axis=1)[:, : max(1, round(values.shape[1] / 10))]
    numbers = {"worst_tenth": sign * worst.mean(), "median": np.median(values, 1).mean(), "mean": values.mean()}
    low, high = interval(values.mean(1), ratio=metric == "loss")
    beside: dict[str, Any] = {}
    if alone is not None:
        beside["better_than_alone"] = float(np.mean((sign * values > sign * alone) + 0.5 * (values == alone)))
    return Spread(**{name: _finite(float(value)) for name, value in numbers.items()}, low=low, high=high, **beside)


def _worth(study: Study, part: Part, good: Array) -> dict[str, Any]:
    worth = worth_of(study, part, good)
    if worth is None:
        return {}
    return {"worth": {k: _finite(v) for k, v in worth._asdict().items()}, "remarks": worth.remarks()}


def worth_of(study: Study, part: Part, which: Any) -> Worth | None:
    """What the meta-models of these seeds are worth on the agents' samples, as medians; None where nobody knows."""
    losses = [part.arrays.get(f"worth_{name}", np.zeros(0)) for name in Worth._fields[1:]]
    if not len(losses[0]) or not len(losses[0][which]):  # a federation's samples are at home, or no seed went well
        return None
    return Worth(study.evaluation.headline, *(float(np.median(loss[which])) for loss in losses))


def share_best(finished: dict[str, Part], metric: str, at: int) -> dict[str, float]:
    """Share of (seed, new task) pairs in which each method has the best value; a tie is shared out evenly.

    A diverged seed never wins. The shares sum to 1, unless every method diverged somewhere.
    """
    values = np.array([part.arrays[metric][..., at].ravel() for part in finished.values()])
    if values.size == 0:  # no methods; or a federation's operator may have no new tasks to judge by
        return dict.fromkeys(finished, 0.0)
    signed = np.where(np.isnan(values), -np.inf, values if metric == "accuracy" else -values)
    winners = (signed == signed.max(0)) & ~np.isnan(values)
    shares = (winners / np.maximum(winners.sum(0), 1)).mean(1)
    return dict(zip(finished, shares.tolist(), strict=True))


def interval(per_seed: Array, *, ratio: bool = False) -> tuple[float | None, float | None]:
    """A 95 % Student interval of the mean over seeds; none from fewer than three, which would say nothing.

    With `ratio` the interval is of the logarithm's mean: losses are compared by ratios, and none lies below 0. Without
    it the values are shares, and the interval ends at 0 and 1.
    """
    if len(per_seed) < LEAST_SEEDS or not np.isfinite(per_seed).all() or (ratio and per_seed.min() <= 0):
        return None, None
    from scipy.special import stdtrit  # the quantile of Student's distribution; slow to import

    values = np.log(per_seed) if ratio else per_seed
    half = stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / math.sqrt(len(values))
    low, high = float(values.mean() - half), float(values.mean() + half)
    return (_exp(low), _exp(high)) if ratio else (max(low, 0.0), min(high, 1.0))


def _exp(value: float) -> float | None:
    return math.exp(value) if value < 700 else None


def _quality(study: Study, part: Part, good: Array, metric: str) -> dict[int, Any]:
    if not good.any() or part.arrays["loss"].size == 0:
        return {}
    table: dict[int, Any] = {}
    for k, steps in enumerate(study.evaluation.steps):
        loss = _statistics(part.arrays["loss"][good][..., k], study.evaluation.statistic, ratio=True)
        accuracy = _statistics(part.arrays["accuracy"][good][..., k], study.evaluation.statistic, ratio=False)
        table[steps] = {"loss": loss, "accuracy": accuracy if metric == "accuracy" else None}
        if lost := int(np.isinf(part.arrays["loss"][good][..., k]).sum()):
            table[steps]["overflowed"] = lost
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
    return {k: _finite(v) for k, v in numbers.items()} | {"low": low, "high": high}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _energies(ledger: Ledger, seeds: int) -> dict[str, Any]:
    """Per method, phase and kind: joules, seconds, bits and FLOPs per seed. Amounts nobody knows are None."""
    table: dict[str, Any] = {}
    for spent in ledger.spent(seeds=seeds):
        amounts = {name: getattr(spent, name) for name in ("joules", "seconds", "bits", "flops")}
        table.setdefault(spent.method, {}).setdefault(spent.phase, {})[spent.kind] = amounts
    return table


def messages_of(bits: Array) -> Messages:
    """Messages by size, per seed, from their bits [seeds, rounds + 1, agents]; 0 bits are no message."""

    def counts(sizes: Array) -> list[tuple[float, float]]:
        each, numbers = np.unique(sizes[sizes > 0], return_counts=True)
        return list(zip(each.tolist(), (numbers / len(bits)).tolist(), strict=True))

    return Messages(sizes=counts(bits), longest=counts(bits.max(-1)))


def _values(bits: Array) -> float:
    """Numbers sent by all agents per seed, at 32 bits each."""
    return float(bits.sum() / 32 / len(bits))


def _link(name: str) -> LinkFacts:
    chosen = link(name)
    numbers = asdict(chosen) if isinstance(chosen, ShannonLink) else {"name": chosen.name}
    return LinkFacts.model_validate({**numbers, "source": chosen.source, "bits_per_weight": 32})
