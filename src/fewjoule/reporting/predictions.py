"""predictions.safetensors of a run folder: what each method's meta-model says on a few of the new tasks.

Tensors, with t tasks, k samples to adapt on, q queries and s numbers of fine-tuning steps:

    support_x [t, k, ...], support_y [t, k, ...]    what a device adapts on, where an input is one number (else k = 0);
                                                    the target of padding is NaN, or the class -1
    query_x [t, q, ...], query_y [t, q, ...]        what it is asked afterwards, and the truth
    said/METHOD [s, t, q, ...]                      outputs (regression) or classes (classification)

`about` in the metadata is JSON with `steps` and `seed`.
docs/run-folder.md describes the file; a folder without it is whole too.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fewjoule.errors import InputError
from fewjoule.files import write_atomically

PREDICTIONS = "predictions.safetensors"
SAID = "said/"
LARGEST_BYTES = 64_000_000
"""Of the file: a thousand times what a study writes."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Predictions:
    """`said` has [s, t, q, ...] by method; `steps` are the s numbers of fine-tuning steps; all are of one seed."""

    steps: list[int]
    seed: int
    support_x: Array
    support_y: Array
    query_x: Array
    query_y: Array
    said: dict[str, Array]

    @property
    def classifies(self) -> bool:
        return self.query_y.dtype.kind == "i"

    def write(self, folder: Path) -> None:
        fields = ("support_x", "support_y", "query_x", "query_y")
        tensors = {name: getattr(self, name) for name in fields} | {SAID + n: a for n, a in self.said.items()}
        about = {"about": json.dumps({"steps": self.steps, "seed": self.seed})}  # one entry: several have no order
        packed = save({name: np.ascontiguousarray(array) for name, array in tensors.items()}, about)
        write_atomically(folder / PREDICTIONS, packed, force=True)

    @classmethod
    def read(cls, folder: Path) -> "Predictions | None":
        """None where the folder has no such file; a damaged one is an `InputError`."""
        path = folder / PREDICTIONS
        if not path.is_file():
            return None
        try:
            if path.stat().st_size > LARGEST_BYTES:
                raise ValueError(f"it has more than {LARGEST_BYTES} bytes")
            content = path.read_bytes()
            tensors, about = load(content), _metadata(content)
            said = {name.removeprefix(SAID): tensors.pop(name) for name in sorted(tensors) if name.startswith(SAID)}
            found = cls([int(s) for s in about["steps"]], int(about["seed"]), **tensors, said=said)
            found._check()
            return found
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
            why = " ".join(str(error).split())
            raise InputError(f"{path} cannot be used: {why}; delete it, or run the study again.") from error

    def _check(self) -> None:
        tasks, queries = self.query_x.shape[:2]
        shapes = {"query_y": self.query_y.shape[:2], "support": (tasks, *self.support_y.shape[1:2])}
        if shapes["query_y"] != (tasks, queries) or self.support_x.shape[:2] != shapes["support"] or not queries:
            raise ValueError("its samples do not fit together")
        for name, each in self.said.items():
            if each.shape != (len(self.steps), *self.query_y.shape):
                raise ValueError(f"what {name!r} said does not fit its queries")


def _metadata(content: bytes) -> dict[str, Any]:
    length = int.from_bytes(content[:8], "little")
    about: dict[str, Any] = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["about"])
    return about
