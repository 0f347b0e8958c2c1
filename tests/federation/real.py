"""A federation of real processes on loopback, for tests: start, kill, start again, run a study."""

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule import make_agents, method, model_from_spec, simulate, train_locally
from fewjoule.federation.authority import provision
from fewjoule.federation.carrier import follow as following
from fewjoule.federation.carrier.demo import free_port
from fewjoule.federation.carrier.follow import follow, start_run
from fewjoule.federation.carrier.operator import Operator
from fewjoule.federation.carrier.view import View
from fewjoule.federation.federation_file import Federation
from fewjoule.federation.spec import load_federated_study
from fewjoule.studies.settings import LocalSettings

following.POLL_SECONDS = 0.05  # so that a test sees a round soon after it
NAMES = ("north", "south", "west")
MODEL = "mlp:1-16-1"
LOCAL = {"max_steps": 100, "batch": 16}
MANY_ROUNDS = """
    [[methods]]
    name = "mb"
    method = "meta_backward"
    rounds = 600
    radius = 0.0005
    batch = 16
"""
FEWJOULE = [sys.executable, "-m", "fewjoule", "federation"]


class Real:
    """Kits, data and processes of one federation in a folder."""

    def __init__(self, folder: Path, names: tuple[str, ...] = NAMES) -> None:
        self.folder, self.names = folder, names
        self.port = free_port()
        provision(Federation("test", "localhost", self.port, names), folder / "kits")
        self.pairs = []
        for i, name in enumerate(names):
            x = np.random.default_rng(i).uniform(-5, 5, (32, 1)).astype(np.float32)
            y = ((i + 1) * np.sin(x)).astype(np.float32)
            np.savez(folder / f"{name}.npz", x=x, y=y, x_test=x[:8], y_test=y[:8])
            self.pairs.append((x, y))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def kit(self, name: str) -> Path:
        return self.folder / "kits" / name

    def start(self, *names: str, environment: dict[str, str] | None = None, options: tuple[str, ...] = ()) -> None:
        for name in names:
            role = "server" if name == "server" else "agent"
            data = ["--data", str(self.folder / f"{name}.npz")] if role == "agent" else []
            with (self.folder / f"{name}.log").open("ab") as out:
                self.processes[name] = subprocess.Popen(
                    [*FEWJOULE, role, str(self.kit(name)), *data, *options],
                    stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})},
                )  # fmt: skip

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def await_log(self, name: str, text: str, seconds: float = 60, after: int = 0) -> None:
        await_true(lambda: text in self.log(name)[after:], seconds, f"{text!r} in the log of {name}")

    def kill(self, name: str) -> None:
        """kill -9"""
        self.processes[name].kill()
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
        with closing(Operator(self.kit("operator"))) as operator:
            operator.await_server(lambda text: None, 60)
            folder = start_run(load_federated_study(str(study)), operator, str(self.folder / out))
            follow(folder, operator, View(line), patience_seconds=90)
        return folder

    def simulated(self, name: str, seed: int = 3, **settings: object) -> Array:
        """What the simulator makes of the same data, one agent after the other: the bits of a federation."""
        model, held = model_from_spec(MODEL), [(x[:8], y[:8]) for x, y in self.pairs]
        agents = make_agents(self.pairs, held, names=self.names)
        alone = [make_agents([self.pairs[i]], [held[i]], names=[name]) for i, name in enumerate(self.names)]
        chosen = LocalSettings.model_validate(LOCAL).model_dump()
        local = [train_locally(model, one, seed=seed, around=lambda work: work(), **chosen).models[0] for one in alone]
        return simulate(method(name, **settings), model, agents, jnp.stack(local), seed=seed, one_by_one=True).meta


class Running(threading.Thread):
    """A study run in the background; lines of its view as they come."""

    def __init__(self, real: Real, study: Path, out: str) -> None:
        super().__init__(daemon=True)
        self.real, self.study, self.out = real, study, out
        self.lines: list[str] = []
        self.error: BaseException | None = None
        self.folder: Path | None = None
        self.start()

    def run(self) -> None:
        try:
            self.folder = self.real.run(self.study, self.out, self.lines.append)
        except BaseException as error:  # to be raised in the test's own thread
            self.error = error

    def await_round(self, least: int) -> None:
        def there() -> bool:
            if self.error is not None:
                raise self.error
            rounds = [int(line.split("round ")[1].split("/")[0]) for line in self.lines if "  round " in line]
            return any(r >= least for r in rounds)

        await_true(there, 120, f"round {least}")

    def result(self) -> Path:
        self.join(240)
        if self.error is not None:
            raise self.error
        assert self.folder is not None, f"the run did not end; it said: {self.lines}"
        return self.folder


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
        codes = real.stop()
    assert set(codes) == {0}, f"a site did not end cleanly: {codes}"
