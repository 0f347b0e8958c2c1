"""The agents' paths from their own models to the meta-model, in the plane of their first two principal components."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MOST_POINTS = 51

Array = np.ndarray[Any, Any]
Label = tuple[str, str, int]


def kept_rounds(rounds: int) -> Array:
    """The rounds whose models are drawn: 0 (the start), the last, and evenly between, about `MOST_POINTS` in all."""
    return np.unique(np.linspace(0, rounds, min(MOST_POINTS, rounds + 1)).round().astype(int))


def principal_paths(
    paths: Mapping[str, tuple[Array, Array, Array]], agents: Sequence[str], local: Array
) -> tuple[list[Label], Array]:
    """Labels (method, agent, round) and points [labels, 2]; agent "" is the server's model.

    `paths` has for each method the rounds [kept], the server's models then [kept, d] and the agents' models
    [kept - 1, agents, d] in all but the first. In round 0 the agents stand at their own models `local` [agents, d].
    The plane is common to all methods and goes through the mean of all points.
    """
    labels: list[Label] = []
    points: list[Array] = []
    for method, (rounds, server, models) in paths.items():
        for at, round_ in enumerate(rounds):
            labels.append((method, "", int(round_)))
            points.append(server[at])
            for i, agent in enumerate(agents):
                labels.append((method, agent, int(round_)))
                points.append(local[i] if at == 0 else models[at - 1, i])
    if not points:
        return [], np.zeros((0, 2))
    table = np.asarray(points, np.float64)
    table -= table.mean(0)
    if not table.any():  # nothing moved
        return labels, np.zeros((len(points), 2))
    from scipy.sparse.linalg import eigsh  # slow to import

    any_vector = np.random.default_rng(0).standard_normal(len(table))
    axes = eigsh(table @ table.T, k=2, v0=any_vector)[1][:, ::-1].T @ table  # a hundredth of all eigenvectors' time
    axes /= np.maximum(np.linalg.norm(axes, axis=1, keepdims=True), np.finfo(float).tiny)
    axes = axes * np.sign(axes[np.arange(2), np.abs(axes).argmax(1)])[:, None]  # else the sign is arbitrary
    return labels, table @ axes.T
