"""A whole federation on this machine: a server and three agents as separate processes, with real certificates.

Sinusoids of three amplitudes, Meta-Backward and the plain average beside it; everything in one folder.
"""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

import numpy as np

from fewjoule.errors import InputError
from fewjoule.federation.authority import provision
from fewjoule.federation.carrier.follow import follow, start_run
from fewjoule.federation.carrier.operator import Operator
from fewjoule.federation.carrier.view import View
from fewjoule.federation.federation_file import Federation, check_host
from fewjoule.federation.spec import load_federated_study
from fewjoule.files import write_atomically
from fewjoule.tasks import sinusoid

AGENTS = ("kitchen", "garage", "attic")
AMPLITUDES = (2.0, 6.0, 10.0)
DATA, STUDY = "own.npz", "study.toml"
PORT = 8443


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def write_demo(folder: Path, port: int, host: str = "localhost") -> Federation:
    """The demo's kits in a new folder; an agent's kit also has its data, the operator's the study."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} exists and is not empty; choose another --out.")
    federation = Federation("demo", check_host(host), port, AGENTS)
    provision(federation, folder / "kits")
    train, held = sinusoid.agents(AMPLITUDES, samples=100, validation=20).data
    for i, name in enumerate(AGENTS):
        own = io.BytesIO()
        np.savez(own, x=train.x[i], y=train.y[i], x_test=held.x[i], y_test=held.y[i])
        write_atomically(folder / "kits" / name / DATA, own.getvalue(), mode=0o600)
    study = resources.files(__package__).joinpath("demo.toml").read_bytes()
    write_atomically(folder / "kits" / "operator" / STUDY, study, mode=0o600)
    return federation


@contextlib.contextmanager
def running(folder: Path, agents: tuple[str, ...], show: Callable[[str], None]) -> Iterator[dict[str, "Site"]]:
    """The server and these agents as processes; all of them end with the block."""
    sites: dict[str, Site] = {}
    try:
        sites["server"] = Site(folder, "server", show)
        for name in agents:
            sites[name] = Site(folder, name, show)
        yield sites
    finally:
        for site in sites.values():
            site.stop()
        for site in sites.values():
            site.wait()


class Site:
    """One site's process, started as a user would start it."""

    def __init__(self, folder: Path, name: str, show: Callable[[str], None]) -> None:
        self.name, self.kit = name, folder / "kits" / name
        self._out = (folder / f"{name}.log").open("ab")
        role = json.loads((self.kit / "fewjoule.json").read_text())["role"]
        data = [] if role == "server" else ["--data", str(self.kit / DATA)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fewjoule", "federation", role, str(self.kit), *data],
            stdout=self._out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        show(f"started {role} {name} (process {self.process.pid}, log {folder / f'{name}.log'})")

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def wait(self) -> int:
        try:
            code = self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        self._out.close()
        return code


def run_demo(folder: Path, show: Callable[[str], None] = print) -> Path:
    """The whole demo; the run folder."""
    federation = write_demo(folder, free_port())
    show(f"kits, data and study in {folder}; server on localhost:{federation.port}")
    kit = folder / "kits" / "operator"
    with running(folder, federation.agents, show), contextlib.closing(Operator(kit)) as operator:
        operator.await_server(lambda line: None, patience_seconds=60)
        run = start_run(load_federated_study(str(kit / STUDY)), operator, str(folder / "run"))
        follow(run, operator, View(show), patience_seconds=120)
    return run
