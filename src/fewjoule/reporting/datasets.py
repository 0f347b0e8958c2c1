"""The numbers behind the charts, thinned to what a reader can see, as named lists of rows.

A run of 20 methods, 5 seeds and 500 tasks has 250 000 evaluations; the charts need about a hundred quantiles of each
method, so that figures and page stay small whatever the size of the run.
"""

import math
from typing import Any

import numpy as np

from fewjoule.energy.ledger import RADIO, TRAINING
from fewjoule.energy.show import digits
from fewjoule.reporting.colours import FAMILIES
from fewjoule.reporting.facts import Facts, error_of, finished, on_frontier, references, seconds_kind
from fewjoule.reporting.run_folder import Array, RunFolder, Summary
from fewjoule.reporting.wording import drawable, joules_text, kinds_text, seconds_text

Rows = list[dict[str, Any]]
Line = list[tuple[float, float]]
QUANTILES = np.linspace(0, 1, 81)
ROUNDS_SHOWN = 60
BEYOND = 1.6
"""How far a bar may reach beyond the best and the worst point, as a factor."""


def datasets(folder: RunFolder, facts: list[Facts]) -> dict[str, Rows]:
    """All datasets by the names the charts use."""
    scored, traced = finished(facts), [f for f in facts if f.name in folder.trace]
    return {
        **quality_and_joules(facts, folder.summary),
        "energy": _amounts(facts, "joules"),
        "time": _amounts(facts, "seconds"),
        "cdf": _panels(facts, {f.name: _cdf(folder.values[f.name]) for f in scored}),
        "steps": _panels(facts, {f.name: _steps(folder.summary, f.name) for f in scored}),
        "spread": _panels(facts, {f.name: _trace(folder, f.name, "spread") for f in traced}),
        "radius": _radius(folder, traced),
        "paths": _paths(folder, facts),
    }


def quality_and_joules(facts: list[Facts], summary: Summary) -> dict[str, Rows]:
    """Points, the frontier's steps, and the methods that cost nothing, which a logarithmic axis cannot place."""
    errors = [f.error for f in facts if f.error is not None and f.joules() > 0]
    lowest, highest = (min(errors) / BEYOND, max(errors) * BEYOND) if errors else (0.0, math.inf)
    best = on_frontier(facts)
    points: Rows = [
        {
            "method": f.name,
            "label": f.label,
            "family": f.family,
            "joules": _short(f.joules()),
            "error": _short(f.error),
            **_bar(f, summary, lowest, highest),
            "quality": f.quality_text,
            "drawn": digits(f.error),
            "spent": f"{joules_text(f.joules())} ({kinds_text(f.kinds())})",
            "best": f.name in best,
        }
        for f in facts
        if f.error is not None
    ]
    paid = [p for p in points if p["joules"] > 0]
    steps = sorted((p["joules"], p["error"]) for p in paid if p["best"])
    return {
        "points": paid,
        "frontier": [{"joules": joules, "error": error} for joules, error in steps],
        "free": [p for p in points if p["joules"] == 0],
    }


def _bar(f: Facts, summary: Summary, lowest: float, highest: float) -> dict[str, float]:
    """The interval over seeds, cut where it would squeeze the points together."""
    if f.low is None or f.high is None:
        return {}
    ends = sorted(error_of(summary, quality) for quality in (f.low, f.high))
    low, high = (_short(min(max(end, lowest), highest)) for end in ends)
    return {"low": low, "high": high}


def _amounts(facts: list[Facts], what: str) -> Rows:
    text = joules_text if what == "joules" else seconds_text
    return [
        {
            "method": f.name,
            "label": f.label,
            "phase": s.phase,
            "kind": s.kind if what == "joules" else seconds_kind(s),
            "value": _short(value),
            "text": text(value),
            "source": "; ".join(s.sources),
        }
        for f in facts
        for s in f.spent
        if (value := getattr(s, what))
    ]


def _cdf(values: Array) -> Line:
    # a task on which fine-tuning diverged has an infinite loss: the curve then ends below 1
    found = np.quantile(values, QUANTILES, method="nearest")
    return [(v, q) for v, q in zip(found, QUANTILES, strict=True) if np.isfinite(v)]


def _steps(summary: Summary, name: str) -> Line:
    return [(steps, score) for steps in summary.steps if (score := summary.score(name, steps)) is not None]


def _trace(folder: RunFolder, name: str, column: str) -> Line:
    rows = np.stack([folder.trace[name]["round"], folder.trace[name][column]], axis=1)
    rows = _thinned(rows[np.isfinite(rows[:, 1]) & (rows[:, 1] > 0)])
    return [(at, value) for at, value in rows]


def _thinned(rows: Array, before: int = 0) -> Array:
    """Some of many rounds, evenly on the logarithmic axis they are drawn on, and all rows `before` the first round."""
    if len(rows) <= ROUNDS_SHOWN:
        return rows
    rounds = np.unique(np.geomspace(1, len(rows) - before, ROUNDS_SHOWN).round().astype(int))
    return rows[[*range(before), *(rounds + before - 1)]]


def _panels(facts: list[Facts], lines: dict[str, Line]) -> Rows:
    """One panel per family: its methods as lines with a key, and in every panel the two methods all others face."""
    rows: Rows = []
    for family in FAMILIES:
        members = [f for f in facts if f.family == family and lines.get(f.name)]
        for slot, f in enumerate(members):
            about = {"panel": family, "label": f.label, "dash": slot}
            rows.append({**about, "role": "key", "keys": len(members)})
            rows += _points({**about, "role": "line"}, lines[f.name])
        for f in references(facts):
            if members and f.family != family and lines.get(f.name):
                rows += _points({"panel": family, "label": f.label, "role": "reference", "of": f.family}, lines[f.name])
    return rows


def _points(about: dict[str, Any], line: Line) -> Rows:
    return [{**about, "x": _short(x), "y": _short(y)} for x, y in line]


def _radius(folder: RunFolder, facts: list[Facts]) -> Rows:
    rows: Rows = []
    wording = {"radius": "radius of the ball", "spread": "farthest agent", "step": "step of the server"}
    for f in facts:
        if _trace(folder, f.name, "radius"):
            for column, text in wording.items():
                rows += _points({"label": f.label, "what": text}, _trace(folder, f.name, column))
    return rows


def _paths(folder: RunFolder, facts: list[Facts]) -> Rows:
    rows: Rows = []
    known = {f.name: f for f in facts}
    for name, agents in sorted(folder.paths.items(), key=lambda item: list(FAMILIES).index(known[item[0]].family)):
        for agent, points in agents.items():
            kept = _thinned(points, before=1)
            for i, (at, x, y) in enumerate(kept):
                end = "start" if i == 0 else "end" if i == len(kept) - 1 else ""
                about = {"label": known[name].label, "agent": drawable(agent) or "server", "round": int(at)}
                rows.append({**about, "x": _short(x), "y": _short(y), "end": end})
    return rows


def link_of_page(facts: list[Facts], summary: Summary) -> dict[str, Any]:
    """What the page needs to compute radio energy for another link."""
    return {
        "link": summary.link.model_dump(exclude={"source"}) | {"isShannon": summary.link.is_shannon},
        "training": TRAINING,
        "radio": RADIO,
        "methods": [
            {
                "method": f.name,
                "label": f.label,
                "family": f.family,
                "error": None if f.error is None else _short(f.error),
                "quality": None if f.quality is None else f.quality_text,
                "contends": f.contends,
                "ownBits": f.own_bits,
                "spent": [s._asdict() | {"seconds_kind": seconds_kind(s)} for s in f.spent],
            }
            for f in facts
        ],
        "metric": summary.metric,
    }


def _short(value: float) -> float:
    """Five significant digits: finer than a pixel, and a third of the bytes."""
    return float(f"{value:.5g}")
