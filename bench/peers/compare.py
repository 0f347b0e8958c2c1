"""fewjoule beside its peers: the same jobs on the same arrays, taking turns in one run, each with all cores.

    python bench/peers/compare.py                          all jobs, all peers (first use makes their environments)
    python bench/peers/compare.py J4 J5-100 --peers torch  only these; what docs/performance.json has of others stays
    python bench/peers/compare.py --missing                only what the file does not have: goes on after a stop
    python bench/peers/compare.py --draw                   measure nothing; page and picture from the file

Every side is a process of its own in an environment of its own (made by pip from the registries, kept in the cache
folder), and waits while another one runs. The file is written after every job, so a stop loses one job at most; torch
goes first. A rate counts only where the answer is fewjoule's: the distance of the two answers is at most TOLERANCE of
what the job changed. Joules are modelled: CPU seconds of all a side's processes times the watts of one core. Ratios are
medians of turns; rates of different runs are not comparable.
"""

import argparse
import contextlib
import datetime
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # so that it can be run from anywhere

import jax
import jax.numpy as jnp
import numpy as np

from bench.peers.jobs import JOBS, Job
from bench.peers.show import draw
from bench.peers.sides import FEWJOULE, PEERS, WATTS, Side, environment
from fewjoule.files import write_atomically

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs/performance.json"
TOLERANCE = 1e-3
TURNS, SLOW_SECONDS = 7, 4.0
"""Turns of each side; a side whose call takes longer than the last has one turn."""
LOAD = os.getloadavg()[0]
"""Programs that ran on the machine when the command began: others, whose work would be measured too."""
FIRST = ["torch", "torch, one thread"]
"""Compared in all jobs before the others have their turns."""


def distance(answer: np.ndarray, ours: np.ndarray, start: np.ndarray) -> float:
    """Of two models, as a share of what the job changed. Of the losses of tasks, the largest as a share of it."""
    if ours.shape == start.shape:
        return float(np.linalg.norm(answer - ours) / np.linalg.norm(ours - start))
    return float(np.max(np.abs(answer - ours) / np.abs(ours)))


def measured(name: str, job: Job, peers: list[str]) -> dict[str, dict[str, Any]]:
    """The job by fewjoule and by the peers, taking turns: a row for each."""
    with tempfile.TemporaryDirectory(prefix="fewjoule-peers-", ignore_cleanup_errors=True) as place, _ending() as sides:
        folder = Path(place)
        arrays = {key: np.asarray(value) for key, value in job.arrays(job.length).items()}
        np.savez(folder / "data.npz", **arrays)
        ours = sides["fewjoule"] = Side(sys.executable, FEWJOULE, name, job, folder / "data.npz")
        found: dict[str, Any] = {}
        once: dict[str, float] = {"fewjoule": ours.calibrate()}
        for peer in peers:
            python = environment(peer, PEERS[peer].packages)
            if isinstance(python, str):
                found[peer] = {"left_out": python}
                continue
            try:
                sides[peer] = Side(python, PEERS[peer], name, job, folder / "data.npz")
                once[peer] = sides[peer].calibrate()
                off = apart(sides[peer], ours, arrays, folder)
            except RuntimeError as error:
                off = {"left_out": f"failed: {error}"}
            found[peer] = off
            if "left_out" in off and peer in sides:
                sides.pop(peer).end()
        for turn in range(TURNS):
            for side, worker in sides.items():
                if turn == 0 or once[side] < SLOW_SECONDS:
                    worker.turn()
        for side, worker in sides.items():
            found[side] = {**found.get(side, {}), **summary(worker, ours, once[side])}
    now = datetime.datetime.now().isoformat(" ", "minutes")
    for side, row in found.items():
        row.update(date=now, load_before=LOAD)
        print(f"  {name:7}{side:18}{line(row, job.unit)}", flush=True)
    return found


@contextlib.contextmanager
def _ending() -> Iterator[dict[str, Side]]:
    """Sides that are ended whatever happens."""
    sides: dict[str, Side] = {}
    try:
        yield sides
    finally:
        for side in sides.values():
            side.end()


def apart(worker: Side, ours: Side, arrays: dict[str, np.ndarray], folder: Path) -> dict[str, Any]:
    """How far the side's answer is from fewjoule's after the rounds that are compared, and after all of a call."""
    rounds = min(worker.job.checked or worker.rounds, worker.rounds)
    offs = {
        count: distance(worker.answer(folder, count), ours.answer(folder, count), arrays["start"])
        for count in {rounds, worker.rounds}
    }
    if not offs[rounds] <= TOLERANCE:
        return {"left_out": f"another answer: {offs[rounds]:.2g} of the change away from fewjoule's"}
    return {"answer_off": offs[rounds], "compared_rounds": rounds, "answer_off_at_the_end": offs[worker.rounds]}


def summary(worker: Side, ours: Side, once: float) -> dict[str, Any]:
    ratios = [a / b for a, b in zip(ours.rates, worker.rates, strict=False)]
    return {
        "per_second": statistics.median(worker.rates), "turns": len(worker.rates), "rounds_a_call": worker.rounds,
        "fewjoule_per_second": statistics.median(ours.rates),
        "times": statistics.median(ratios), "least": min(ratios), "most": max(ratios),
        "compile_seconds": max(0.0, worker.first["first_seconds"] - once),
        "joules": statistics.median(worker.joules), "peak_bytes": worker.peak_bytes,
        "versions": worker.first["versions"],
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
    first, then = ([peer for peer in options.peers if (peer in FIRST) == early] for early in (True, False))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        for some in () if options.draw else (first, then):
            for name in options.jobs or JOBS:
                compared(numbers, name, [peer for peer in some if name in PEERS[peer].jobs], options.missing)
    if "jobs" in numbers:
        draw(numbers, list(JOBS))


def compared(numbers: dict[str, Any], name: str, peers: list[str], only_missing: bool) -> None:
    """Measure a job, and put its rows among those that the file has."""
    job = JOBS[name]
    before = numbers.setdefault("jobs", {}).get(name, {}).get("sides", {})
    peers = [peer for peer in peers if not (only_missing and peer in before)]
    if not peers:
        return
    print(f"{name}: {job.title}", flush=True)
    limit, found = limit_per_second(job), measured(name, job, peers)
    if "fewjoule" in before and not set(peers) & set(FIRST):
        del found["fewjoule"]  # the file has it beside torch
    sides = before | found
    share = sides["fewjoule"]["per_second"] / limit
    print(f"  {name:7}{'limit':18}{limit:10.4g} {job.unit}/s; fewjoule reaches {share:.0%} of it", flush=True)
    sides = {side: sides[side] for side in ("fewjoule", *PEERS) if side in sides}
    numbers["jobs"][name] = {"title": job.title, "unit": job.unit, "limit_per_second": limit, "sides": sides}
    numbers["jobs"] = {name: numbers["jobs"][name] for name in JOBS if name in numbers["jobs"]}
    numbers["machine"], numbers["peaks"] = machine(), PEAKS
    numbers["tolerance"], numbers["watts_per_core"] = TOLERANCE, WATTS.watts_per_core
    write_atomically(FILE, (json.dumps(numbers, indent=1) + "\n").encode(), force=True)


if __name__ == "__main__":
    main()
