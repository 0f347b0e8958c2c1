"""What the agents of a population on disk keep between rounds, in files.

A file for each leaf of a state, with a row for each agent that has taken part, in the order in which they first did:
those who are new in a round are written in one piece. Rows by position would lie all over a file of the whole
population, and a system takes seven times as long to find room for each of them.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from fewjoule.tasks.population import DiskRows

Numbers = np.ndarray[Any, Any]


class KeptStates:
    """States with leaves of these shapes, in a folder. `states-agents.npy` says whose each row is."""

    def __init__(self, folder: Path, shapes: Any, agents: int) -> None:
        leaves, self._tree = jax.tree.flatten(shapes)
        self._files = [
            DiskRows.created(folder / f"states-{number}.npy", (agents, *leaf.shape), leaf.dtype)
            for number, leaf in enumerate(leaves)
        ]
        self._folder = folder
        self._row, self._taken = np.full(agents, -1), 0  # of each agent in the files; -1 for those who kept nothing

    def has(self, who: Numbers) -> Numbers:
        """Whether each of these agents has kept anything."""
        return self._row[who] >= 0

    def read(self, who: Numbers, rows: int) -> tuple[Any, Numbers]:
        """What these agents kept, first of so many rows, and which rows hold anything; the others are 0."""
        at = np.concatenate([self._row[who], np.full(rows - len(who), -1)])
        leaves = [file.read(at, wanted=at >= 0)[:, 0] for file in self._files]
        return jax.tree.unflatten(self._tree, leaves), at >= 0

    def write(self, who: Numbers, states: Any) -> None:
        """What these agents keep now: the first rows of `states`."""
        new = who[~self.has(who)]
        self._row[new] = self._taken + np.arange(len(new))
        self._taken += len(new)
        for file, leaf in zip(self._files, jax.tree.leaves(states), strict=True):
            file.write(self._row[who], np.asarray(leaf)[: len(who)])

    def finish(self) -> None:
        """Write which agent each row belongs to, by position in the population."""
        if not self._files:
            return
        owners = np.argsort(self._row, kind="stable")[len(self._row) - self._taken :]
        np.save(self._folder / "states-agents.npy", owners)
