"""Finished stages of a run, one file each, so that a stopped run goes on where it was.

A part is arrays (float32 kept exactly) and a few facts as JSON, in one npz file that appears whole or not at all.
"""

import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewjoule.errors import InputError
from fewjoule.files import write_atomically

PRETRAINING, PATHS = "pretraining", "paths"


def method_part(name: str) -> str:
    """The part of a study's method; never one of the other parts' names."""
    return f"method-{name}"


class Part(NamedTuple):
    """One finished stage."""

    arrays: dict[str, np.ndarray[Any, Any]]
    facts: dict[str, Any]


class Parts:
    """The parts in a folder, by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __contains__(self, name: str) -> bool:
        return self._path(name).is_file()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.npz"

    def save(self, name: str, part: Part) -> None:
        buffer = io.BytesIO()
        facts = np.frombuffer(json.dumps(part.facts).encode(), np.uint8)
        np.savez(buffer, allow_pickle=False, **{"facts.json": facts}, **part.arrays)
        write_atomically(self._path(name), buffer.getvalue(), force=True)

    def load(self, name: str) -> Part:
        path = self._path(name)
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {key: file[key] for key in file.files if key != "facts.json"}
                return Part(arrays, json.loads(file["facts.json"].tobytes()))
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{path} is damaged ({error}); delete it and resume again.") from error
