"""A site's state on disk: one block, written whole or not at all, bound to one run.

The block's note is JSON: the number of this format, plain values, the names of the arrays. A new state goes to a
temporary file that is renamed over the old one, so a process that dies at any moment leaves the old state or the new
one. A file that is damaged, of another run or of another format is refused with the reason; it is never used in part.
"""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pydantic

from fewjoule._version import __version__
from fewjoule.errors import InputError
from fewjoule.federation import blocks
from fewjoule.federation.blocks import KINDS, BlockError, Form

FORMAT = 2
"""Of what states hold; a release that changes that takes the next number. All releases with one number go on with each
other's states."""
LARGEST_BYTES = 4 << 30
SYNC_SECONDS = 2.0
_ANY: Mapping[str, Any] = MappingProxyType({})
_synced: dict[Path, float] = {}


class StateError(InputError):
    """A state file that cannot be used; the text ends with the cure."""


class State(NamedTuple):
    """Plain values (JSON) and named arrays of one site at one moment."""

    values: dict[str, Any]
    arrays: dict[str, np.ndarray]


def pack(kind: int, run: bytes, state: State) -> bytes:
    note = {"format": FORMAT, "fewjoule": __version__, "values": state.values, "arrays": list(state.arrays)}
    return blocks.pack(kind, run, json.dumps(note).encode(), list(state.arrays.values()))


def unpack(
    data: bytes, kind: int, run: bytes | None, values: Mapping[str, Any] = _ANY, forms: Mapping[str, Form] = _ANY
) -> State:
    """The state in these bytes; `BlockError` with the reason where they are not one. `run` None accepts any run.

    `values` are types, such as list[str], and `forms` those of arrays that it must have.
    """
    block = blocks.unpack(data, kind, run)
    try:
        note = json.loads(block.note)
    except (ValueError, RecursionError) as error:
        raise BlockError(f"its note is not JSON ({error})") from None
    table, names = (note.get("values"), note.get("arrays")) if isinstance(note, dict) else (None, None)
    if not isinstance(table, dict) or not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise BlockError("its note is not a table of values and names of arrays")
    if note.get("format") != FORMAT:
        wrote, found = (str(note.get(key))[:40] for key in ("fewjoule", "format"))
        raise BlockError(
            f"it has format {found}, written by fewjoule {wrote}, and fewjoule {__version__} reads format {FORMAT}; go "
            "on with the release that wrote it"
        )
    if not len(set(names)) == len(names) == len(block.arrays):
        raise BlockError(f"it names {len(set(names))} arrays and holds {len(block.arrays)}")
    arrays = dict(zip(names, block.arrays, strict=True))
    for name, due in values.items():
        try:
            pydantic.TypeAdapter(due).validate_python(table.get(name), strict=True)
        except pydantic.ValidationError:
            raise BlockError(f"its value {name!r} must be of type {getattr(due, '__name__', due)}") from None
    for name, form in forms.items():
        if name not in arrays or not blocks.form_of(arrays[name]).fits(form):
            raise BlockError(f"its array {name!r} must be {form}")
    return State(table, arrays)


def write_state(path: Path, kind: int, run: bytes, state: State) -> None:
    """Replace the state at `path`; folder 0700, file 0600.

    A file that a process wrote and renamed outlives that process. Against a loss of power it is forced to the disk too,
    at most every `SYNC_SECONDS`: forcing every round would cost more than the round.
    """
    body = pack(kind, run, state)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    is_new = not path.exists()
    if is_new:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with open(temporary, "wb", opener=private) as file:
            file.write(body)
            file.flush()  # all of it or an error; a write without a buffer may end half-way on a full disk
            if is_new or time.monotonic() - _synced.get(path, -SYNC_SECONDS) >= SYNC_SECONDS:
                os.fsync(file.fileno())
                _synced[path] = time.monotonic()
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if not is_new:
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name itself must outlive a loss of power
    finally:
        os.close(folder)


def private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def read_state(
    path: Path, kind: int, run: bytes, values: Mapping[str, Any] = _ANY, forms: Mapping[str, Form] = _ANY
) -> State | None:
    """The state at `path` as `unpack` gives it, or None where there is none."""
    try:
        with path.open("rb") as file:
            length = os.fstat(file.fileno()).st_size
            if length > LARGEST_BYTES:
                raise BlockError(f"a file of {length} bytes is not {KINDS[kind]}")
            return unpack(file.read(length), kind, run, values, forms)
    except FileNotFoundError:
        return None
    except BlockError as error:
        raise refusal(path, error) from None


def refusal(path: Path, why: BlockError) -> StateError:
    return StateError(
        f"state file {path.name} in {path.parent} refused: {why}; "
        "put back a good copy, or remove it and start a new run."
    )
