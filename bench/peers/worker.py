"""One side of a comparison, in its own process and environment: prepares a job, then runs it whenever it is told to.

It needs NumPy alone, so that it runs in every peer's environment. Lines go in by stdin ("run CALLS ROUNDS", "answer
FILE ROUNDS") and out by stdout, one JSON object each.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from importlib import metadata
from itertools import pairwise
from typing import Any

import numpy as np

Data = dict[str, np.ndarray]
Prepare = Callable[[Data], Callable[[int], Any]]
"""From a job's arrays to a function that does so many rounds of it, from the start, and gives the answer as NumPy sees
it. It may have an attribute `seconds`, what these rounds took, where it must start something anew for every call."""
MLP = {"sine": (1, 40, 40, 1), "digits": (784, 8, 8, 10)}


def layers(sizes: tuple[int, ...], vector: np.ndarray) -> list[np.ndarray]:
    """The flat start as weights [in, out] and biases, in turn."""
    out, at = [], 0
    for inputs, outputs in pairwise(sizes):
        out.append(vector[at : at + inputs * outputs].reshape(inputs, outputs))
        out.append(vector[at + inputs * outputs : at + inputs * outputs + outputs])
        at += inputs * outputs + outputs
    return out


@lru_cache
def loaded(file: str) -> Data:
    """A job's arrays."""
    return dict(np.load(file, allow_pickle=False))


def serve(jobs: dict[str, Prepare], packages: list[str]) -> None:
    """Do what the lines of stdin say: `python PEER.py JOB DATA.npz ROUNDS`."""
    said, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer

    def say(**line: Any) -> None:
        print(json.dumps(line), file=said, flush=True)

    job, file, rounds = sys.argv[1:4]
    data = loaded(file)
    before = time.perf_counter()
    run = jobs[job](data)
    run(int(rounds))
    first = time.perf_counter() - before
    say(first_seconds=first, versions={name: metadata.version(name) for name in packages})
    for line in sys.stdin:
        word, *arguments = line.split()
        if word == "run":
            seconds = 0.0
            for _ in range(int(arguments[0])):
                before = time.perf_counter()
                np.asarray(run(int(arguments[1])))
                seconds += getattr(run, "seconds", time.perf_counter() - before)
            say(seconds=seconds)
        elif word == "answer":
            np.save(arguments[0], np.asarray(run(int(arguments[1]))))
            say(saved=arguments[0])
