"""A site's state on disk: written whole or not at all, checksummed, bound to one run.

    0   4  magic "FJST"      8  16  run           32  JSON: version of the package, plain values, forms of the arrays
    4   2  version          24   4  JSON's length      the arrays, one after the other
    6   2  role             28   4  zero               32  BLAKE2b of everything before

A new state goes to a temporary file that is renamed over the old one, so a process that dies
at any moment leaves the old state or the new one. A file that is damaged, of another run or of another version is
refused with the reason; it is never used in part.
"""

import hashlib
import json
import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewjoule.errors import InputError
from fewjoule.federation.wire import DTYPES, Form, forms_of

MAGIC, VERSION = b"FJST", 1
AGENT, SERVER, RESULT = 1, 2, 3
ROLES = {AGENT: "an agent's state", SERVER: "the server's state", RESULT: "a result"}
LARGEST_BYTES = 4 << 30
_LARGEST_JSON = 16 << 20
_HEAD = struct.Struct("<4sHH16sI4x")
_DIGEST = 32


class StateError(InputError):
    """A state file that cannot be used; the text ends with the cure."""


class State(NamedTuple):
    """Plain values (JSON) and named arrays of one site at one moment."""

    values: dict[str, Any]
    arrays: dict[str, np.ndarray]


SYNC_SECONDS = 2.0
_synced: dict[Path, float] = {}


def write_state(path: Path, role: int, run: bytes, state: State) -> None:
    """Replace the state at `path`; folder 0700, file 0600.

    A file that a process wrote and renamed outlives that process. Against a loss of power it is forced to the disk too,
    at most every `SYNC_SECONDS`: forcing every round would cost more than the round.
    """
    body = pack(role, run, state)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    is_new = not path.exists()
    if is_new:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with open(temporary, "wb", opener=_private) as file:
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


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def read_state(path: Path, role: int, run: bytes) -> State | None:
    """The state at `path`, or None where there is none."""
    try:
        with path.open("rb") as file:
            length = os.fstat(file.fileno()).st_size
            if not _HEAD.size + _DIGEST <= length <= LARGEST_BYTES:
                raise _refuse(path, f"a file of {length} bytes is not {ROLES[role]}")
            body = file.read(length)
    except FileNotFoundError:
        return None
    try:
        return unpack(body, role, run)
    except ValueError as error:
        raise _refuse(path, str(error)) from None


def pack(role: int, run: bytes, state: State) -> bytes:
    from fewjoule._version import __version__

    arrays = {name: np.ascontiguousarray(a).reshape(np.shape(a)) for name, a in state.arrays.items()}
    forms = [[name, *form] for name, form in zip(arrays, forms_of(list(arrays.values())), strict=True)]
    for name, dtype, _ in forms:
        if dtype not in DTYPES:
            raise ValueError(f"state array {name!r} must be of a plain type, got {dtype}.")
    header = json.dumps({"fewjoule": __version__, "values": state.values, "arrays": forms}).encode()
    little = [a.astype(a.dtype.newbyteorder("<"), copy=False).tobytes() for a in arrays.values()]
    body = b"".join([_HEAD.pack(MAGIC, VERSION, role, run, len(header)), header, *little])
    return body + hashlib.blake2b(body, digest_size=_DIGEST).digest()


def unpack(body: bytes, role: int, run: bytes | None) -> State:
    """The state in these bytes; ValueError with the reason where they are not one. `run` None accepts any run."""
    if len(body) < _HEAD.size + _DIGEST:
        raise ValueError(f"{len(body)} bytes are too few")
    magic, version, got_role, got_run, header_length = _HEAD.unpack_from(body)
    if magic != MAGIC:
        raise ValueError(f"it begins with {magic!r}, not with {MAGIC!r}")
    if version != VERSION:
        raise ValueError(f"it has version {version}, this release reads version {VERSION}")
    if hashlib.blake2b(memoryview(body)[:-_DIGEST], digest_size=_DIGEST).digest() != body[-_DIGEST:]:
        raise ValueError("it is damaged: its checksum does not match")
    if got_role != role:
        raise ValueError(f"it is {ROLES.get(got_role, 'unknown')}, not {ROLES[role]}")
    if run is not None and got_run != run:
        raise ValueError(f"it belongs to run {got_run.hex()}, this is run {run.hex()}")
    start = _HEAD.size + header_length
    if header_length > _LARGEST_JSON or start + _DIGEST > len(body):
        raise ValueError(f"its header of {header_length} bytes does not fit")
    header = json.loads(body[_HEAD.size : start])
    return State(_values(header), _arrays(header, memoryview(body)[start:-_DIGEST]))


def _values(header: Any) -> dict[str, Any]:
    from fewjoule._version import __version__

    if not isinstance(header, Mapping) or not isinstance(header.get("values"), dict):
        raise ValueError("its header is not a table of values")
    if header.get("fewjoule") != __version__:
        raise ValueError(f"it was written by fewjoule {header.get('fewjoule')}, this is {__version__}")
    values: dict[str, Any] = header["values"]
    return values


def _arrays(header: Any, raw: memoryview) -> dict[str, np.ndarray]:
    arrays, at = {}, 0
    table = header.get("arrays")
    for row in table if isinstance(table, list) else [None]:
        if not isinstance(row, list) or len(row) != 3 or not isinstance(row[2], list):
            raise ValueError("its table of arrays cannot be read")
        name, dtype, shape = row
        if dtype not in DTYPES or not all(isinstance(n, int) and n >= 0 for n in shape):
            raise ValueError(f"its array {name!r} has an unknown form")
        form = Form(dtype, tuple(shape))
        if at + form.nbytes > len(raw):
            raise ValueError(f"its array {name!r} does not fit")
        part = np.frombuffer(raw[at : at + form.nbytes], np.dtype(dtype).newbyteorder("<"))
        arrays[name] = part.reshape(form.shape).astype(dtype)
        at += form.nbytes
    if at != len(raw):
        raise ValueError(f"{len(raw) - at} bytes follow its arrays")
    return arrays


def _refuse(path: Path, reason: str) -> StateError:
    return StateError(
        f"state file {path.name} in {path.parent} refused: {reason}; "
        "put back a good copy, or remove it and start a new run."
    )
