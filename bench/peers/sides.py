"""The sides of a comparison: what each needs, its environment, and its process, which waits until it is told to run."""

import contextlib
import json
import os
import platform
import select
import signal
import subprocess
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.peers.jobs import Job
from fewjoule.energy.presets import device
from fewjoule.files import cache_dir

ROOT = Path(__file__).parents[2]
WATTS = device("laptop-core")
TURN_SECONDS = 0.7
PATIENCE_SECONDS = 300.0
"""For any one thing that a side is told to do, or for its first call with all that it compiles."""
TORCH = "torch<2.14"


class Peer(NamedTuple):
    script: str
    packages: tuple[str, ...]  # for pip
    jobs: tuple[str, ...]
    threads: int | None = None
    most_rounds: int | None = None  # of a call, where a whole one would take minutes


ALL = ("J1", "J2", "J4", "J5-2", "J5-100", "J6")
FEDAVG = ("J5-2", "J5-100")
FEDJAX = ("fedjax==0.0.17", "jax==0.4.25", "jaxlib==0.4.25", "dm-haiku==0.0.12", "flax==0.8.1", "numpy<2", "scipy<1.13")
PEERS = {
    "torch": Peer("torch_func.py", (TORCH, "numpy"), ALL),
    "torch, one thread": Peer("torch_func.py", (TORCH, "numpy"), ALL, threads=1),
    "fedjax": Peer("fedjax_side.py", FEDJAX, FEDAVG, most_rounds=20),  # the last JAX that has what fedjax calls
    "torchopt": Peer("torchopt_side.py", ("torchopt==0.7.3", TORCH, "numpy"), ("J1", "J2"), most_rounds=10),
    "pfl": Peer("pfl_side.py", ("pfl==0.6.0", TORCH, "numpy"), FEDAVG, most_rounds=10),
    "flower": Peer("flower_side.py", ("flwr[simulation]==1.41.0", TORCH, "numpy"), FEDAVG, most_rounds=10),
}
FEWJOULE = Peer("fewjoule_side.py", (), ALL)


@lru_cache
def environment(name: str, packages: tuple[str, ...]) -> Path | str:
    """The peer's Python, or why there is none. An environment is made once and kept, with a note of what is in it."""
    folder = cache_dir() / "peers" / name.partition(",")[0]
    python, note = folder / "bin/python", folder / "packages.json"
    if note.exists() and json.loads(note.read_text()) == list(packages):
        return python
    print(f"making an environment for {name}: {' '.join(packages)}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
    made = subprocess.run([python, "-m", "pip", "install", "-q", *packages], capture_output=True, text=True)
    if made.returncode:
        errors = [line.strip() for line in made.stderr.splitlines() if "error" in line.lower()]
        return f"does not install on Python {platform.python_version()}: {(errors or ['pip failed'])[0][:200]}"
    note.write_text(json.dumps(packages))
    return python


class Side:
    """A running worker; what it and its children spend is read from /proc."""

    def __init__(self, python: Path | str, peer: Peer, name: str, job: Job, data: Path) -> None:
        self.job, self.rounds = job, min(job.length, peer.most_rounds or job.length)
        script = Path(__file__).parent / peer.script
        command = [str(python), str(script), name, str(data), str(self.rounds)]
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        env["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(dir=data.parent)  # so that all of it is compiled
        if peer == FEWJOULE:
            env["PYTHONPATH"] = str(ROOT / "src")
        if peer.threads is not None:
            env["OMP_NUM_THREADS"] = str(peer.threads)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed by end()
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, env=env, stdin=pipe, stdout=pipe, stderr=self._errors, text=True, start_new_session=True
        )
        self.calls, self.rates, self.joules, self.peak_bytes = 1, [], [], 0.0
        try:
            self.first = self._read()
        except BaseException:
            self.end()
            raise

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE_SECONDS)[0]:
            raise RuntimeError(f"it took longer than {PATIENCE_SECONDS:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise RuntimeError((self._errors.read().strip().splitlines() or ["it ended without a word"])[-1])
        return json.loads(line)

    def _tell(self, line: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._read()

    def turn(self) -> None:
        """Find a rate, units per second; keep it, and the joules of a unit."""
        units, before = self.job.units(self.rounds) * self.calls, self._spent()[0]
        seconds = self._tell(f"run {self.calls} {self.rounds}")["seconds"]
        cpu, peak = self._spent()
        self.rates.append(units / seconds)
        self.joules.append((cpu - before) * WATTS.watts_per_core / units)
        self.peak_bytes = max(self.peak_bytes, peak)

    def calibrate(self) -> float:
        """Find how many calls make a turn; seconds of one call, with all that it must start anew."""
        before = time.perf_counter()
        self._tell(f"run 1 {self.rounds}")
        once = time.perf_counter() - before
        self.calls = max(1, round(TURN_SECONDS / once))
        return once

    def answer(self, folder: Path, rounds: int) -> np.ndarray:
        file = folder / "answer.npy"
        self._tell(f"answer {file} {rounds}")
        return np.load(file, allow_pickle=False)

    def _spent(self) -> tuple[float, float]:
        """CPU seconds and the sum of peak memories, in bytes, of the worker and all that it started (Linux)."""
        parents, cpu = {}, {}
        for place in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = place.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            pid = int(place.parent.name)
            parents[pid], cpu[pid] = int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        mine = {self._process.pid}
        while more := {pid for pid, parent in parents.items() if parent in mine} - mine:
            mine |= more
        peak = 0
        for pid in mine:
            try:
                text = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            peak += 1024 * sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM"))
        return sum(cpu.get(pid, 0.0) for pid in mine), float(peak)

    def end(self) -> None:
        """End it, and whatever it started."""
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(5)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._errors.close()
