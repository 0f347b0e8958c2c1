"""The two classes that NVFlare runs in a job: an agent that answers, and the server that drives its runs.

Both are thin: everything of a run is in `agent`, `server` and `drive`. Jobs name these classes and bring no code.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from nvflare.collab import collab

from fewjoule.errors import InputError
from fewjoule.federation.agent import AgentRunner
from fewjoule.federation.drive import Answers, Outcome, drive
from fewjoule.federation.nvflare.site import agent_home, agent_meter, lock, read_site, say
from fewjoule.federation.nvflare.traffic import Traffic
from fewjoule.federation.server import ServerRunner
from fewjoule.federation.spec import read_spec
from fewjoule.files import use_compile_cache

PING_SECONDS = 4.0
_MESSAGE, _ERROR = b"\0", b"\1"
_LONGEST_ERROR = 2000


def _prepare_process() -> None:
    """Have this process end when the site's daemon is gone (its state is on disk, and a new daemon starts a new
    process), and compute in the calling thread: handing a short round to another thread would cost more than it."""
    import jax

    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # type: ignore[no-untyped-call]
    use_compile_cache()


class FederatedAgent:
    """Answers the server. Every answer is bytes: 0 and a message, or 1 and why there is none."""

    def __init__(self) -> None:
        self._runner: AgentRunner | None = None
        self._making = threading.Lock()  # a call that takes long is repeated in another thread

    @collab.init
    def prepare(self) -> None:
        _prepare_process()
        kit = Path(collab.workspace.get_root_dir())
        self._name = str(collab.site_name)
        self._site = read_site(kit)
        self._kit = kit

    @collab.publish
    def agree(self, spec: str) -> bytes:
        return self._answer(lambda: self._made().agree(spec))

    @collab.publish
    def handle(self, request: bytes) -> bytes:
        return self._answer(lambda: self._made().handle(request))

    @collab.publish
    def alive(self) -> bool:
        return True

    def _made(self) -> AgentRunner:
        with self._making:
            if self._runner is None:
                meter, source = agent_meter(self._site)
                say(f"energy: {source}")
                traffic = Traffic(self._site["port"])
                home, state = agent_home(self._site), self._kit / "state"
                self._runner = AgentRunner(self._name, home, state, meter=meter, traffic=traffic)
            return self._runner

    def _answer(self, work: Callable[[], bytes]) -> bytes:
        try:
            return _MESSAGE + work()
        except ValueError as error:
            say(f"refused: {error}")
            return _ERROR + str(error).encode()[:_LONGEST_ERROR]
        except Exception as error:
            say(f"failed: {type(error).__name__}: {error}")
            raise


class CollabChannel:
    """Named agents over NVFlare's calls."""

    def agree(self, names: Iterable[str], spec: str, timeout_seconds: float) -> Answers:
        return self._group(names, timeout_seconds, lambda group: group.agree(spec))

    def call(self, names: Iterable[str], request: bytes, timeout_seconds: float) -> Answers:
        return self._group(names, timeout_seconds, lambda group: group.handle(request))

    def alive(self, names: Iterable[str]) -> set[str]:
        group = _present(names)
        return {name for name, _ in group(timeout=PING_SECONDS).alive()} if len(group) else set()

    def _group(self, names: Iterable[str], timeout_seconds: float, ask: Callable[[Any], Any]) -> Answers:
        group = _present(names)
        replies: dict[str, bytes] = {}
        errors: dict[str, str] = {}
        if not len(group):
            return Answers(replies, errors)
        results = ask(group(timeout=timeout_seconds))
        for name, answer in results:
            if not isinstance(answer, bytes) or answer[:1] not in (_MESSAGE, _ERROR):
                errors[name] = f"answered with {type(answer).__name__}, not with a message"
            elif answer[:1] == _ERROR:
                errors[name] = answer[1 : _LONGEST_ERROR + 1].decode(errors="replace")
            else:
                replies[name] = answer[1:]
        for name, failure in results.failures.items():
            if getattr(failure, "remote_traceback", None):  # raised over there, so asking again would not help
                errors[name] = f"failed: {str(failure)[:_LONGEST_ERROR]}"
        return Answers(replies, errors)


def _present(names: Iterable[str]) -> Any:
    here = {client.name for client in collab.clients}
    return collab.get_clients([name for name in names if name in here])


class FederatedServer:
    """Drives the runs of a job one after the other; leaves results and an outcome in the job's folder."""

    def __init__(self, specs: list[str]) -> None:
        self._specs = specs
        self._stop = ""
        self._current: ServerRunner | None = None
        self._finished = 0
        self._gone: dict[str, str] = {}

    @collab.main
    def run(self) -> None:
        _prepare_process()
        context = collab.fl_ctx
        engine, job = context.get_engine(), context.get_job_id()
        engine.register_app_command("fewjoule.status", self._status)
        engine.register_app_command("fewjoule.stop", self._asked)
        folder = Path(collab.workspace.get_run_dir(job))
        state = Path(collab.workspace.get_root_dir()) / "state"
        state.mkdir(mode=0o700, exist_ok=True)
        try:
            outcome = self._all(state, folder)
        except InputError as error:
            outcome = Outcome("stopped", str(error))
        say(f"{outcome.status}: {outcome.reason}")
        (folder / "outcome.json").write_text(json.dumps(outcome._asdict()))

    def _all(self, state: Path, folder: Path) -> Outcome:
        outcome = Outcome("complete", "nothing to do")
        for number, text in enumerate(self._specs):
            spec = read_spec(text)
            place = state / spec.run.hex()
            place.mkdir(mode=0o700, exist_ok=True)
            with lock(place / "lock") as free:
                if not free:
                    return Outcome("paused", "another job is still at this run")
                self._current = server = ServerRunner(spec, state)
                say(f"run {spec.run.hex()[:8]}: {spec.method.get('method')}, seed {spec.seed}, at {_where(server)}")
                self._gone.clear()
                outcome = drive(server, CollabChannel(), report=say, asked_to_stop=lambda: self._stop, gone=self._gone)
                (folder / f"result-{number}.state").write_bytes(server.result())
                if outcome.status != "complete":
                    return outcome
                self._finished = number + 1
        return outcome

    def _status(self, topic: str, data: Any, context: Any) -> dict[str, Any]:
        current = self._current
        return {
            "progress": {} if current is None else current.status(),
            "finished": self._finished,
            "runs": len(self._specs),
            "agents": [] if current is None else list(current.spec.agents),
            "gone": list(self._gone),
        }

    def _asked(self, topic: str, data: Any, context: Any) -> dict[str, Any]:
        self._stop = str((data or {}).get("reason", "asked to stop"))[:200]
        return {"stopping": self._stop}


def _where(server: ServerRunner) -> str:
    return "its end" if server.complete else f"exchange {server.exchange + 1} of {len(server.contract.plan)}"


if sys.platform == "win32":  # state is locked by fcntl
    raise ImportError("federations run on Linux and macOS.")
