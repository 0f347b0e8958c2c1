"""A federation of real processes on loopback, for tests: start, kill, start again, run a study."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
from jax import Array

from fewjoule import make_agents, method, mlp, simulate, train_locally
from fewjoule.federation.nvflare.demo import free_port
from fewjoule.federation.nvflare.jobs import Operator
from fewjoule.federation.nvflare.operator import View, follow, start_run
from fewjoule.federation.nvflare.provision import Federation, provision
from fewjoule.federation.spec import load_federated_study

NAMES = ("north", "south", "west")
MODEL = "mlp:1-16-1"
LOCAL = {"max_steps": 100, "batch": 16}


class Real:
    """Kits, data and processes of one federation in a folder."""

    def __init__(self, folder: Path, names: tuple[str, ...] = NAMES) -> None:
        self.folder, self.names = folder, names
        self.federation = Federation("test", "localhost", free_port(), names)
        provision(self.federation, folder / "kits")
        self.pairs = []
        for i, name in enumerate(names):
            x = np.random.default_rng(i).uniform(-5, 5, (32, 1)).astype(np.float32)
            y = ((i + 1) * np.sin(x)).astype(np.float32)
            np.savez(folder / f"{name}.npz", x=x, y=y, x_test=x[:8], y_test=y[:8])
            self.pairs.append((x, y))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *names: str, kit: Path | None = None, environment: dict[str, str] | None = None) -> None:
        for name in names:
            role = "server" if name == "server" else "agent"
            data = ["--data", str(self.folder / f"{name}.npz")] if role == "agent" else []
            site = str(kit or self.folder / "kits" / name)
            with (self.folder / f"{name}.log").open("ab") as out:
                self.processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "fewjoule", "federation", role, site, *data],
                    stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})},
                )  # fmt: skip

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def await_log(self, name: str, text: str, seconds: float = 60, after: int = 0) -> None:
        await_true(lambda: text in self.log(name)[after:], seconds, f"{text!r} in the log of {name}")

    def kill(self, name: str, worker_only: bool = False) -> None:
        """kill -9: the whole site at once, or the process of the job alone."""
        family = psutil.Process(self.processes[name].pid).children(recursive=True)
        if worker_only:
            family = [p for p in family if any("worker_process" in a or "runner_process" in a for a in p.cmdline())]
            assert family, "no process of a job to kill"
        else:
            family = [psutil.Process(self.processes[name].pid), *family]
        for process in family:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        if not worker_only:
            self.processes[name].wait()

    def stop(self) -> list[int]:
        for process in self.processes.values():
            process.terminate()
        return [process.wait(40) for process in self.processes.values()]

    def study(self, methods: str, federation: str = "", seed: int = 3) -> Path:
        local = "\n".join(f"{k} = {v}" for k, v in LOCAL.items())
        path = self.folder / "study.toml"
        path.write_text(
            f'name = "test"\nseeds = [{seed}]\n[model]\nspec = "{MODEL}"\n[local]\n{local}\n'
            f"[federation]\n{federation}\n" + textwrap.dedent(methods)
        )
        return path

    def run(self, study: Path, out: str = "run", line: Callable[[str], None] = print) -> Path:
        operator = Operator(self.folder / "kits" / "operator")
        try:
            operator.reconnect(lambda text: None, 60)
            folder = start_run(load_federated_study(str(study)), operator, str(self.folder / out))
            follow(folder, operator, View(line), patience_seconds=90)
        finally:
            operator.close()
        return folder

    def simulated(self, name: str, seed: int = 3, **settings: object) -> Array:
        model = mlp([1, 16, 1])
        agents = make_agents(self.pairs, [(x[:8], y[:8]) for x, y in self.pairs], names=self.names)
        local = train_locally(model, agents, seed=seed, **LOCAL)  # type: ignore[arg-type]
        return simulate(method(name, **settings), model, agents, local, seed=seed).meta


def await_true(check: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come within {seconds:.0f} s")
        time.sleep(0.1)


def meta_of(folder: Path, name: str, seed: int = 3) -> np.ndarray:
    from fewjoule.models.weights import read_model

    return np.asarray(read_model(folder / "meta" / f"{name}-{seed}.safetensors").vector)


def summary_of(folder: Path) -> dict[str, object]:
    summary: dict[str, object] = json.loads((folder / "summary.json").read_text())
    return summary


@contextmanager
def federation(folder: Path, names: tuple[str, ...] = NAMES) -> Iterator[Real]:
    """All sites running; ended without a trace."""
    real = Real(folder, names)
    try:
        real.start("server", *names)
        yield real
    finally:
        real.stop()


__all__ = ["NAMES", "Real", "await_true", "federation", "meta_of", "summary_of"]
