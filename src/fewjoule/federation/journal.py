"""Rows in a file that only grows, so that what an exchange writes does not depend on how many came before it.

    4 bytes  length of the block          one row after the other
             block of kind ROW            values and arrays, with a checksum, bound to one run

The newest rows wait in the server's state, which is written whole or not at all. Where they are more than
`MOST_PENDING_BYTES` they move here, forced to the disk before a state is written that no longer holds them. That state
says how long this file is: what lies behind is the torn tail of a writer that died, and the next rows go over it.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fewjoule.federation import blocks
from fewjoule.federation.blocks import BlockError, Form
from fewjoule.federation.state import State, StateError, pack, private, unpack

MOST_PENDING_BYTES = 1 << 15
_LENGTH = struct.Struct("<I")


def encode_row(run: bytes, row: State) -> bytes:
    body = pack(blocks.ROW, run, row)
    return _LENGTH.pack(len(body)) + body


def decode_rows(data: bytes, run: bytes, values: Mapping[str, Any], forms: Mapping[str, Form]) -> Iterator[State]:
    """The rows in these bytes, each with the values and arrays that are due; `BlockError` where they are not whole."""
    at, view = 0, memoryview(data)
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise BlockError(f"it ends within a row, at byte {at}")
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if at + length > len(data):
            raise BlockError(f"it ends within a row, at byte {at}")
        yield unpack(bytes(view[at : at + length]), blocks.ROW, run, values, forms)
        at += length


def append(path: Path, at: int, rows: bytes) -> int:
    """Put rows at byte `at`, over whatever a writer that died left there, and on the disk; where they end."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(path, "ab", opener=private) as file:
        file.truncate(at)  # in this mode writing is at the end
        file.write(rows)
        file.flush()
        os.fsync(file.fileno())
    return at + len(rows)


def read(path: Path, length: int) -> bytes:
    """The first `length` bytes of the rows' file, which are known to be whole."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno()).st_size
            data = file.read(length) if found >= length else b""
    except FileNotFoundError:
        found, data = 0, b""
    if found < length:
        raise StateError(
            f"{path.name} in {path.parent} has {found} bytes, its state counts on {length}; put back a good copy of "
            "both files, or remove both and start a new run."
        )
    return data
