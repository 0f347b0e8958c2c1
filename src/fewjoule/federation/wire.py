"""A message between server and agent: one block, whose note is the round, the agent and what the agent reports.

    0    4  round, from 0 (people are shown rounds from 1)
    4    4  agent (crc32 of its name; 0 from the server)
    8  176  the agent's report (zeros from the server): 9 numbers, the meter's kind, 96 bytes for its source

A receiver knows from the method what must arrive; anything else is refused.
"""

import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fewjoule.federation import blocks
from fewjoule.federation.blocks import BlockError, Form

_NOTE = struct.Struct("<II9dQ96s")
METER_KINDS = ("", "measured", "modelled", "analytic")
_SENDS_MODEL = 16  # a bit beside the meter's kind
EXCHANGES = {blocks.UPLOAD: "upload", blocks.PROBE: "probe", blocks.ROUND: "round", blocks.CLOSE: "close"}


class MessageError(ValueError):
    """A message that cannot be used; the text says why and is safe to log."""


class AgentReport(NamedTuple):
    """What an agent reports beside its arrays. Joules and seconds are of its own computation in this round."""

    loss: float = 0.0  # on its mini-batch
    distance: float = 0.0  # of its own model from the broadcast
    active: float = 0.0  # 1 where a projection moved it
    joules: float = 0.0
    seconds: float = 0.0
    bytes_sent: float = 0.0  # by its sockets to the server since this process began, TLS and framing included
    bytes_received: float = 0.0
    charged_bytes: float = 0.0  # what the link model charges for its message: codecs counted, framing not
    samples: float = 0.0  # how many it has, said at agreement where a method weighs agents by them
    kind: str = ""  # of the joules: measured, modelled or analytic
    source: str = ""  # of the joules, 96 bytes at most
    sends_model: bool = False  # its message is its own model, so the server can tell the agents' spread


_NUMBERS = AgentReport._fields[:9]


class Message(NamedTuple):
    kind: int
    run: bytes  # 16 bytes
    round: int
    agent: int  # 0 from the server
    arrays: tuple[np.ndarray, ...] = ()
    report: AgentReport = AgentReport()


def size(forms: Sequence[Form]) -> int:
    """Bytes of a message that holds these arrays; the most it can have where a form is a bound."""
    return blocks.size(forms, _NOTE.size)


def encode(message: Message) -> bytes:
    report = message.report
    source = report.source.encode()[:96].decode(errors="ignore").encode()  # never half a character
    code = METER_KINDS.index(report.kind) | (_SENDS_MODEL if report.sends_model else 0)
    note = _NOTE.pack(message.round, message.agent, *report[:9], code, source)
    return blocks.pack(message.kind, message.run, note, message.arrays)


def decode(
    data: Any, *, kind: int, run: bytes, forms: Sequence[Form], round: int | None = None, agent: int | None = None
) -> Message:
    """The message in `data`, which must be of this kind, run, round and agent and hold arrays of these forms."""
    try:
        block = blocks.unpack(data, kind, run, (forms, _NOTE.size))
    except BlockError as error:
        raise MessageError(f"message refused: {error}.") from None
    got_round, got_agent, *numbers, code, source = _NOTE.unpack(block.note)
    if round is not None and got_round != round:
        raise MessageError(f"the message is of round {got_round + 1}, round {round + 1} was due.")
    if agent is not None and got_agent != agent:
        raise MessageError(f"the message names agent {got_agent:08x}, it came from {agent:08x}.")
    return Message(kind, block.run, got_round, got_agent, block.arrays, _report(numbers, code, source))


def kind_of(data: Any) -> int:
    """The kind of what claims to be a message, to know which forms are due; `decode` checks all of it."""
    try:
        return blocks.kind_of(data)
    except BlockError as error:
        raise MessageError(f"message refused: {error}.") from None


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


def _report(numbers: list[float], code: int, source: bytes) -> AgentReport:
    values = dict(zip(_NUMBERS, numbers, strict=True))
    for name, value in values.items():
        # A loss or distance may overflow in a run that diverges; joules, seconds and bytes never do.
        if name not in ("loss", "distance") and not (math.isfinite(value) and value >= 0):
            raise MessageError(f"its reading of {name} must be a finite number of at least 0, got {value}.")
    kind = code & ~_SENDS_MODEL
    if kind >= len(METER_KINDS):
        raise MessageError(f"its meter has an unknown kind {kind}.")
    try:
        text = source.rstrip(b"\0").decode()
    except UnicodeDecodeError:
        raise MessageError("the source of its meter is not text.") from None
    if not text.isprintable():
        raise MessageError("the source of its meter is not printable.")
    return AgentReport(**values, kind=METER_KINDS[kind], source=text, sends_model=bool(code & _SENDS_MODEL))
