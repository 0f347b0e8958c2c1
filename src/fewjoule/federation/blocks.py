"""Arrays and a note as one block of bytes: the form of messages, state files and results. Nothing in it is executed.

    0    4  magic "FJBL"          24   4  length of the note
    4    2  version               28      the note: what this kind keeps beside its arrays
    6    1  kind                          20 per array: type, axes, 2 zero bytes, 4 sides
    7    1  number of arrays              the arrays, one after the other, little-endian
    8   16  run                           16  BLAKE2b of everything before

A receiver says what is due. Lengths are compared before anything else is looked at, and arrays are views of the bytes
received: a wrong block costs no memory of its own.
"""

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

MAGIC, VERSION = b"FJBL", 4
DTYPES = ("float32", "int32", "uint32", "uint8", "bool", "float64", "int64", "float16", "int8", "uint16", "int16")
_NAMES = {np.dtype(name): name for name in DTYPES}  # numpy spells a type's name out anew every time
_HEAD = struct.Struct("<4sHBB16sI")
_FORM = struct.Struct("<BB2x4I")
_DIGEST = 16
LARGEST_SIDE = 2**32 - 1

AGREE, UPLOAD, PROBE, ROUND, CLOSE, AGENT, SERVER, RESULT, ROW, CHANGE = range(1, 11)
_MESSAGES = ("an agree message", "an upload message", "a probe message", "a round message", "a close message")
_FILES = ("an agent's state", "the server's state", "a result", "a row of the server's")
KINDS = dict(enumerate((*_MESSAGES, *_FILES, "a change message"), 1))


class BlockError(ValueError):
    """Bytes that are not the block that is due; the text says why and is safe to log."""


class Form(NamedTuple):
    """Type and shape of one array, as both sides know it beforehand; shape (-n,) is any length up to n."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return abs(math.prod(self.shape)) * np.dtype(self.dtype).itemsize

    @property
    def is_bound(self) -> bool:
        return len(self.shape) == 1 and self.shape[0] < 0

    def fits(self, due: "Form") -> bool:
        bounded = due.is_bound and len(self.shape) == 1 and self.shape[0] <= -due.shape[0]
        return self.dtype == due.dtype and (bounded or self.shape == due.shape)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Block(NamedTuple):
    run: bytes
    note: bytes
    arrays: tuple[np.ndarray, ...]


def form_of(array: Any) -> Form:
    """The form of an array, or of anything that has a type and a shape."""
    return Form(_NAMES.get(array.dtype) or str(array.dtype), tuple(array.shape))


def size(forms: Sequence[Form], note_bytes: int) -> int:
    """Bytes of a block that holds these arrays; the most it can have where a form is a bound."""
    return _HEAD.size + note_bytes + sum(_FORM.size + form.nbytes for form in forms) + _DIGEST


def pack(kind: int, run: bytes, note: bytes, arrays: Sequence[Any]) -> bytes:
    given = [np.asarray(array) for array in arrays]
    if len(run) != 16 or len(given) > 255:
        raise ValueError(f"a block has a run of 16 bytes and at most 255 arrays, got {len(run)} and {len(given)}.")
    parts = [_HEAD.pack(MAGIC, VERSION, kind, len(given), run, len(note)), note]
    for form in map(form_of, given):
        if form.dtype not in DTYPES or len(form.shape) > 4:
            raise ValueError(f"an array in a block has up to 4 axes of a plain type, got {form}.")
        parts.append(_FORM.pack(DTYPES.index(form.dtype), len(form.shape), *(*form.shape, 0, 0, 0, 0)[:4]))
    parts += [a.astype(a.dtype.newbyteorder("<"), copy=False).tobytes() for a in given]
    body = b"".join(parts)
    return body + _checksum(body)


def unpack(data: Any, kind: int, run: bytes | None, due: tuple[Sequence[Form], int] | None = None) -> Block:
    """The block in `data`, which must be of this kind; where they are given, of this run, and with the arrays and the
    length of the note that are `due`."""
    forms, note_bytes = (None, None) if due is None else due
    if forms is not None and note_bytes is not None and _is_bytes(data):
        most = size(forms, note_bytes)
        least = most - sum(form.nbytes for form in forms if form.is_bound)
        if not least <= len(data) <= most:
            span = str(most) if least == most else f"{least} to {most}"
            raise BlockError(f"{KINDS[kind]} of this run has {span} bytes, got {len(data)}")
    got_kind, count, got_run, noted = _read_head(data)
    view = memoryview(data)
    if _checksum(view[:-_DIGEST]) != view[-_DIGEST:]:
        raise BlockError("it is damaged: its checksum does not match")
    if got_kind != kind:
        raise BlockError(f"it is {KINDS.get(got_kind, f'of kind {got_kind}')}, not {KINDS[kind]}")
    if run is not None and got_run != run:
        raise BlockError(f"it belongs to run {got_run.hex()}, this is run {run.hex()}")
    if forms is not None and (count, noted) != (len(forms), note_bytes):
        raise BlockError(f"{len(forms)} arrays and a note of {note_bytes} bytes were due, got {count} and {noted}")
    at = _HEAD.size + noted
    if at + count * _FORM.size + _DIGEST > len(data):
        raise BlockError(f"its note of {noted} bytes and {count} arrays do not fit")
    found = [_read_form(view, at + i * _FORM.size) for i in range(count)]
    for i, (form, wanted) in enumerate(zip(found, found if forms is None else forms, strict=True)):
        if not form.fits(wanted):
            raise BlockError(f"array {i} must be {wanted}, got {form}")
    if size(found, noted) != len(data):
        raise BlockError(f"its arrays fill {size(found, noted)} bytes, got {len(data)}")
    return Block(got_run, bytes(view[_HEAD.size : at]), _views(view, at + count * _FORM.size, found))


def kind_of(data: Any) -> int:
    """The kind of what claims to be a block, to know what is due; `unpack` checks all of it."""
    return _read_head(data)[0]


def digest(data: bytes) -> bytes:
    """The 16 bytes that stand for a block that `unpack` has accepted: its own checksum."""
    return bytes(data[-_DIGEST:])


def _is_bytes(data: Any) -> bool:
    return isinstance(data, bytes | bytearray | memoryview)


def _checksum(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=_DIGEST).digest()


def _read_head(data: Any) -> tuple[int, int, bytes, int]:
    """Kind, number of arrays, run and length of the note."""
    if not _is_bytes(data):
        raise BlockError(f"it must be bytes, got {type(data).__name__}")
    if len(data) < _HEAD.size + _DIGEST:
        raise BlockError(f"{len(data)} bytes are too few")
    magic, version, *rest = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise BlockError(f"it begins with {magic!r}, not with {MAGIC!r}")
    if version != VERSION:
        raise BlockError(f"version {version} cannot be read here, only {VERSION}; use one release on all sites")
    return tuple(rest)


def _read_form(view: memoryview, at: int) -> Form:
    code, axes, *sides = _FORM.unpack_from(view, at)
    if code >= len(DTYPES) or axes > len(sides):
        raise BlockError(f"one of its arrays has the unknown type {code} or {axes} axes")
    return Form(DTYPES[code], tuple(sides[:axes]))


def _views(view: memoryview, at: int, forms: Sequence[Form]) -> tuple[np.ndarray, ...]:
    """The arrays that begin at `at`; their forms fill what is left of the block."""
    arrays = []
    for form in forms:
        try:
            array: np.ndarray = np.ndarray(form.shape, np.dtype(form.dtype).newbyteorder("<"), view, at)
        except (ValueError, OverflowError):  # a side of 0 beside sides beyond any memory
            raise BlockError(f"one of its arrays has the impossible form {form}") from None
        if form.dtype == "bool" and array.view(np.uint8).max(initial=0) > 1:
            raise BlockError("a bool array holds a byte that is neither 0 nor 1")
        arrays.append(array.astype(form.dtype, copy=False))
        at += form.nbytes
    return tuple(arrays)
