"""The operator's side of a connection: questions to the server, each with its answer."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from fewjoule.errors import InputError
from fewjoule.federation.carrier import frames
from fewjoule.federation.carrier.frames import Frame, FrameError, Joiner
from fewjoule.federation.carrier.tls import CLIENT_OPTIONS, OPERATOR_METHOD, channel_credentials, explain
from fewjoule.federation.kits import read_kit
from fewjoule.federation.state import LARGEST_BYTES

ASK_SECONDS = 30.0
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
LARGEST_ANSWER = 64 << 20


class Away(Exception):  # noqa: N818 - it is a state of the other side, not a mistake
    """The server cannot be reached just now."""


class Operator:
    """A connection to the server with the operator's kit. Every question may raise `Away`."""

    def __init__(self, folder: Path) -> None:
        self.kit = read_kit(folder, "operator")
        self._channel = grpc.secure_channel(self.kit.address, channel_credentials(self.kit), options=CLIENT_OPTIONS)
        self._call = self._channel.stream_stream(OPERATOR_METHOD)

    def close(self) -> None:
        self._channel.close()

    def await_server(self, tell: Callable[[str], None], patience_seconds: float | None = None) -> None:
        """Wait until the server answers, trying again with back-off while it is away."""
        pause, began = FIRST_PAUSE_SECONDS, time.monotonic()
        while True:
            try:
                self.status()
                return
            except Away as error:
                if patience_seconds is not None and time.monotonic() - began > patience_seconds:
                    raise InputError(f"{error}; start it with: fewjoule federation server KIT.") from None
                tell(f"{error}; trying again in {pause:.1f} s")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def status(self) -> dict[str, Any]:
        return self._facts({"ask": "status"})

    def start(self, specs: Sequence[str], begun: bool) -> str:
        """Have the server run these specs, or go on with them; the id of the job."""
        return str(self._facts({"ask": "start", "specs": list(specs), "begun": begun})["job"])

    def look(self, job: str) -> dict[str, Any]:
        return self._facts({"ask": "job", "job": job})

    def stop(self, job: str) -> None:
        self._facts({"ask": "stop", "job": job})

    def send_members(self, content: bytes) -> int:
        """Give the server a newer list of members; its number."""
        return int(self._facts({"ask": "members", "members": content.decode()})["version"])

    def fetch(self, job: str, number: int) -> bytes:
        return self._ask({"ask": "fetch", "job": job, "number": number}, frames.RESULT, LARGEST_BYTES)

    def _facts(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self._ask(request, frames.ANSWER, LARGEST_ANSWER)
        try:
            facts = json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise InputError(f"the server's answer cannot be read: {error}; use one release on all sites.") from None
        assert isinstance(facts, dict)
        return facts

    def _ask(self, request: dict[str, Any], kind: int, most: int) -> bytes:
        body = json.dumps(request).encode()
        try:
            frame = _joined(self._call(frames.split(Frame(frames.REQUEST, 0, body)), timeout=ASK_SECONDS), kind, most)
        except grpc.RpcError as error:
            why = explain(error.code(), error.details() or "", self.kit)
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise Away(why) from None
            raise InputError(f"{why}.") from None
        except FrameError as error:
            raise InputError(f"the server's answer is no good: {error}; use one release on all sites.") from None
        if frame.kind == frames.FAILED:
            raise InputError(frames.text_of(frame.body))
        return frame.body


def _joined(pieces: Iterator[bytes], kind: int, most: int) -> Frame:
    def limit(got: int, call: int) -> int:
        if got not in (kind, frames.FAILED):
            raise FrameError(f"a message of kind {got}")
        return most if got == kind else frames.LONGEST_TEXT

    joiner = Joiner(limit)
    for piece in pieces:
        if (frame := joiner.feed(piece)) is not None:
            return frame
    raise FrameError("it has no end")
