"""The server's drive speaks to connected agents through this: bytes to names, and what came back."""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from fewjoule.federation import wire
from fewjoule.federation.carrier import frames
from fewjoule.federation.carrier.streams import Streams
from fewjoule.federation.drive import Answers
from fewjoule.federation.spec import Contract


class StreamChannel:
    """`drive.Channel` over streams that live in the event loop of another thread."""

    def __init__(
        self, streams: Streams, loop: asyncio.AbstractEventLoop, agreed: Contract, stopping: Callable[[], bool]
    ) -> None:
        self._streams, self._loop = streams, loop
        self._agreed, self._stopping = agreed, stopping

    def agree(self, names: Iterable[str], spec: str, timeout_seconds: float) -> Answers:
        return self._ask(dict.fromkeys(names, spec.encode()), frames.AGREE, wire.size(()), timeout_seconds)

    def call(self, requests: Mapping[str, bytes], timeout_seconds: float) -> Answers:
        kinds = {wire.kind_of(request) for request in requests.values()}
        most = max((wire.size(self._agreed.reply_forms(kind)) for kind in kinds), default=0)
        return self._ask(requests, frames.HANDLE, most, timeout_seconds)

    def alive(self, names: Iterable[str]) -> set[str]:
        return {name for name in names if self._streams[name] is not None}

    def _ask(self, bodies: Mapping[str, bytes], kind: int, most: int, timeout_seconds: float) -> Answers:
        async def ask() -> Answers:
            if self._stopping():  # a wish that came before this; a later one wakes the streams
                return Answers({}, {})
            return await self._streams.ask(bodies, kind, most, timeout_seconds)

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result()
