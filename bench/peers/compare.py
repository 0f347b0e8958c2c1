"""fewjoule beside its peers: the same jobs on the same arrays, taking turns in one run, each with all cores.

    python bench/peers/compare.py                          all jobs, all peers (first use makes their environments)
    python bench/peers/compare.py J4 J5-100 --peers torch  only these; what docs/performance.json has of others stays
    python bench/peers/compare.py --missing                only what the file does not have: goes on after a stop
    python bench/peers/compare.py --draw                   measure nothing; page and picture from the file

Every side is a process of its own in an environment of its own (made by pip from the registries, kept in the cache
folder), and waits while another one runs. A rate counts only where the answer is fewjoule's: the distance of the two
answers is at most TOLERANCE of what the job changed. Joules are modelled: CPU seconds of all a side's processes times
the watts of one core. Ratios are medians of turns; rates of different runs are not comparable.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # so that it can be run from anywhere
sys.path.insert(0, str(Path(__file__).parent))

import jax
import jax.numpy as jnp
import numpy as np
from jobs import JOBS, Job

from bench.peers.show import draw
from fewjoule.energy.presets import device
from fewjoule.files import cache_dir, write_atomically

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs/performance.json"
TOLERANCE = 1e-3
WATTS = device("laptop-core")
TURNS, TURN_SECONDS, SLOW_SECONDS = 7, 0.7, 4.0
"""Turns of each side; a side whose call takes longer than the last has one turn."""
TORCH = "torch<2.14"
PEERS: dict[str, tuple[str, list[str], list[str]]] = {  # script, what pip installs, jobs
    "torch": ("torch_func.py", [TORCH, "numpy"], ["J1", "J2", "J4", "J5-2", "J5-100", "J6"]),
    "torch, one thread": ("torch_func.py", [TORCH, "numpy"], ["J1", "J2", "J4", "J5-2", "J5-100", "J6"]),
    "fedjax": (  # the last JAX that has what fedjax calls
        "fedjax_side.py", ["fedjax==0.0.17", "jax==0.4.25", "jaxlib==0.4.25", "numpy<2", "scipy<1.13"],
        ["J5-2", "J5-100"],
    ),
}  # fmt: skip


def environment(name: str, packages: list[str]) -> Path | str:
    """The peer's Python, or why there is none. An environment is made once and kept, with a note of what is in it."""
    folder = cache_dir() / "peers" / name.partition(",")[0]
    python, note = folder / "bin/python", folder / "packages.json"
    if note.exists() and json.loads(note.read_text()) == packages:
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

    def __init__(self, python: Path | str, script: str, job: str, data: Path, threads: int | None = None) -> None:
        command = [str(python), str(Path(__file__).parent / script), job, str(data)]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src")} if script == "fewjoule_side.py" else dict(os.environ)
        env = {k: v for k, v in env.items() if script == "fewjoule_side.py" or k != "PYTHONPATH"}
        if threads is not None:
            env["OMP_NUM_THREADS"] = str(threads)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed by end()
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, stderr=self._errors, text=True)
        self.calls, self.rates, self.joules, self.peak_bytes = 1, [], [], 0.0
        self.first = self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
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

    def turn(self, units: int) -> float:
        """A rate, units per second; keeps it, and the joules of a unit."""
        before = self._spent()[0]
        seconds = self._tell(f"run {self.calls}")["seconds"]
        cpu, peak = self._spent()
        rate = units * self.calls / seconds
        self.rates.append(rate)
        self.joules.append((cpu - before) * WATTS.watts_per_core / (units * self.calls))
        self.peak_bytes = max(self.peak_bytes, peak)
        return rate

    def calibrate(self) -> float:
        """Find how many calls make a turn; seconds of one call."""
        once = self._tell("run 1")["seconds"]
        self.calls = max(1, round(TURN_SECONDS / once))
        return once

    def answer(self, folder: Path) -> np.ndarray:
        file = folder / "answer.npy"
        self._tell(f"answer {file}")
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
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


def distance(answer: np.ndarray, ours: np.ndarray, start: np.ndarray) -> float:
    """Of two models, as a share of what the job changed. Of losses, as a share of each, for 99 in 100 tasks: a learning
    rate at the edge of stability lets rounding decide the end of one in 500."""
    if ours.shape == start.shape:
        return float(np.linalg.norm(answer - ours) / np.linalg.norm(ours - start))
    return float(np.quantile(np.abs(answer - ours) / np.abs(ours), 0.99))


def measured(name: str, job: Job, peers: list[str], keep: dict[str, Any]) -> dict[str, Any]:
    """The job by fewjoule and by the peers, taking turns. What is kept of other peers stays."""
    with tempfile.TemporaryDirectory(prefix="fewjoule-peers-") as place:
        data = Path(place) / "data.npz"
        arrays = {key: np.asarray(value) for key, value in job.arrays(job.units).items()}
        np.savez(data, **arrays)
        sides: dict[str, Side] = {"fewjoule": Side(sys.executable, "fewjoule_side.py", name, data)}
        found: dict[str, Any] = {}
        for peer in peers:
            script, packages, _ = PEERS[peer]
            python = environment(peer, packages)
            if isinstance(python, str):
                found[peer] = {"left_out": python}
                continue
            try:
                sides[peer] = Side(python, script, name, data, 1 if "one thread" in peer else None)
            except RuntimeError as error:
                found[peer] = {"left_out": f"failed: {error}"}
        try:
            once = {side: worker.calibrate() for side, worker in sides.items()}
            for turn in range(TURNS):
                for side, worker in sides.items():
                    if turn == 0 or once[side] < SLOW_SECONDS:
                        worker.turn(job.units)
            ours = sides["fewjoule"].answer(Path(place))
            for side, worker in sides.items():
                off = distance(worker.answer(Path(place)), ours, arrays["start"])
                found[side] = summary(worker, sides["fewjoule"], once[side], off)
        finally:
            for worker in sides.values():
                worker.end()
    for side, row in found.items():
        print(f"  {name:7}{side:12}{line(row, job.unit)}", flush=True)
    limit = limit_per_second(job)
    share = found["fewjoule"]["per_second"] / limit
    print(f"  {name:7}{'limit':12}{limit:10.4g} {job.unit}/s; fewjoule reaches {share:.0%} of it", flush=True)
    title = {"title": job.title, "unit": job.unit, "limit_per_second": limit, "date": str(datetime.date.today())}
    return {**title, "sides": {**keep, **found}}


def summary(worker: Side, ours: Side, once: float, off: float) -> dict[str, Any]:
    if not off <= TOLERANCE:
        return {"left_out": f"another answer: {off:.2g} of the change away from fewjoule's"}
    ratios = [a / b for a, b in zip(ours.rates, worker.rates, strict=False)]
    return {
        "per_second": statistics.median(worker.rates), "turns": len(worker.rates),
        "times": statistics.median(ratios), "least": min(ratios), "most": max(ratios),
        "compile_seconds": max(0.0, worker.first["first_seconds"] - once),
        "joules": statistics.median(worker.joules), "peak_bytes": worker.peak_bytes,
        "answer_off": off, "versions": worker.first["versions"],
    }  # fmt: skip


def line(row: dict[str, Any], unit: str) -> str:
    if "left_out" in row:
        return f"left out: {row['left_out']}"
    return (
        f"{row['per_second']:10.4g} {unit}/s, fewjoule {row['times']:.2f} times as fast ({row['least']:.2f} to "
        f"{row['most']:.2f}); compile {row['compile_seconds']:.1f} s, {row['joules']:.3g} J each (modelled), "
        f"{row['peak_bytes'] / 2**30:.2f} GB"
    )


PEAKS: dict[str, float] = {}


def limit_per_second(job: Job) -> float:
    """What the machine allows: all FLOPs at the rate of a large matrix product, all bytes at that of a large copy."""
    if not PEAKS:
        side, array = 2048, np.ones(64 << 20, np.float32)
        product, matrix = jax.jit(lambda a: a @ a), jnp.ones((side, side))
        PEAKS["flops"] = 2 * side**3 / fastest(lambda: product(matrix).block_until_ready())
        PEAKS["bytes"] = array.nbytes / fastest(lambda: array.sum()) * len(os.sched_getaffinity(0))
    return 1 / max(job.flops / PEAKS["flops"], job.memory_bytes / PEAKS["bytes"])


def fastest(call: Any) -> float:
    def once() -> float:
        before = time.perf_counter()
        call()
        return time.perf_counter() - before

    once()
    return min(once() for _ in range(7))


def machine() -> dict[str, Any]:
    names = [text for text in Path("/proc/cpuinfo").read_text().splitlines() if text.startswith("model name")]
    name = names[0].partition(":")[2].strip() if names else platform.processor()
    return {"processor": name, "cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=", ".join(JOBS))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--missing", action="store_true", help="only jobs and peers that the file does not have")
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    options = parser.parse_args()
    for name in options.jobs:
        if name not in JOBS:
            parser.error(f"unknown job {name!r}; choose from {', '.join(JOBS)}")
    numbers = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    jobs = numbers.setdefault("jobs", {})
    for name in [] if options.draw else options.jobs or JOBS:
        before = jobs.get(name, {}).get("sides", {})
        peers = [peer for peer in options.peers if name in PEERS[peer][2]]
        peers = [peer for peer in peers if not (options.missing and peer in before)]
        if options.missing and "fewjoule" in before and not peers:
            continue
        print(f"{name}: {JOBS[name].title}", flush=True)
        kept = {side: row for side, row in before.items() if side != "fewjoule"}
        jobs[name] = measured(name, JOBS[name], peers, kept)
        numbers["machine"] = machine()
        numbers["peaks"] = PEAKS
        numbers["tolerance"], numbers["watts_per_core"] = TOLERANCE, WATTS.watts_per_core
        write_atomically(FILE, (json.dumps(numbers, indent=1) + "\n").encode(), force=True)
    draw(numbers, list(JOBS))


if __name__ == "__main__":
    main()
