"""Messages over a gRPC stream, in pieces that are no danger to memory.

    0    1  kind
    1    8  call: which question an answer belongs to
    9    8  length of the body
    17   -  the body, as far as it goes; the pieces that follow hold the rest, and nothing else

A receiver says how long a message with such a head may be before it takes anything of it.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

from fewjoule.federation.trust import clean

PIECE_BYTES = 1 << 20
_HEAD = struct.Struct("<BQQ")
LARGEST_PIECE = PIECE_BYTES + _HEAD.size

WELCOME, NOTICE, PING = 1, 2, 3  # either side: JSON facts of the server, a text for people, an empty question
AGREE, HANDLE = 4, 5  # to an agent: the text of a spec, a message of a run
ANSWER, FAILED, PONG = 6, 7, 8  # from an agent: its message, or why there is none; from the server to the operator too
REQUEST, RESULT = 9, 10  # the operator's JSON, and bytes for it
LONGEST_TEXT = 2000


class FrameError(ValueError):
    """Bytes that are no message, or not one that is due; the text is safe to log."""


class Frame(NamedTuple):
    """One message."""

    kind: int
    call: int = 0
    body: bytes = b""


def split(frame: Frame) -> Iterator[bytes]:
    """The pieces of a message, in order."""
    first = PIECE_BYTES
    yield _HEAD.pack(frame.kind, frame.call, len(frame.body)) + frame.body[:first]
    for start in range(first, len(frame.body), PIECE_BYTES):
        yield frame.body[start : start + PIECE_BYTES]


class Joiner:
    """Puts pieces together again. `most` gives the largest body for a kind and call, or raises `FrameError`."""

    def __init__(self, most: Callable[[int, int], int]) -> None:
        self._most = most
        self._head: tuple[int, int, int] | None = None
        self._body = bytearray()

    def feed(self, piece: bytes) -> Frame | None:
        """The message that this piece ends, or None where more is to come."""
        if self._head is None:
            if len(piece) < _HEAD.size:
                raise FrameError(f"{len(piece)} bytes are no message")
            kind, call, length = _HEAD.unpack_from(piece)
            most = self._most(kind, call)
            if length > most:
                raise FrameError(f"a message of {length} bytes where at most {most} are allowed")
            if len(piece) == _HEAD.size + length:
                return Frame(kind, call, piece[_HEAD.size :])
            self._head, piece = (kind, call, length), piece[_HEAD.size :]
        kind, call, length = self._head
        if not piece or len(self._body) + len(piece) > length:
            raise FrameError(f"pieces that do not fit a message of {length} bytes")
        self._body += piece
        if len(self._body) < length:
            return None
        frame = Frame(kind, call, bytes(self._body))
        self._head, self._body = None, bytearray()
        return frame


def text_of(body: bytes) -> str:
    """A text of the other side, for people."""
    return clean(body[:LONGEST_TEXT].decode(errors="replace"))


def peer_of(context: Any) -> str:
    """Address and port of the other end of a gRPC call, as people write them."""
    return clean(unquote(context.peer()).removeprefix("ipv4:").removeprefix("ipv6:"))
