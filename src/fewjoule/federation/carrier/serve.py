"""The server's process: one port, mutual TLS, agents' streams, the operator's desk, runs in a thread of their own."""

import asyncio
import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from fewjoule._version import __version__
from fewjoule.errors import InputError
from fewjoule.federation import certificates, members
from fewjoule.federation.carrier.crowds import Crowds
from fewjoule.federation.carrier.desk import Desk
from fewjoule.federation.carrier.gate import Gate
from fewjoule.federation.carrier.handshakes import listening
from fewjoule.federation.carrier.jobs import Jobs
from fewjoule.federation.carrier.log import Log
from fewjoule.federation.carrier.metrics import serve_metrics
from fewjoule.federation.carrier.streams import Streams
from fewjoule.federation.carrier.tls import SERVER_OPTIONS, listening_address, server_credentials
from fewjoule.federation.kits import Kit, read_kit
from fewjoule.federation.members import Members
from fewjoule.files import locked, use_compile_cache

LOOK_SECONDS = 1.0
WARN_SECONDS = 86400.0
GRACE_SECONDS = 5.0


def run_server(folder: Path, metrics_port: int | None = None) -> int:
    """Serve until SIGINT or SIGTERM; 0 after a clean end."""
    os.umask(0o077)  # nothing that this process writes is for others
    kit = read_kit(folder, "server")
    with locked(folder / ".lock", f"{folder} is already running on this machine; stop that one first."):
        use_compile_cache()
        _raise_file_limit()
        log = Log(folder)
        with listening(log):
            is_clean = asyncio.run(_serve(kit, log, metrics_port))
    if not is_clean:  # a run is deep in its work; its state on disk is the last complete one
        sys.stdout.flush()
        os._exit(0)
    return 0


class _Roll:
    """The list of members, read again when its file changes."""

    def __init__(self, kit: Kit, log: Log) -> None:
        self._kit, self._log = kit, log
        self._path = kit.folder / members.FILE
        self.now = members.read_members(kit)
        self._mark, self._looked = self._stamp(), certificates.now()

    def _stamp(self) -> tuple[int, int]:
        with contextlib.suppress(OSError):
            facts = self._path.stat()
            return facts.st_mtime_ns, facts.st_ino
        return (0, 0)

    def has_changed(self) -> bool:
        """Take over a newer list from the file; a bad one is refused, and the old one stays."""
        if (mark := self._stamp()) == self._mark:
            return False
        self._mark = mark
        try:
            new = members.read_members(self._kit)
        except InputError as error:
            self._log.refused("the kit", members.FILE, str(error))
            return False
        if new.version < self.now.version:
            self._log.refused("the kit", members.FILE, f"number {new.version} is older than {self.now.version}, in use")
            return False
        is_new, self.now = new.version > self.now.version, new
        if is_new:
            self._log.say(f"list of members number {new.version}: {', '.join(new.agents)}")
        return is_new

    def has_ended(self) -> bool:
        """Whether somebody's certificate ended since the last look."""
        before, self._looked = self._looked, certificates.now()
        return any(before < member.ends <= self._looked for member in self.now.members)

    def accept(self, content: bytes) -> Members:
        """Put in a newer list that the operator sent; the next look takes it over."""
        return members.accept(self._kit, content)


async def _serve(kit: Kit, log: Log, metrics_port: int | None) -> bool:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    facts, roll = kit.facts, _Roll(kit, log)
    streams = Streams({"federation": facts.federation, "fewjoule": __version__}, log)
    jobs = Jobs(kit.folder, streams, loop, log)
    desk = Desk(facts.federation, jobs, streams, lambda: roll.now, roll.accept, log)
    gate = Gate(kit, lambda: roll.now, streams.serve, desk.serve, log)
    server = grpc.aio.server(handlers=(gate,), options=SERVER_OPTIONS, compression=grpc.Compression.NoCompression)
    try:
        server.add_secure_port(listening_address(kit), server_credentials(kit, log))
    except RuntimeError:
        raise InputError(
            f"port {facts.port} of this machine cannot be listened on: another program has it, or it needs rights "
            "that this user lacks; stop the other program, or provision with another port."
        ) from None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await server.start()
    log.say(f"server of federation {facts.federation} on port {facts.port}", fewjoule=__version__)
    serving = serve_metrics(metrics_port, desk.status) if metrics_port is not None else contextlib.nullcontext()
    with serving, Crowds(facts.port, lambda: streams.peers() | {desk.peer}, log).watched():
        jobs.begin()
        watching = asyncio.ensure_future(_watch(roll, lambda: streams.close_if(gate.refuses), log))
        await stop.wait()
        watching.cancel()
        log.say("ending")
        jobs.end()
        is_clean = await asyncio.to_thread(jobs.join, GRACE_SECONDS)
        streams.close_all("the server ends")
        await server.stop(1.0)
    log.say("stopped")
    return is_clean


async def _watch(roll: _Roll, close: Callable[[], None], log: Log) -> None:
    """Send away at once whom a new list refuses and whose certificate has ended; once a day, say who has to renew."""
    warned = -WARN_SECONDS
    while True:
        if time.monotonic() - warned >= WARN_SECONDS:
            warned = time.monotonic()
            for line in roll.now.warnings():
                log.say(line)
        await asyncio.sleep(LOOK_SECONDS)
        if roll.has_changed() | roll.has_ended():
            close()


def _raise_file_limit() -> None:
    """Every connection is an open file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
