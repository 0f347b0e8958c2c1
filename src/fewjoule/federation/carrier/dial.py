"""The agent's process: it dials out to its server, answers one question after the other, and comes back by itself.

It listens on no port. Whatever it is asked comes from a server that showed a certificate of its federation's root, for
serving, with the host name of the kit.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from fewjoule.errors import InputError
from fewjoule.federation import wire
from fewjoule.federation.agent import AgentRunner
from fewjoule.federation.carrier import frames
from fewjoule.federation.carrier.frames import Frame, FrameError, Joiner
from fewjoule.federation.carrier.log import Log
from fewjoule.federation.carrier.site import Site, agent_home, agent_meter, check_files
from fewjoule.federation.carrier.tls import AGENT_METHOD, CLIENT_OPTIONS, channel_credentials, explain
from fewjoule.federation.carrier.traffic import Traffic
from fewjoule.federation.consent import Check, consent_in
from fewjoule.federation.kits import Kit, read_kit
from fewjoule.federation.patience import Asked, patiently
from fewjoule.federation.spec import LARGEST_TEXT
from fewjoule.federation.trust import clean
from fewjoule.files import locked, use_compile_cache

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 15.0
Send = Callable[[Frame], Coroutine[Any, Any, None]]
_MOST = {frames.AGREE: LARGEST_TEXT, frames.WELCOME: 2000, frames.NOTICE: frames.LONGEST_TEXT, frames.PING: 0}


def run_agent(folder: Path, site: Site, consent: Path | None = None) -> int:
    """Answer the server until SIGINT or SIGTERM; 0 after a clean end. `consent` is the owner's file."""
    os.umask(0o077)  # nothing that this process writes is for others
    kit = read_kit(folder, "agent")
    with locked(folder / ".lock", f"{folder} is already running on this machine; stop that one first."):
        _prepare_jax()
        samples = check_files(site)  # a mistake in the files shows now, not when a run begins
        meter, source = agent_meter(site)
        check: Check = consent_in(consent) if consent is not None else lambda spec, agreed: None
        log = Log(folder)
        log.say(f"agent {site.name}: {samples} samples, server {kit.address}")
        log.say(f"energy: {source}")
        runner = AgentRunner(
            site.name, agent_home(site), folder / "state", meter=meter, traffic=Traffic(kit.facts.port),
            consent=check,
        )  # fmt: skip
        is_idle = asyncio.run(_Agent(folder, runner, log).run())
    if not is_idle:  # in the middle of a long computation, which a restarted agent does again
        sys.stdout.flush()
        os._exit(0)
    return 0


def _prepare_jax() -> None:
    """Compute in the calling thread: handing a short round to another one would cost more than the round."""
    import jax

    jax.config.update("jax_cpu_enable_async_dispatch", False)  # type: ignore[no-untyped-call]
    use_compile_cache()


class _Ended(Exception):  # noqa: N818 - it is what connections do
    """The connection is over; `code` and `details` are gRPC's."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


class _Agent:
    """Dials again and again; one worker thread answers, however many connections come and go."""

    def __init__(self, folder: Path, runner: AgentRunner, log: Log) -> None:
        self._folder, self._runner, self._log = folder, runner, log
        self._worker = ThreadPoolExecutor(1, "answers")
        self._ending = threading.Event()
        self._busy = False
        self._pause = FIRST_PAUSE_SECONDS
        self._told = ""

    async def run(self) -> bool:
        """Until a signal; whether no answer was under way at the end."""
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        tasks = [asyncio.ensure_future(self._dial_for_ever()), asyncio.ensure_future(stop.wait())]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        self._ending.set()
        self._worker.shutdown(wait=False, cancel_futures=True)
        failed = tasks[0].exception() if tasks[0].done() else None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if failed is not None:
            raise failed
        self._log.say("stopped")
        return not self._busy

    def _tell(self, line: str) -> None:
        """Say where things stand, once for each change."""
        if line != self._told:
            self._told = line
            self._log.say(line)

    async def _dial_for_ever(self) -> None:
        while True:
            try:
                kit = read_kit(self._folder, "agent")  # anew each time: it may have been renewed
                await self._session(kit)
            except InputError as error:
                self._tell(str(error))
            except FrameError as error:
                self._tell(f"refused: the server sent {error}; trying again")
            except _Ended as end:
                self._log.note("connection", code=end.code.name, details=clean(end.details))
                self._tell(f"{explain(end.code, end.details, kit)}; trying again")
            await asyncio.sleep(self._pause * random.uniform(0.75, 1.25))  # so that not all come at once
            self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)

    async def _session(self, kit: Kit) -> None:
        """One connection, from its welcome to its end, which `_Ended` tells."""
        answers: set[asyncio.Task[None]] = set()
        credentials, joiner = channel_credentials(kit), Joiner(self._most)
        async with grpc.aio.secure_channel(kit.address, credentials, options=CLIENT_OPTIONS) as channel:
            call = channel.stream_stream(AGENT_METHOD)()
            send = _sender(call)
            try:
                while (piece := await call.read()) is not grpc.aio.EOF:
                    if (frame := joiner.feed(piece)) is not None:
                        task = asyncio.ensure_future(self._take(frame, kit, send))
                        answers.add(task)
                        task.add_done_callback(answers.discard)
                raise _Ended(await call.code(), await call.details())
            except grpc.aio.AioRpcError as error:
                raise _Ended(error.code(), error.details() or "") from None
            finally:
                for task in answers:
                    task.cancel()

    def _most(self, kind: int, call: int) -> int:
        """How long a message of the server may be that begins like this."""
        if kind == frames.HANDLE and (agreed := self._runner.agreed) is not None:
            return max(wire.size(agreed.request_forms(each)) for each in wire.EXCHANGES)
        if kind not in _MOST:
            raise FrameError(f"a message of kind {kind}, which is not due")
        return _MOST[kind]

    async def _take(self, frame: Frame, kit: Kit, send: Send) -> None:
        if frame.kind in (frames.AGREE, frames.HANDLE):
            loop = asyncio.get_running_loop()

            def tell_server(line: str) -> None:
                asyncio.run_coroutine_threadsafe(send(Frame(frames.NOTICE, 0, line.encode())), loop)

            answer = await loop.run_in_executor(self._worker, self._answer, frame, tell_server)
            if answer is not None:
                await send(answer)
        elif frame.kind == frames.PING:
            await send(Frame(frames.PONG))
        elif frame.kind == frames.NOTICE:
            self._log.say(f"the server says: {frames.text_of(frame.body)}")
        else:
            self._pause = FIRST_PAUSE_SECONDS
            self._tell(f"connected to federation {kit.facts.federation} at {kit.address}")
            if kit.warning is not None:
                self._log.say(kit.warning)

    def _answer(self, asked: Frame, tell_server: Callable[[str], None]) -> Frame | None:
        """In the worker thread: what the runner says, or why it says nothing; None where the agent ends first."""

        def report(line: str) -> None:
            self._log.say(line)
            tell_server(line)

        def work() -> bytes:
            if asked.kind == frames.AGREE:
                return self._runner.agree(asked.body.decode(errors="replace"))
            return self._runner.handle(asked.body)

        def stopping() -> str:
            return "the agent ends" if self._ending.is_set() else ""

        self._busy = True
        try:
            return Frame(frames.ANSWER, asked.call, patiently(work, report, asked_to_stop=stopping))
        except Asked:
            return None
        except ValueError as error:
            self._log.say(f"refused: {clean(str(error))}")
            return _failed(asked, str(error))
        except Exception as error:
            self._log.note("failed", traceback=traceback.format_exc())
            self._log.say(f"failed: {type(error).__name__}: {clean(str(error))}")
            return _failed(asked, f"failed: {type(error).__name__}: {error}")
        finally:
            self._busy = False


def _sender(call: Any) -> Send:
    """Sends whole messages, one after the other; on a connection that is over, nothing."""
    turn = asyncio.Lock()

    async def send(frame: Frame) -> None:
        async with turn:
            with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
                for piece in frames.split(frame):
                    await call.write(piece)

    return send


def _failed(asked: Frame, why: str) -> Frame:
    return Frame(frames.FAILED, asked.call, why.encode()[: frames.LONGEST_TEXT])
