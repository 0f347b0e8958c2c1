"""The runs on the server: one job after the other, each driven from its state on disk until it is complete.

A job is the specs of one study's runs, and its id is their hash, so starting it twice starts it once. It is written to
the kit's `jobs` folder while it is not finished: a server that was killed goes on with it by itself.
"""

import asyncio
import json
import queue
import threading
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fewjoule.errors import InputError
from fewjoule.federation.carrier.channel import StreamChannel
from fewjoule.federation.carrier.facts import job_id
from fewjoule.federation.carrier.log import Log
from fewjoule.federation.carrier.streams import Stream, Streams
from fewjoule.federation.drive import Outcome, drive
from fewjoule.federation.server import ServerRunner
from fewjoule.federation.spec import Spec, read_spec
from fewjoule.files import write_atomically

REJOIN_SECONDS = 5.0  # given to agents at the beginning where a run may go on without some
MOST_JOBS = 100
MOST_REMEMBERED = 1000  # jobs that have ended
STOPPED_BY_OPERATOR = "asked by the operator"


@dataclass
class Job:
    """One study's runs. `state`: queued, running, waiting (for agents or a disk), complete, or stopped."""

    id: str
    specs: list[Spec]
    state: str = "queued"
    reason: str = ""
    stop: str = ""  # why it is to stop
    finished: int = 0  # runs
    server: ServerRunner | None = None  # of the run at hand
    gone: dict[str, str] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)  # how the run stood whose server is no longer kept
    before: list[dict[str, Any]] = field(default_factory=list)  # how the runs before it ended

    def close(self) -> None:
        """Keep a few numbers of the run at hand instead of all of it."""
        if self.server is not None:
            self.last, self.server = self.server.status(), None

    def describe(self) -> dict[str, Any]:
        server, joules = self.server, dict[str, float]()
        for run in self.before:
            for kind, amount in run["joules"].items():
                joules[kind] = joules.get(kind, 0.0) + amount
        return {
            "job": self.id,
            "state": self.state,
            "reason": self.reason,
            "finished": self.finished,
            "runs": len(self.specs),
            "agents": list(self.specs[0].agents),
            "gone": dict(self.gone),
            "progress": self.last if server is None else server.status(),
            "before": {"payload_bytes": sum(run["payload_bytes"] for run in self.before), "joules": joules},
        }


class Jobs:
    """All jobs since the server began. A thread of its own drives them."""

    def __init__(self, kit: Path, streams: Streams, loop: asyncio.AbstractEventLoop, log: Log) -> None:
        self._folder, self._state = kit / "jobs", kit / "state"
        for folder in (self._folder, self._state):
            folder.mkdir(mode=0o700, exist_ok=True)
        self._streams, self._loop, self._log = streams, loop, log
        self._jobs: dict[str, Job] = {}
        self._queue: queue.Queue[Job | None] = queue.Queue()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._work, name="runs", daemon=True)

    def begin(self) -> None:
        """Take up what was not finished when the server ended, oldest first."""
        for path in sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime):
            try:
                self.start([str(text) for text in json.loads(path.read_text("utf-8"))], begun=False)
            except (ValueError, TypeError, RecursionError) as error:
                self._log.say(f"{path.name} cannot be taken up again: {error}; start the run again")
                path.rename(path.with_suffix(".refused"))
        self._thread.start()

    def end(self) -> None:
        """Stop at the exchange at hand; what is not finished is taken up by the next server."""
        self._ending.set()
        for job in self._jobs.values():
            job.stop = job.stop or "the server ends"
        self._queue.put(None)
        self._streams.wake()

    def join(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def start(self, texts: list[str], *, begun: bool) -> Job:
        """The job of these specs, started or gone on with where it is not at work already.

        `begun` says that exchanges of it were complete before, so its state must be here.
        """
        specs = [read_spec(text) for text in texts]
        if not specs or len({spec.agents for spec in specs}) != 1:
            raise InputError("a job needs at least one run, all of them over the same agents.")
        known = self._jobs.get(job_id(texts))
        if known is not None and known.state != "stopped":
            return known
        if begun and not (self._state / specs[0].run.hex() / "server.state").is_file():
            raise InputError(
                f"the server has no state of run {specs[0].run.hex()} any more, so this run cannot go on; put back "
                "a copy of the folder state of its kit, or start a new run."
            )
        if sum(job.state in ("queued", "running", "waiting") for job in self._jobs.values()) >= MOST_JOBS:
            raise InputError(f"{MOST_JOBS} jobs wait already; stop some of them first.")
        for id in [id for id, job in self._jobs.items() if job.state in ("complete", "stopped")][:-MOST_REMEMBERED]:
            del self._jobs[id]
        job = self._jobs[job_id(texts)] = Job(job_id(texts), specs)
        write_atomically(self._path(job), json.dumps(texts).encode(), force=True, mode=0o600)
        self._queue.put(job)
        return job

    def stop(self, id: str) -> Job:
        job = self.find(id)
        if job.state not in ("queued", "running", "waiting"):
            raise InputError(f"the run is {job.state}; nothing is there to stop.")
        job.stop = STOPPED_BY_OPERATOR
        self._loop.call_soon_threadsafe(self._streams.wake)
        return job

    def find(self, id: str) -> Job:
        if id not in self._jobs:
            raise InputError(f"the server has no job {id}; continue with: fewjoule federation resume.")
        return self._jobs[id]

    def describe(self) -> list[dict[str, Any]]:
        return [job.describe() for job in list(self._jobs.values())]

    def last_exchange(self) -> float:
        """When an exchange was last complete, in seconds since 1970; 0 where none was."""
        files = [self._state / spec.run.hex() / "server.state" for job in self._jobs.values() for spec in job.specs]
        return max((path.stat().st_mtime for path in files if path.exists()), default=0.0)

    def result(self, id: str, number: int) -> bytes:
        """What the server has of one run of a job, from its state."""
        job = self.find(id)
        if not 0 <= number < len(job.specs):
            raise InputError(f"the job has {len(job.specs)} runs, number {number} was asked for.")
        return ServerRunner(job.specs[number], self._state).result()

    def _path(self, job: Job) -> Path:
        return self._folder / f"{job.id}.json"

    def _work(self) -> None:
        while (job := self._queue.get()) is not None and not self._ending.is_set():
            try:
                outcome = self._carry(job)
            except InputError as error:
                outcome = Outcome("stopped", str(error))
            except Exception as error:
                self._log.note("failed", job=job.id, traceback=traceback.format_exc())
                outcome = Outcome("stopped", f"the server failed ({type(error).__name__}: {error}); see its log.jsonl")
            if self._ending.is_set():
                return
            job.close()
            job.reason = job.stop or outcome.reason
            job.state = "complete" if outcome.status == "complete" else "stopped"
            self._path(job).unlink(missing_ok=True)
            self._log.say(f"{outcome.status}: {outcome.reason}", job=job.id)

    def _carry(self, job: Job) -> Outcome:
        outcome = Outcome("complete", "nothing to do")
        for number, spec in enumerate(job.specs):
            job.finished = number
            if number:
                job.before.append(job.last)
            outcome = self._one(job, spec)
            job.close()
            if outcome.status != "complete":
                return outcome
        job.finished = len(job.specs)
        return outcome

    def _one(self, job: Job, spec: Spec) -> Outcome:
        """Drive one run to its end, through every pause."""
        server = job.server = ServerRunner(spec, self._state)
        self._log.say(f"run {spec.run.hex()[:8]}: {spec.method.get('method')}, seed {spec.seed}, {_where(server)}")
        if spec.policy == "skip":
            self._await(job, set(spec.agents), REJOIN_SECONDS)
        while not job.stop:
            outcome = self._drive(job, server)
            if outcome.status != "paused":
                return outcome
            if outcome.missing and not job.stop:
                job.state, job.reason = "waiting", f"{outcome.reason}; going on when they are back"
                self._log.say(f"paused: {job.reason}", job=job.id)
                enough = 1 if spec.policy == "skip" else len(outcome.missing)
                self._await(job, set(outcome.missing), enough=enough)
        return Outcome("paused", job.stop)

    def _drive(self, job: Job, server: ServerRunner) -> Outcome:
        names = server.spec.agents
        began: dict[str, Stream | None] = {name: self._streams[name] for name in names}
        job.state, job.reason = "running", ""
        job.gone.clear()

        def asked() -> str:
            """Why to end here: somebody asked, or an agent that was left out came back."""
            back = [
                name for name in list(job.gone) if (now := self._streams[name]) is not None and now is not began[name]
            ]
            return job.stop or (f"{', '.join(back)} came back" if back else "")

        def report(line: str) -> None:
            """For the log, and a pause for whoever looks at the job."""
            job.reason = line if line.startswith("paused: ") else "" if line == "going on" else job.reason
            self._log.say(line, job=job.id)

        channel = StreamChannel(self._streams, self._loop, server.contract, lambda: bool(job.stop))
        return drive(server, channel, report=report, asked_to_stop=asked, gone=job.gone)

    def _await(self, job: Job, names: set[str], seconds: float | None = None, enough: int | None = None) -> None:
        """Until (enough of) these agents are connected, the time is over, or the job is to stop."""
        end = None if seconds is None else time.monotonic() + seconds
        while not job.stop:
            left = 1.0 if end is None else end - time.monotonic()
            here = sum(self._streams[name] is not None for name in names)
            if left <= 0 or (names and here >= (len(names) if enough is None else enough)):
                return
            waiting = self._streams.changed(min(left, 1.0))
            asyncio.run_coroutine_threadsafe(waiting, self._loop).result()


def _where(server: ServerRunner) -> str:
    return "complete" if server.complete else f"at exchange {server.exchange + 1} of {len(server.contract.plan)}"
