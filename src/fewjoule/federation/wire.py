"""A message as bytes: flat arrays in a fixed, versioned, little-endian form. Nothing in it is ever executed.

    0    4  magic "FJMW"          28   4  agent (crc32 of its name; 0 from the server)
    4    2  version               32   8  length of the whole message
    6    1  kind                  40 168  reading (zeros from the server)
    7    1  number of arrays     208      20 per array: dtype, axes, 2 zero bytes, 4 sides
    8   16  run                           the arrays, one after the other
    24   4  round                         16  BLAKE2b of everything before

A receiver knows from the method what must arrive. `decode` compares the length with that before it looks at anything
else, and the arrays it returns are views of the bytes received: a wrong message can cost no memory of its own.
"""

import hashlib
import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

MAGIC, VERSION = b"FJMW", 1
_HEAD = struct.Struct("<4sHBB16sIIQ")
_READING = struct.Struct("<ddddddddQ96s")
_ARRAY = struct.Struct("<BB2xIIII")
_DIGEST = 16
DTYPES = ("float32", "int32", "uint32", "uint8", "bool", "float64", "int64", "float16", "int8", "uint16", "int16")
_NAMES = {np.dtype(name): name for name in DTYPES}  # numpy spells a type's name out anew every time
METER_KINDS = ("", "measured", "modelled", "analytic")

AGREE, UPLOAD, PROBE, ROUND, CLOSE = 1, 2, 3, 4, 5
KINDS = {AGREE: "agree", UPLOAD: "upload", PROBE: "probe", ROUND: "round", CLOSE: "close"}


class MessageError(ValueError):
    """A message that cannot be used; the text says why and is safe to log."""


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

    def fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == 1 and shape[0] <= -self.shape[0] if self.is_bound else shape == self.shape


class Reading(NamedTuple):
    """What an agent reports beside its arrays. Joules and seconds are of its own computation in this round."""

    loss: float = 0.0  # on its mini-batch
    distance: float = 0.0  # of its own model from the broadcast
    active: float = 0.0  # 1 where a projection moved it
    joules: float = 0.0
    seconds: float = 0.0
    bytes_sent: float = 0.0  # by its sockets to the server since this process began, TLS and framing included
    bytes_received: float = 0.0
    charged_bytes: float = 0.0  # what the link model charges for its message: codecs counted, framing not
    kind: str = ""  # of the joules: measured, modelled or analytic
    source: str = ""  # of the joules, 96 bytes at most
    sends_model: bool = False  # its message is its own model, so the server can tell the agents' spread


class Message(NamedTuple):
    kind: int
    run: bytes  # 16 bytes
    round: int
    agent: int  # 0 from the server
    arrays: tuple[np.ndarray, ...] = ()
    reading: Reading = Reading()


def size(forms: Sequence[Form]) -> int:
    """Bytes of a message that holds these arrays; the most it can have where a form is a bound."""
    return _HEAD.size + _READING.size + len(forms) * _ARRAY.size + sum(f.nbytes for f in forms) + _DIGEST


def forms_of(arrays: Sequence[np.ndarray]) -> tuple[Form, ...]:
    return tuple(Form(_NAMES.get(a.dtype) or str(a.dtype), tuple(a.shape)) for a in arrays)


def encode(message: Message) -> bytes:
    arrays = [np.asarray(a) for a in message.arrays]
    forms = forms_of(arrays)
    if len(message.run) != 16 or len(forms) > 255:
        raise ValueError(f"a run is 16 bytes and at most 255 arrays, got {len(message.run)} and {len(forms)}.")
    parts = [
        _HEAD.pack(MAGIC, VERSION, message.kind, len(forms), message.run, message.round, message.agent, size(forms)),
        _pack_reading(message.reading),
    ]
    for form in forms:
        if form.dtype not in DTYPES or len(form.shape) > 4:
            raise ValueError(f"an array on the wire has up to 4 axes of a plain type, got {form.dtype}{form.shape}.")
        sides = (*form.shape, 0, 0, 0, 0)[:4]
        parts.append(_ARRAY.pack(DTYPES.index(form.dtype), len(form.shape), *sides))
    parts += [np.ascontiguousarray(a).astype(a.dtype.newbyteorder("<"), copy=False).tobytes() for a in arrays]
    body = b"".join(parts)
    return body + hashlib.blake2b(body, digest_size=_DIGEST).digest()


def decode(
    data: bytes,
    *,
    kind: int,
    run: bytes,
    forms: Sequence[Form],
    round: int | None = None,
    agent: int | None = None,
) -> Message:
    """The message in `data`, which must be of this kind, run, round and agent and hold arrays of these forms."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise MessageError(f"a message must be bytes, got {type(data).__name__}.")
    most = size(forms)
    least = most - sum(form.nbytes for form in forms if form.is_bound)
    if not least <= len(data) <= most:
        due = str(most) if least == most else f"{least} to {most}"
        raise MessageError(f"a {KINDS[kind]} message of this run has {due} bytes, got {len(data)}.")
    view = memoryview(data)
    magic, version, got_kind, count, got_run, got_round, got_agent, length = _HEAD.unpack_from(view)
    if magic != MAGIC:
        raise MessageError(f"not a fewjoule message: it begins with {bytes(magic)!r}.")
    if version != VERSION:
        raise MessageError(
            f"message version {version} cannot be read here, only {VERSION}; use one release on all sites."
        )
    if hashlib.blake2b(view[:-_DIGEST], digest_size=_DIGEST).digest() != view[-_DIGEST:]:
        raise MessageError("the message is damaged: its checksum does not match.")
    if length != len(data):
        raise MessageError(f"the message says it has {length} bytes, got {len(data)}.")
    if got_kind != kind:
        raise MessageError(f"a {KINDS[kind]} message was due, got {KINDS.get(got_kind, got_kind)}.")
    if got_run != run:
        raise MessageError(f"the message belongs to run {got_run.hex()}, this is run {run.hex()}.")
    if round is not None and got_round != round:
        raise MessageError(f"the message is of round {got_round}, round {round} was due.")
    if agent is not None and got_agent != agent:
        raise MessageError(f"the message names agent {got_agent:08x}, it came from {agent:08x}.")
    if count != len(forms):
        raise MessageError(f"{len(forms)} arrays were due, got {count}.")
    reading = _unpack_reading(view)
    found = [_form(view, i, form) for i, form in enumerate(forms)]
    if size(found) != len(data):
        raise MessageError(f"its arrays fill a message of {size(found)} bytes, got {len(data)}.")
    arrays, at = [], _HEAD.size + _READING.size + count * _ARRAY.size
    for form in found:
        arrays.append(_view(view[at : at + form.nbytes], form))
        at += form.nbytes
    return Message(got_kind, bytes(got_run), got_round, got_agent, tuple(arrays), reading)


def digest(data: bytes) -> bytes:
    """The 16 bytes that stand for a message that `decode` has accepted: its own checksum."""
    return bytes(data[-_DIGEST:])


def peek(data: bytes) -> tuple[int, int]:
    """Kind and round of what claims to be a message, to know which forms are due; `decode` checks all of it."""
    if not isinstance(data, bytes | bytearray | memoryview) or len(data) < _HEAD.size:
        raise MessageError("not a fewjoule message: it is too short.")
    magic, version, kind, _, _, round, _, _ = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise MessageError(f"not a fewjoule message: it begins with {bytes(magic)!r}.")
    if version != VERSION:
        raise MessageError(
            f"message version {version} cannot be read here, only {VERSION}; use one release on all sites."
        )
    if kind not in KINDS:
        raise MessageError(f"unknown kind of message {kind}.")
    return kind, round


def check_values(arrays: Sequence[np.ndarray], largest_norm: float) -> None:
    """Refuse NaN, infinity and a norm above `largest_norm`."""
    for array in arrays:
        if array.dtype.kind != "f":
            continue
        flat = array.ravel()
        with np.errstate(over="ignore", invalid="ignore"):
            rough = float(np.dot(flat, flat))
        if rough <= 0.98 * largest_norm**2:  # only finite values have a finite sum of squares
            continue
        bad = array.size - int(np.isfinite(array).sum())
        if bad:
            raise MessageError(f"{bad} of {array.size} values are NaN or infinite.")
        norm = float(np.linalg.norm(flat.astype(np.float64)))
        if norm > largest_norm:
            raise MessageError(f"its norm {norm:.3g} is above the largest allowed, {largest_norm:.3g}.")


def _form(view: memoryview, i: int, due: Form) -> Form:
    code, axes, *sides = _ARRAY.unpack_from(view, _HEAD.size + _READING.size + i * _ARRAY.size)
    got = Form(DTYPES[code] if code < len(DTYPES) else f"type {code}", tuple(sides[:axes]))
    if got.dtype != due.dtype or not due.fits(got.shape):
        raise MessageError(f"array {i} must be {due.dtype}{list(due.shape)}, got {got.dtype}{list(got.shape)}.")
    return got


def _view(raw: memoryview, form: Form) -> np.ndarray:
    if form.dtype == "bool" and any(b > 1 for b in raw):
        raise MessageError("a bool array holds a byte that is neither 0 nor 1.")
    little = np.dtype(form.dtype).newbyteorder("<")
    return np.frombuffer(raw, little).reshape(form.shape).astype(form.dtype, copy=False)


def _pack_reading(r: Reading) -> bytes:
    source = r.source.encode()[:96].decode(errors="ignore").encode()  # never half a character
    kind = METER_KINDS.index(r.kind) | (16 if r.sends_model else 0)
    return _READING.pack(
        r.loss, r.distance, r.active, r.joules, r.seconds, r.bytes_sent, r.bytes_received, r.charged_bytes, kind, source
    )


def _unpack_reading(view: memoryview) -> Reading:
    *numbers, code, source = _READING.unpack_from(view, _HEAD.size)
    sends_model, kind = bool(code & 16), code & ~16
    names = Reading._fields[:8]
    for name, value in zip(names, numbers, strict=True):
        # A loss or distance may overflow in a run that diverges; joules, seconds and bytes never do.
        if name not in ("loss", "distance") and not (math.isfinite(value) and value >= 0):
            raise MessageError(f"its reading of {name} must be a finite number of at least 0, got {value}.")
    if kind >= len(METER_KINDS):
        raise MessageError(f"its meter has an unknown kind {kind}.")
    try:
        text = source.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        raise MessageError("the source of its meter is not text.") from None
    if not all(c.isprintable() for c in text):
        raise MessageError("the source of its meter is not printable.")
    values = dict(zip(names, numbers, strict=True))
    return Reading(**values, kind=METER_KINDS[kind], source=text, sends_model=sends_model)
