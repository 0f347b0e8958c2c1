"""Jobs on a federation's server, through the operator's kit: connect, submit, watch, fetch."""

import contextlib
import io
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fewjoule.errors import InputError
from fewjoule.federation.drive import Outcome
from fewjoule.federation.nvflare.site import read_kit, template
from fewjoule.federation.spec import Spec

CONNECT_SECONDS = 5.0


class Away(Exception):  # noqa: N818 - it is a state of the other side, not a mistake
    """The server cannot be reached just now, or cannot do what it was asked."""

    @property
    def lost(self) -> bool:
        """Whether the connection itself is gone, or was never there."""
        return self.__cause__ is None or type(self.__cause__).__name__ in ("NoConnection", "SessionClosed")


class Operator:
    """A session with the server. Every call may raise `Away`; `reconnect` then waits with back-off."""

    def __init__(self, kit: Path) -> None:
        self.kit, self.facts = kit.resolve(), read_kit(kit, "operator")
        self._session: Any = None

    def connect(self) -> None:
        from nvflare.fuel.flare_api.api_spec import NoConnection
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        logging.getLogger("nvflare").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(_is_not_of_nvflare)  # it reports every attempt on the root logger too
        here = Path.cwd()
        try:
            with _quiet():
                self._session = new_secure_session(self.facts["name"], str(self.kit), timeout=CONNECT_SECONDS)
        except NoConnection as error:
            raise Away(str(error)) from None
        except Exception as error:
            raise self._explained(error) from None
        finally:
            os.chdir(here)

    def _explained(self, error: Exception) -> Exception:
        text = f"{type(error).__name__}: {error}"
        if "uthenti" in text or "uthoriz" in text or "client_registration" in text:
            return InputError(f"the server refused this kit: {text}.")
        return Away(text)

    def reconnect(self, tell: Callable[[str], None], patience_seconds: float | None = None) -> None:
        """Connect, trying again with back-off while the server is away."""
        pause, began = 1.0, time.monotonic()
        while True:
            try:
                self.close()
                self.connect()
                return
            except Away as error:
                waited = time.monotonic() - began
                if patience_seconds is not None and waited > patience_seconds:
                    host, port = self.facts["host"], self.facts["port"]
                    raise InputError(
                        f"the server {host}:{port} cannot be reached ({error}); start it with: "
                        "fewjoule federation server KIT."
                    ) from None
                tell(f"the server is away, trying again in {pause:.0f} s ({error})")
                time.sleep(pause)
                pause = min(2 * pause, 30.0)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(Exception), _quiet():
                session.close()

    def _ask(self, what: str, *args: Any, **kwargs: Any) -> Any:
        if self._session is None:
            raise Away("not connected")
        try:
            with _quiet():
                return getattr(self._session, what)(*args, **kwargs)
        except Exception as error:
            raise self._explained(error) from error

    def agents(self) -> set[str]:
        """Names of the agents that are connected. One that died is listed until its heartbeats are missed."""
        return set(self.heard())

    def heard(self) -> dict[str, float]:
        """When the server last heard of each connected agent, by the server's clock."""
        clients = self._ask("get_system_info").client_info
        return {client.name: float(client.last_connect_time or 0) for client in clients}

    def jobs(self) -> list[dict[str, Any]]:
        return self._ask("list_jobs", detailed=True) or []

    def status(self, job: str) -> str:
        return str(self._ask("get_job_meta", job).get("status"))

    def progress(self, job: str) -> dict[str, Any] | None:
        """What the job itself says of its progress; None where it does not run (any more, or yet)."""
        try:
            answer = self._ask("do_app_command", job, "fewjoule.status", None)
        except Away as error:
            if error.lost:
                raise
            return None
        return answer if isinstance(answer, dict) else None

    def ask_to_stop(self, job: str, reason: str) -> None:
        self._ask("do_app_command", job, "fewjoule.stop", {"reason": reason})

    def abort(self, job: str) -> None:
        with contextlib.suppress(Away):
            self._ask("abort_job", job)

    def submit(self, name: str, specs: list[Spec], least: int) -> str:
        """Start a job that runs these specs; it brings names of installed classes and settings, no code."""
        with tempfile.TemporaryDirectory() as folder:
            write_job(Path(folder) / name, name, specs, least)
            return str(self._ask("submit_job", str(Path(folder) / name)))

    def fetch(self, job: str) -> tuple[Outcome | None, dict[int, bytes]]:
        """The outcome that a finished job left (None if it died before) and its results by number."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                place = Path(str(self._ask("download_job_result", job, folder)))
            except Away as error:
                if error.lost:
                    raise
                return None, {}
            outcome, results = None, {}
            for path in place.rglob("outcome.json"):
                facts = json.loads(path.read_text())
                outcome = Outcome(facts["status"], facts["reason"], tuple(facts["missing"]))
            for path in place.rglob("result-*.state"):
                results[int(path.stem.removeprefix("result-"))] = path.read_bytes()
            return outcome, results


def write_job(folder: Path, name: str, specs: list[Spec], least: int) -> None:
    """A job folder as NVFlare takes it: names of classes and their settings."""
    config = folder / "app" / "config"
    config.mkdir(parents=True)
    sites = ["server", *specs[0].agents]
    meta = {"name": name, "resource_spec": {}, "min_clients": least, "deploy_map": {"app": sites}}
    (folder / "meta.json").write_text(json.dumps(meta))
    for side in ("server", "client"):
        settings = json.loads(template(f"config_fed_{side}.json"))
        if side == "server":
            settings["components"][0]["args"]["specs"] = [spec.text for spec in specs]
        (config / f"config_fed_{side}.json").write_text(json.dumps(settings))


def _is_not_of_nvflare(record: logging.LogRecord) -> bool:
    return "nvflare" not in Path(record.pathname).parts


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """NVFlare's session prints as it goes; nothing of that is for the user's screen."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield
