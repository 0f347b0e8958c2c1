"""The agents that are connected, one live stream each, and questions to them.

One question at a time is under way to an agent. Asking the same again waits for the same answer, so an agent that
computes for long is never asked, nor sent anything, twice; a question that was overtaken before it left is dropped.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

from fewjoule.federation.carrier import frames
from fewjoule.federation.carrier.frames import Frame, FrameError, Joiner
from fewjoule.federation.carrier.gate import Refused
from fewjoule.federation.carrier.log import Log
from fewjoule.federation.certificates import Identity
from fewjoule.federation.drive import Answers

PONG_SECONDS = 3.0
NOTICE_SECONDS = 1.0  # notices that come faster are dropped


@dataclass
class _Question:
    number: int
    kind: int
    body: bytes
    most: int  # bytes of the largest answer
    answer: "asyncio.Future[Frame]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Stream:
    """One agent's connection."""

    def __init__(self, identity: Identity, context: Any, log: Log) -> None:
        self.identity, self.since = identity, time.time()
        self.peer = frames.peer_of(context)
        self._context, self._log = context, log
        self._numbers = itertools.count(1)
        self._sending = asyncio.Lock()
        self._asked: _Question | None = None  # its answer is due, or waits to be taken
        self._next: _Question | None = None
        self._end: asyncio.Future[Refused] = asyncio.get_running_loop().create_future()
        self._pong = asyncio.Event()
        self._noticed = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, welcome: dict[str, Any]) -> None:
        """Read until the agent goes or is sent away; `Refused` for what was not due."""
        await self.send(Frame(frames.WELCOME, 0, json.dumps(welcome).encode()))
        reading = asyncio.ensure_future(self._read())
        try:
            both: list[asyncio.Future[Any]] = [reading, self._end]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if self._end.done():
                raise self._end.result()
            reading.result()
        finally:
            reading.cancel()
            for question in (self._asked, self._next):
                if question is not None:
                    question.answer.cancel()

    def close(self, why: Refused) -> None:
        if not self._end.done():
            self._end.set_result(why)

    async def send(self, frame: Frame) -> None:
        async with self._sending:
            for piece in frames.split(frame):
                await self._context.write(piece)

    def ask(self, kind: int, body: bytes, most: int) -> "asyncio.Future[Frame]":
        """The answer to a question; to one that is under way already, its answer."""
        for question in (self._asked, self._next):
            if question is not None and question.kind == kind and question.body == body:
                return question.answer
        question = self._next = _Question(next(self._numbers), kind, body, most)
        self._push()
        return question.answer

    def take(self, answer: "asyncio.Future[Frame]") -> None:
        """Forget a question whose answer was used."""
        if self._asked is not None and self._asked.answer is answer:
            self._asked = None

    async def is_there(self) -> bool:
        """Whether the agent's process answers at once."""
        self._pong.clear()
        try:
            await asyncio.wait_for(self.send(Frame(frames.PING)), PONG_SECONDS)
            await asyncio.wait_for(self._pong.wait(), PONG_SECONDS)
        except (TimeoutError, grpc.aio.UsageError, grpc.RpcError):
            return False
        return True

    def later(self, frame: Frame) -> None:
        """Send without waiting; a stream that is gone is told nothing."""

        async def send() -> None:
            try:
                await self.send(frame)
            except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
                self._log.note("not sent", agent=self.identity.name, why=str(error))

        task = asyncio.ensure_future(send())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _push(self) -> None:
        if self._next is not None and (self._asked is None or self._asked.answer.done()):
            self._asked, self._next = self._next, None
            self.later(Frame(self._asked.kind, self._asked.number, self._asked.body))

    async def _read(self) -> None:
        joiner = Joiner(self._most)
        while (piece := await self._context.read()) is not grpc.aio.EOF:
            try:
                frame = joiner.feed(piece)
            except FrameError as error:
                raise Refused("a message", str(error)) from None
            if frame is not None:
                self._got(frame)

    def _most(self, kind: int, call: int) -> int:
        """How long a message may be that begins like this; nothing is taken that was not asked for."""
        due = self._asked
        if kind in (frames.ANSWER, frames.FAILED) and due is not None and call == due.number and not due.answer.done():
            return due.most if kind == frames.ANSWER else frames.LONGEST_TEXT
        if kind in (frames.NOTICE, frames.PONG) and call == 0:
            return frames.LONGEST_TEXT if kind == frames.NOTICE else 0
        raise FrameError(f"a message of kind {kind} for question {call}, which is not due")

    def _got(self, frame: Frame) -> None:
        if frame.kind == frames.PONG:
            self._pong.set()
        elif frame.kind == frames.NOTICE:
            if time.monotonic() - self._noticed >= NOTICE_SECONDS:
                self._noticed = time.monotonic()
                self._log.say(f"agent {self.identity.name} says: {frames.text_of(frame.body)}")
        elif self._asked is not None and not self._asked.answer.done():
            self._asked.answer.set_result(frame)
            self._push()


class Streams:
    """All agents' streams by name."""

    def __init__(self, welcome: dict[str, Any], log: Log) -> None:
        self._live: dict[str, Stream] = {}
        self._welcome, self._log = welcome, log
        self._woken = asyncio.Event()
        self._changed = asyncio.Event()

    async def serve(self, identity: Identity, context: Any) -> None:
        """The life of one stream."""
        name = identity.name
        stream = Stream(identity, context, self._log)
        before = self._live.get(name)
        if before is not None and await before.is_there() and self._live.get(name) is before:
            before.later(
                Frame(frames.NOTICE, 0, f"a second machine connects with a copy of this kit: {stream.peer}".encode())
            )
            why = f"agent {name} is connected from {before.peer} already"
            raise Refused("a second connection with the same kit", why, grpc.StatusCode.ALREADY_EXISTS)
        if before is not None:
            before.close(Refused("a connection", "it does not answer, and the agent came again"))
        self._live[name] = stream
        self._change()
        self._log.say(f"agent {name} connected from {stream.peer}", serial=str(identity.serial))
        try:
            await stream.serve(self._welcome)
        finally:
            if self._live.get(name) is stream:
                del self._live[name]
                self._change()
            self._log.say(f"agent {name} is gone")

    def __getitem__(self, name: str) -> Stream | None:
        return self._live.get(name)

    def peers(self) -> set[str]:
        """Address and port of every live stream; for any thread."""
        return {stream.peer for stream in list(self._live.values())}

    def close_if(self, why: Callable[[Identity], str | None]) -> None:
        """Send those away for whom there is a reason to."""
        for stream in list(self._live.values()):
            if (reason := why(stream.identity)) is not None:
                stream.close(Refused("its stream", reason))

    def close_all(self, why: str) -> None:
        """Send everybody away for a while."""
        for stream in list(self._live.values()):
            stream.close(Refused("its stream", why, grpc.StatusCode.UNAVAILABLE))

    async def ask(self, bodies: Mapping[str, bytes], kind: int, most: int, timeout_seconds: float) -> Answers:
        """What these agents answer to what each is sent, in that time; who is lost or slow is left out."""
        asked = {
            name: (stream, stream.ask(kind, body, most))
            for name, body in bodies.items()
            if (stream := self._live.get(name))
        }
        if asked:
            await self._first(asyncio.wait([answer for _, answer in asked.values()]), self._woken, timeout_seconds)
        replies: dict[str, bytes] = {}
        errors: dict[str, str] = {}
        for name, (stream, answer) in asked.items():
            if answer.done() and not answer.cancelled():
                frame = answer.result()
                stream.take(answer)
                if frame.kind == frames.ANSWER:
                    replies[name] = frame.body
                else:
                    errors[name] = frames.text_of(frame.body)
        return Answers(replies, errors)

    async def changed(self, timeout_seconds: float) -> None:
        """Wait until somebody comes or goes, or `wake` is called."""
        await self._first(self._changed.wait(), self._woken, timeout_seconds)

    def wake(self) -> None:
        """End every wait at once."""
        self._woken.set()
        self._woken = asyncio.Event()

    async def _first(self, work: Any, event: asyncio.Event, timeout_seconds: float) -> None:
        tasks = [asyncio.ensure_future(work), asyncio.ensure_future(event.wait())]
        try:
            await asyncio.wait(tasks, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
