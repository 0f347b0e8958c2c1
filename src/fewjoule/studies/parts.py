"""A run's place on disk: its folder, and its finished stages, one file each, so that a stopped run goes on.

A part is arrays and a few facts as JSON, in one safetensors file that appears whole or not at all. The first part says
what the run was begun with, so that it is not continued with other data or settings.
"""

import itertools
import json
import platform
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import tomli_w
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fewjoule._version import __version__
from fewjoule.errors import InputError
from fewjoule.files import write_atomically
from fewjoule.studies.settings import Study, make_study, read_toml

BEGUN, PRETRAINING, PATHS = "begun", "pretraining", "paths"


def method_part(name: str) -> str:
    """The part of a study's method; never one of the other parts' names."""
    return f"method-{name}"


class Part(NamedTuple):
    """One finished stage."""

    arrays: dict[str, np.ndarray[Any, Any]]
    facts: dict[str, Any]


def packed(part: Part) -> bytes:
    """A part as a safetensors file."""
    tensors = {key: np.ascontiguousarray(array) for key, array in part.arrays.items()}
    return save(tensors, {"facts": json.dumps(part.facts)})


def unpacked(content: bytes) -> Part:
    """The part that `packed` made this of; `ValueError` and the like where it did not."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return Part(load(content), dict(json.loads(header["__metadata__"]["facts"])))


class Parts:
    """The parts in a folder, by name."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __contains__(self, name: str) -> bool:
        return self._path(name).is_file()

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.safetensors"

    def save(self, name: str, part: Part) -> None:
        write_atomically(self._path(name), packed(part), force=True)

    def load(self, name: str) -> Part:
        path = self._path(name)
        try:
            return unpacked(path.read_bytes())
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
            raise InputError(f"{path} is damaged ({error}); delete it and resume again.") from error

    def begin(self, digest: str) -> None:
        """Note what the run is begun with; refuse to go on with anything else."""
        if BEGUN not in self:
            self.save(BEGUN, Part({}, {"digest": digest}))
        elif self.load(BEGUN).facts.get("digest") != digest:
            raise InputError(
                f"{self._folder.parent} was begun with other data or settings than it finds now; put them back, or "
                "start a new run."
            )


def new_folder(study: Study, out: str | None) -> Path:
    """Create the run folder: `out`, or the first free of runs/NAME, runs/NAME-2, ..."""
    taken = InputError(f"{out} exists and is not empty; choose another --out, or continue with --resume {out}.")
    for number in itertools.count(1):
        folder = Path(out) if out else Path("runs") / (study.name if number == 1 else f"{study.name}-{number}")
        try:
            folder.mkdir(parents=True, exist_ok=out is not None)
            if any(folder.iterdir()):
                raise taken
            (folder / ".parts").mkdir()
            break
        except FileExistsError:  # somebody else was there first
            if out:
                raise taken from None
        except OSError as error:
            raise InputError(f"{folder} cannot be written to ({error.strerror}); choose another --out.") from error
    table = {**study.model_dump(mode="json", exclude_none=True), "host": host_facts()}
    try:
        write_atomically(folder / "study.toml", tomli_w.dumps(table).encode(), force=True)
    except InputError:
        shutil.rmtree(folder)  # it was empty
        raise
    return folder


def stopped_study(folder: Path, name: str | None) -> Study:
    """The study of a run that was stopped, from its folder; `name` must be its name, where given."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the run folder of a stopped run.")
    if not (folder / "study.toml").is_file():
        raise InputError(f"{folder} is not a run folder: it has no study.toml.")
    table = read_toml(folder / "study.toml")
    table.pop("host", None)
    study = make_study(table, str(folder / "study.toml"))
    if name is not None and name != study.name:
        raise InputError(f"{folder} holds the study {study.name!r}, not {name!r}; leave the name out to resume it.")
    if not (folder / ".parts").is_dir():
        raise InputError(f"{folder} holds a finished run; nothing is left to resume.")
    return study


def host_facts() -> dict[str, Any]:
    """What may differ between two runs of the same study."""
    return {
        "fewjoule": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
