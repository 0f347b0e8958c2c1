"""The agents' paths from their own models to the meta-model, in the plane of their first two principal components."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fewjoule.simulate import Run

MOST_POINTS = 51

Row = tuple[str, str, int, float, float]


def principal_paths(runs: Mapping[str, Run], agents: Sequence[str], local: np.ndarray[Any, Any]) -> list[Row]:
    """Rows (method, agent, round, pc1, pc2) from runs with kept paths; agent "" is the server's model.

    The plane is common to all methods and goes through the mean of all points; round 0 is the start, where the agents
    stand at their own models `local` [agents, d]. Long runs are thinned to about `MOST_POINTS` rounds.
    """
    labels: list[tuple[str, str, int]] = []
    points: list[np.ndarray[Any, Any]] = []
    for method, run in runs.items():
        server, models = np.asarray(run.meta_path), np.asarray(run.agent_path)
        kept = np.unique(np.linspace(0, len(models), min(MOST_POINTS, len(models) + 1)).round().astype(int))
        for round_ in kept:
            labels.append((method, "", int(round_)))
            points.append(server[round_])
            for i, agent in enumerate(agents):
                labels.append((method, agent, int(round_)))
                points.append(local[i] if round_ == 0 else models[round_ - 1, i])
    if not points:
        return []
    table = np.asarray(points, np.float64)
    table -= table.mean(0)
    _, _, axes = np.linalg.svd(table, full_matrices=False)
    axes = axes[:2] * np.sign(axes[:2][np.arange(2), np.abs(axes[:2]).argmax(1)])[:, None]  # else the sign is arbitrary
    plane = table @ axes.T
    return [(*label, float(x), float(y)) for label, (x, y) in zip(labels, plane, strict=True)]
