"""The numbers behind the charts, thinned to what a reader can see, as named lists of rows.

A run of 20 methods, 5 seeds and 500 tasks has 250 000 evaluations; the charts need about a hundred quantiles of each
method, so that figures and page stay small whatever the size of the run.
"""

import math
from typing import Any

import numpy as np

from fewjoule.report.colours import FAMILIES
from fewjoule.report.facts import RADIO, TRAINING, Facts, error_of, frontier
from fewjoule.report.folder import RunFolder, Summary
from fewjoule.report.wording import joules_text, kinds_text, quality_text, seconds_text

Rows = list[dict[str, Any]]
QUANTILES = np.linspace(0, 1, 81)
ROUNDS_SHOWN = 60
LEAST_SEEDS = 3
"""An interval from two seeds is 12.7 standard errors to either side and says nothing."""
BEYOND = 1.6
"""How far a bar may reach beyond the best and the worst point, as a factor."""


def datasets(folder: RunFolder, facts: list[Facts]) -> dict[str, Rows]:
    """All datasets by the names the charts use."""
    summary = folder.summary
    return {
        **quality_and_joules(facts, summary),
        "energy": _amounts(facts, "joules"),
        "time": _amounts(facts, "seconds"),
        "cdf": _panels(facts, {f.name: _cdf(folder.values[f.name]) for f in facts if f.quality is not None}),
        "steps": _panels(facts, {f.name: _steps(folder, f.name) for f in facts if f.quality is not None}),
        "spread": _panels(facts, {f.name: _trace(folder, f.name, "spread") for f in facts if f.name in folder.trace}),
        "radius": _radius(folder, facts),
        "paths": _paths(folder, facts),
    }


def quality_and_joules(facts: list[Facts], summary: Summary) -> dict[str, Rows]:
    """Points, the frontier's steps, and the methods that cost nothing, which a logarithmic axis cannot place."""
    errors = [error_of(summary, f.quality) for f in facts if f.quality is not None and f.joules() > 0]
    lowest, highest = (min(errors) / BEYOND, max(errors) * BEYOND) if errors else (0.0, math.inf)
    points: Rows = []
    for f in facts:
        if f.quality is None:
            continue
        points.append(
            {
                "method": f.name,
                "label": f.label,
                "family": f.family,
                "joules": _short(f.joules()),
                "error": _short(error_of(summary, f.quality)),
                **_bar(f, summary, lowest, highest),
                "quality": quality_text(f.quality),
                "spent": f"{joules_text(f.joules())} ({kinds_text(f.kinds())})",
            }
        )
    paid = [p for p in points if p["joules"] > 0]
    names = frontier((p["method"], p["joules"], p["error"]) for p in points)
    best = [p for p in paid if p["method"] in names]
    for p in points:
        p["best"] = p["method"] in names
    return {
        "points": paid,
        "frontier": [{"joules": p["joules"], "error": p["error"]} for p in sorted(best, key=lambda p: p["joules"])],
        "free": [p for p in points if p["joules"] == 0],
    }


def _bar(f: Facts, summary: Summary, lowest: float, highest: float) -> dict[str, float]:
    """The interval over seeds, cut where it would squeeze the points together."""
    if f.low is None or f.high is None or len(summary.seeds) < LEAST_SEEDS:
        return {}
    ends = sorted(error_of(summary, q) for q in (f.low, f.high))
    low, high = (_short(min(max(end, lowest), highest)) for end in ends)
    return {"low": low, "high": high}


def _amounts(facts: list[Facts], what: str) -> Rows:
    text = joules_text if what == "joules" else seconds_text
    rows = []
    for f in facts:
        for s in f.spent:
            value = getattr(s, what)
            if value:
                rows.append(
                    {
                        "method": f.name,
                        "label": f.label,
                        "phase": s.phase,
                        "kind": s.kind if what == "joules" else s.seconds_kind,
                        "value": _short(value),
                        "text": text(value),
                        "source": "; ".join(s.sources),
                    }
                )
    return rows


def _cdf(values: np.ndarray[Any, Any]) -> list[tuple[float, float]]:
    # a task on which fine-tuning diverged has an infinite loss: the curve then ends below 1
    found = np.quantile(values, QUANTILES, method="nearest")
    return [(float(v), float(q)) for v, q in zip(found, QUANTILES, strict=True) if np.isfinite(v)]


def _steps(folder: RunFolder, name: str) -> list[tuple[float, float]]:
    summary = folder.summary
    rows = []
    for steps in summary.steps:
        score = summary.score(name, steps)
        if score is not None:
            rows.append((float(steps), score))
    return rows


def _trace(folder: RunFolder, name: str, column: str) -> list[tuple[float, float]]:
    at = {"loss": 1, "spread": 2, "step": 3, "radius": 4, "active": 5}[column]
    rows = folder.trace[name][:, [0, at]]
    rows = rows[np.isfinite(rows[:, 1]) & (rows[:, 1] > 0)]
    if len(rows) > ROUNDS_SHOWN:  # rounds are drawn on a logarithmic axis, so they are thinned evenly on it
        keep = np.unique(np.geomspace(1, len(rows), ROUNDS_SHOWN).round().astype(int)) - 1
        rows = rows[keep]
    return [(float(r), float(v)) for r, v in rows]


def _panels(facts: list[Facts], lines: dict[str, list[tuple[float, float]]]) -> Rows:
    """One panel per family: its methods as lines with a key, and in every panel the two methods all others face."""
    rows: Rows = []
    references = [
        f for f in (_first(facts, "without rounds", "average"), _first(facts, "Meta-Backward")) if f is not None
    ]
    for family in FAMILIES:
        members = [f for f in facts if f.family == family and lines.get(f.name)]
        if not members:
            continue
        for slot, f in enumerate(sorted(members, key=lambda f: list(lines).index(f.name))):
            about = {"panel": family, "label": f.label, "dash": slot}
            rows.append({**about, "role": "key", "keys": len(members)})
            rows += [{**about, "role": "line", "x": _short(x), "y": _short(y)} for x, y in lines[f.name]]
        for f in references:
            if f.family != family and lines.get(f.name):
                about = {"panel": family, "label": f.label, "role": "reference", "of": f.family}
                rows += [{**about, "x": _short(x), "y": _short(y)} for x, y in lines[f.name]]
    return rows


def _first(facts: list[Facts], family: str, name: str | None = None) -> Facts | None:
    found = [f for f in facts if f.family == family and f.quality is not None and (name is None or f.name == name)]
    return found[0] if found else None


def _radius(folder: RunFolder, facts: list[Facts]) -> Rows:
    rows: Rows = []
    wording = {"radius": "radius of the ball", "spread": "farthest agent", "step": "step of the server"}
    for f in facts:
        if f.name in folder.trace and _trace(folder, f.name, "radius"):
            for column, text in wording.items():
                for x, y in _trace(folder, f.name, column):
                    rows.append({"label": f.label, "what": text, "x": _short(x), "y": _short(y)})
    return rows


def _paths(folder: RunFolder, facts: list[Facts]) -> Rows:
    rows: Rows = []
    labels = {f.name: f.label for f in facts}
    families = {f.name: list(FAMILIES).index(f.family) for f in facts}
    for name, agents in sorted(folder.paths.items(), key=lambda item: families[item[0]]):
        for agent, points in agents.items():
            keep = list(range(len(points)))
            if len(points) > ROUNDS_SHOWN:
                keep = [0, *(np.unique(np.geomspace(1, len(points) - 1, ROUNDS_SHOWN).round().astype(int).tolist()))]
            for i, at in enumerate(keep):
                end = "start" if i == 0 else "end" if i == len(keep) - 1 else ""
                row, x, y = points[at]
                rows.append(
                    {
                        "label": labels[name],
                        "agent": agent or "server",
                        "round": int(row),
                        "x": _short(x),
                        "y": _short(y),
                        "end": end,
                    }
                )
    return rows


def link_of_page(facts: list[Facts], summary: Summary) -> dict[str, Any]:
    """What the page needs to compute radio energy for another link."""
    methods = []
    for f in facts:
        methods.append(
            {
                "method": f.name,
                "label": f.label,
                "family": f.family,
                "error": None if f.quality is None else _short(error_of(summary, f.quality)),
                "quality": None if f.quality is None else quality_text(f.quality),
                "ownBits": f.own_bits,
                "spent": [
                    {
                        "phase": s.phase,
                        "kind": s.kind,
                        "joules": s.joules,
                        "seconds": s.seconds,
                        "secondsKind": s.seconds_kind,
                        "bits": s.bits,
                        "source": "; ".join(s.sources),
                    }
                    for s in f.spent
                ],
            }
        )
    return {
        "link": summary.link.model_dump(),
        "training": list(TRAINING),
        "radio": list(RADIO),
        "methods": methods,
        "metric": summary.metric,
    }


def _short(value: float) -> float:
    """Five significant digits: finer than a pixel, and a third of the bytes."""
    return float(f"{value:.5g}")
