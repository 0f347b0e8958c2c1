"""N-way K-shot tasks: some classes out of many, a few samples of each to adapt on, others to be tested on."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fewjoule.errors import InputError

Rows = np.ndarray[Any, np.dtype[np.intp]]


class FewShot(NamedTuple):
    """One task's classes, as positions among all, and the rows to adapt on and to judge on, class by class."""

    classes: list[int]
    support: Rows
    query: Rows


def few_shot(
    rng: np.random.Generator, pools: Sequence[Rows], *, ways: int, shots: int, queries: int, what: str = "classes"
) -> FewShot:
    """`ways` random classes; of each, `shots` rows of its pool and `queries` others."""
    if ways > len(pools):
        raise InputError(f"ways must be at most {len(pools)}, the number of {what}, got {ways}.")
    chosen = np.sort(rng.permutation(len(pools))[:ways])
    support, query = [], []
    for i in chosen:
        if shots + queries > len(pools[i]):
            raise InputError(
                f"shots + queries must be at most {len(pools[i])}, the samples of a class, got {shots} + {queries}."
            )
        rows = rng.permutation(pools[i])
        support.append(rows[:shots])
        query.append(rows[shots : shots + queries])
    return FewShot([int(i) for i in chosen], np.concatenate(support), np.concatenate(query))
