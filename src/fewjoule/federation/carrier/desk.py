"""What the operator may ask the server: one JSON request of a known form, one answer."""

import asyncio
import json
from collections.abc import Callable
from typing import Annotated, Any, Literal

import grpc
import pydantic
from pydantic import BaseModel, ConfigDict, Field

from fewjoule._version import __version__
from fewjoule.errors import InputError
from fewjoule.federation.carrier import frames
from fewjoule.federation.carrier.frames import Frame, FrameError, Joiner
from fewjoule.federation.carrier.gate import Refused, within
from fewjoule.federation.carrier.jobs import Job, Jobs
from fewjoule.federation.carrier.log import Log
from fewjoule.federation.carrier.streams import Streams
from fewjoule.federation.certificates import Identity
from fewjoule.federation.members import Members
from fewjoule.federation.spec import read_spec
from fewjoule.federation.trust import clean

LARGEST_REQUEST = 16 << 20
REQUEST_SECONDS = 30.0

JobId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Start(_Request):
    ask: Literal["start"]
    specs: Annotated[list[str], Field(min_length=1, max_length=10_000)]
    begun: bool = False


class Stop(_Request):
    ask: Literal["stop"]
    job: JobId


class Look(_Request):
    ask: Literal["job"]
    job: JobId


class Fetch(_Request):
    ask: Literal["fetch"]
    job: JobId
    number: Annotated[int, Field(ge=0, lt=10_000)]


class Status(_Request):
    ask: Literal["status"]


class NewMembers(_Request):
    ask: Literal["members"]
    members: Annotated[str, Field(max_length=4 << 20)]


_REQUEST: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(
    Annotated[Start | Stop | Look | Fetch | Status | NewMembers, Field(discriminator="ask")]
)


class Desk:
    """Answers the operator."""

    def __init__(
        self,
        federation: str,
        jobs: Jobs,
        streams: Streams,
        members: Callable[[], Members],
        accept: Callable[[bytes], Members],
        log: Log,
    ) -> None:
        self._federation, self._jobs, self._streams = federation, jobs, streams
        self._members, self._accept, self._log = members, accept, log
        self.peer = ""  # address and port of whoever asked last

    async def serve(self, identity: Identity, context: Any) -> None:
        self.peer = frames.peer_of(context)
        request = await within(REQUEST_SECONDS, self._read(context), "a request")
        try:
            parsed = _REQUEST.validate_json(request, strict=True)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])[:100]
            raise Refused("a request", f"it is of no known form ({clean(place)}: {first['type']})") from None
        if not isinstance(parsed, Status | Look):
            self._log.note("operator", name=identity.name, ask=parsed.ask, job=getattr(parsed, "job", ""))
        try:
            answer = await asyncio.to_thread(self._answer, parsed)
        except InputError as error:
            answer = Frame(frames.FAILED, 0, str(error).encode()[: frames.LONGEST_TEXT])
        for piece in frames.split(answer):
            await context.write(piece)

    async def _read(self, context: Any) -> bytes:
        def most(kind: int, call: int) -> int:
            if kind != frames.REQUEST:
                raise FrameError(f"a message of kind {kind}, a request was due")
            return LARGEST_REQUEST

        joiner = Joiner(most)
        while (piece := await context.read()) is not grpc.aio.EOF:
            try:
                frame = joiner.feed(piece)
            except FrameError as error:
                raise Refused("a request", str(error)) from None
            if frame is not None:
                return frame.body
        raise Refused("a request", "it has no end")

    def _answer(self, request: Any) -> Frame:
        if isinstance(request, Fetch):
            return Frame(frames.RESULT, 0, self._jobs.result(request.job, request.number))
        return Frame(frames.ANSWER, 0, json.dumps(self._facts(request)).encode())

    def _facts(self, request: Any) -> dict[str, Any]:
        if isinstance(request, Start):
            return {"job": self._start(request).id}
        if isinstance(request, Stop):
            return self._jobs.stop(request.job).describe()
        if isinstance(request, Look):
            return self._look(request.job)
        if isinstance(request, NewMembers):
            return {"version": self._accept(request.members.encode()).version}
        return self.status()

    def _look(self, id: str) -> dict[str, Any]:
        try:
            job = self._jobs.find(id).describe()
        except InputError as error:  # it ended before this server began
            return {"job": id, "state": "unknown", "reason": str(error), "progress": {}, "finished": 0}
        return {**job, "connected": [name for name in job["agents"] if self._streams[name] is not None]}

    def _start(self, request: Start) -> Job:
        strangers = sorted(set(read_spec(request.specs[0]).agents) - set(self._members().agents))
        if strangers and not request.begun:  # a run that began goes on by its policy
            raise InputError(f"not members of this federation: {clean(', '.join(strangers))}; start without them.")
        return self._jobs.start(request.specs, begun=request.begun)

    def status(self) -> dict[str, Any]:
        """Everything at a glance: who is connected, what runs, what was refused."""
        agents = {}
        for name in self._members().agents:
            stream = self._streams[name]
            agents[name] = None if stream is None else {"from": stream.peer, "since": stream.since}
        return {
            "fewjoule": __version__,
            "members": self._members().version,
            "certificates": {name: ends.timestamp() for name, ends in self._members().ends().items()},
            "federation": self._federation,
            "agents": agents,
            "jobs": self._jobs.describe(),
            "warnings": self._members().warnings(),
            "refused": self._log.refusals,
            "last_exchange": self._jobs.last_exchange(),
        }
