"""One side of a comparison, in its own process and environment: prepares a job, then runs it whenever it is told to.

It needs NumPy alone, so that it runs in every peer's environment. Lines go in by stdin ("run N", "answer FILE") and out
by stdout, one JSON object each.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from itertools import pairwise
from typing import Any

import numpy as np

Data = dict[str, np.ndarray]
Prepare = Callable[[Data], Callable[[], Any]]
"""From a job's arrays to a function that does the whole job and gives its answer, as NumPy sees it."""
MLP = {"sine": (1, 40, 40, 1), "digits": (784, 8, 8, 10)}


def layers(sizes: tuple[int, ...], vector: np.ndarray) -> list[np.ndarray]:
    """The flat start as weights [in, out] and biases, in turn."""
    out, at = [], 0
    for inputs, outputs in pairwise(sizes):
        out.append(vector[at : at + inputs * outputs].reshape(inputs, outputs))
        out.append(vector[at + inputs * outputs : at + inputs * outputs + outputs])
        at += inputs * outputs + outputs
    return out


def serve(jobs: dict[str, Prepare], packages: list[str]) -> None:
    """Do what the lines of stdin say: `python PEER.py JOB DATA.npz`."""
    said, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer

    def say(**line: Any) -> None:
        print(json.dumps(line), file=said, flush=True)

    job, file = sys.argv[1:3]
    data = dict(np.load(file, allow_pickle=False))
    before = time.perf_counter()
    run = jobs[job](data)
    answer = np.asarray(run())
    first = time.perf_counter() - before
    say(first_seconds=first, versions={name: metadata.version(name) for name in packages})
    for line in sys.stdin:
        word, argument = line.split()
        if word == "run":
            before = time.perf_counter()
            for _ in range(int(argument)):
                answer = np.asarray(run())
            say(seconds=time.perf_counter() - before)
        elif word == "answer":
            np.save(argument, answer)
            say(saved=argument)
