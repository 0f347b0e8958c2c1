"""Feed every reader of the package with damaged files and messages, and count what it does with them.

    python bench/fuzz.py [--inputs 1000000] [--seed 0] [--readers codecs,npz] [--jobs 2] [--failures runs/fuzz]
    python bench/fuzz.py --replay runs/fuzz/npz-wrong-1a2b3c4d.bin

An input is one that the package wrote, with a few things wrong (`fuzz_mutations`), or one written by hand; some keep
the checksum that no longer fits, others get a right one. A reader may read it, or refuse it by its documented error in
one line. Failures are: any other exception or the end of the process (wrong), more than 1 s of CPU time (slow), more
than 256 MB of memory (memory; an address-space limit, so memory that is asked for counts even if never touched), and
other numbers than were written although a checksum says so (changed). The smallest input of each failure is kept.

The inputs are split by each reader's `share` (in `fuzz_readers`): most go to those that take microseconds, few to those
that take milliseconds, so that a million ends within the hour on 2 cores. Exit code 1 if anything failed.
"""

import argparse
import contextlib
import ctypes
import hashlib
import multiprocessing
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa

import fewjoule

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, this file's folder is there instead
from bench.fuzz_readers import READERS, Reader

MOST_SECONDS, MOST_BYTES = 1.0, 256 * 2**20
HANGS_SECONDS = 30.0  # of wall time, then the process is killed
CHUNK = 200  # inputs that a process is handed at once
FAILURES = ("wrong", "slow", "memory", "changed")
HEADINGS = ("tried", "read", "refused in one line", "wrong exception", "over 1 s", "over 256 MB", "changed silently")
PACKAGE = f"{Path(fewjoule.__file__).parent}/"
SPAWN = multiprocessing.get_context("spawn")


class Material(NamedTuple):
    """What a reader's inputs are made of; the parent process makes it once."""

    reader: Reader
    valid: list[bytes]
    hostile: list[bytes]

    def input(self, seed: int, number: int) -> tuple[bytes, bool]:
        """The input of this number, and whether a checksum in it is as the damage left it."""
        if number < len(self.hostile):
            return self.hostile[number], False
        return self.reader.input(Random(f"{seed}/{self.reader.name}/{number}"), self.valid)


class Outcome(NamedTuple):
    kind: str  # "read", "refused" or one of FAILURES
    what: str = ""  # the exception and the line of the package that it came from
    error: BaseException | None = None


class Found(NamedTuple):
    """All failures of one reader that look the same."""

    reader: str
    kind: str
    what: str
    number: int  # of such inputs
    data: bytes  # the smallest

    @property
    def file(self) -> str:
        return f"{self.reader}-{self.kind}-{hashlib.blake2b(self.what.encode(), digest_size=4).hexdigest()}.bin"


class Tally(NamedTuple):
    outcomes: Counter[str]
    found: dict[tuple[str, str], Found]

    def add(self, found: Found) -> None:
        old = self.found.get((found.kind, found.what), found._replace(number=0))
        data = min(old.data, found.data, key=len)
        self.found[found.kind, found.what] = found._replace(number=old.number + found.number, data=data)

    def merge(self, other: "Tally") -> None:
        self.outcomes.update(other.outcomes)
        for found in other.found.values():
            self.add(found)


def attempt(reader: Reader, data: bytes, folder: Path, intact: frozenset[bytes] | None = None) -> Outcome:
    """Read one input. `intact` are the numbers that it may hold, where its checksum must tell."""
    outcome, seconds = _timed(reader, data, folder, intact)
    if seconds > MOST_SECONDS:  # a second time, so that what a process does only once is not held against the input
        outcome, seconds = _timed(reader, data, folder, intact)
        if seconds > MOST_SECONDS and outcome.kind != "memory":
            return outcome._replace(kind="slow", what=f"over {MOST_SECONDS:g} s; {outcome.what}")
    return outcome


def _timed(reader: Reader, data: bytes, folder: Path, intact: frozenset[bytes] | None) -> tuple[Outcome, float]:
    begin = time.process_time()
    try:
        with _limited_memory():
            value = reader.read(data, folder)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        return _judge(reader, error), time.process_time() - begin
    seconds = time.process_time() - begin
    if intact is not None and reader.numbers is not None and not intact.issuperset(reader.numbers(value)):
        return Outcome("changed", "read with other numbers"), seconds
    return Outcome("read"), seconds


def _judge(reader: Reader, error: BaseException) -> Outcome:
    what = f"{type(error).__name__} at {_place(error)}"
    link: BaseException | None = error
    while link is not None:
        if isinstance(link, MemoryError):
            return Outcome("memory", f"{type(link).__name__} at {_place(link)}", error)
        link = link.__cause__ or link.__context__
    if not isinstance(error, reader.refusal):
        return Outcome("wrong", what, error)
    return Outcome("refused") if len(str(error).splitlines()) == 1 else Outcome("wrong", f"many lines, {what}", error)


def _place(error: BaseException) -> str:
    """The last line of the package that the error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    last = ([frame for frame in frames if frame.filename.startswith(PACKAGE)] or list(frames) or [None])[-1]
    return f"{last.filename.removeprefix(PACKAGE)}:{last.lineno} {last.name}" if last else "an unknown line"


@contextlib.contextmanager
def _limited_memory() -> Iterator[None]:
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + MOST_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _prepare_process() -> None:
    """Few threads and no reserves of address space, which would count as memory."""
    warnings.simplefilter("ignore")
    ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX
    pa.set_memory_pool(pa.system_memory_pool())
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)


def work(pipe: Connection, materials: Mapping[str, Material], seed: int, at: Any) -> None:
    """A process: takes (reader, first, end) from the pipe and gives tallies, until it gets None."""
    _prepare_process()
    known: dict[str, frozenset[bytes]] = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as name:
        while (chunk := pipe.recv()) is not None:
            material = materials[chunk[0]]
            reader, folder = material.reader, Path(name)
            if reader.name not in known:  # also has the libraries load what they need
                whole = [reader.read(data, folder) for data in material.valid]
                known[reader.name] = frozenset(b for v in whole for b in (reader.numbers or (lambda _: []))(v))
            tally = Tally(Counter(), {})
            for number in range(*chunk[1:]):
                at[:] = number, time.monotonic()
                data, unsealed = material.input(seed, number)
                outcome = attempt(reader, data, folder, known[reader.name] if unsealed else None)
                tally.outcomes[outcome.kind] += 1
                if outcome.kind in FAILURES:
                    tally.add(Found(reader.name, outcome.kind, outcome.what, 1, data))
            at[:] = -1, time.monotonic()
            pipe.send(tally)


class Worker:
    """A process that works, from the parent's side."""

    def __init__(self, materials: Mapping[str, Material], seed: int) -> None:
        self.pipe, theirs = SPAWN.Pipe()
        self.at = SPAWN.RawArray("d", [-1, time.monotonic()])  # the input that it reads, and since when
        self.chunk: tuple[str, int, int] | None = None
        self.process = SPAWN.Process(target=work, args=(theirs, materials, seed, self.at), daemon=True)
        self.process.start()
        theirs.close()

    def hand(self, chunk: tuple[str, int, int] | None) -> None:
        self.chunk = chunk
        self.pipe.send(chunk)

    def hangs(self) -> bool:
        return self.at[0] >= 0 and time.monotonic() - self.at[1] > HANGS_SECONDS


def fuzz(readers: Mapping[str, Reader], inputs: Mapping[str, int], seed: int = 0, jobs: int = 1) -> dict[str, Tally]:
    """Try this many inputs of every reader, in `jobs` processes; those that die are replaced."""
    materials = {name: Material(reader, reader.valid(), reader.hostile()) for name, reader in readers.items()}
    waiting = deque(
        (name, first, min(first + CHUNK, inputs[name])) for name in readers for first in range(0, inputs[name], CHUNK)
    )
    tallies = {name: Tally(Counter(), {}) for name in readers}
    workers = [Worker(materials, seed) for _ in range(jobs)]
    for worker in workers:
        worker.hand(waiting.popleft() if waiting else None)
    while any(worker.chunk for worker in workers):
        busy = [worker for worker in workers if worker.chunk]
        wait([worker.pipe for worker in busy], timeout=1.0)
        for worker in busy:
            assert worker.chunk is not None
            name, first, end = worker.chunk
            hung = worker.hangs()
            if hung:
                worker.process.kill()
                worker.process.join()
            try:
                if not worker.pipe.poll() and worker.process.is_alive():
                    continue
                tallies[name].merge(worker.pipe.recv())
            except (EOFError, ConnectionError):  # it died of its input; what it had counted is counted anew
                worker.process.join()
                number = int(worker.at[0])
                if number < 0:
                    raise RuntimeError(f"{name}: reading a valid input ended the process.") from None
                kind, what = ("slow", "killed") if hung else ("wrong", f"the process died: {worker.process.exitcode}")
                tallies[name].outcomes[kind] += 1
                tallies[name].add(Found(name, kind, what, 1, materials[name].input(seed, number)[0]))
                waiting.extendleft(
                    part for part in ((name, first, number), (name, number + 1, end)) if part[1] < part[2]
                )
                workers[workers.index(worker)] = worker = Worker(materials, seed)
            worker.hand(waiting.popleft() if waiting else None)
    for worker in workers:
        worker.process.join()
    return tallies


def show(tallies: Mapping[str, Tally], folder: Path) -> bool:
    """Print the table, keep the failing inputs; whether nothing failed."""
    print("  ".join([f"{'reader':12}", *HEADINGS]))
    for name, (outcomes, _) in tallies.items():
        counts = [outcomes.total(), *(outcomes[kind] for kind in ("read", "refused", *FAILURES))]
        print("  ".join([f"{name:12}", *(f"{n:>{len(head)}}" for n, head in zip(counts, HEADINGS, strict=True))]))
    failures = [found for tally in tallies.values() for found in tally.found.values()]
    for found in failures:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / found.file).write_bytes(found.data)
        smallest = f"the smallest, {len(found.data)} bytes, is {folder / found.file}"
        print(f"{found.reader}: {found.kind}, {found.what}; {found.number} inputs, {smallest}")
    return not failures


def replay(path: Path) -> bool:
    """Read one kept input again and show what happens; whether it went well."""
    name, kind, _ = path.name.rsplit("-", 2)
    reader = READERS[name]
    _prepare_process()
    with tempfile.TemporaryDirectory() as folder:
        whole = [reader.read(data, Path(folder)) for data in reader.valid()]
        known = frozenset(b for v in whole for b in reader.numbers(v)) if kind == "changed" and reader.numbers else None
        outcome = attempt(reader, path.read_bytes(), Path(folder), known)
    print(f"{name}: {outcome.kind} {outcome.what}")
    if outcome.error is not None:
        traceback.print_exception(outcome.error, limit=-6)
    return outcome.kind not in FAILURES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--readers", default=",".join(READERS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--failures", type=Path, default=Path("runs/fuzz"), help="folder for the inputs that failed")
    parser.add_argument("--replay", type=Path, help="read one of those again")
    given = parser.parse_args()
    if given.replay:
        sys.exit(not replay(given.replay))
    chosen = {name: READERS[name] for name in given.readers.split(",")}
    whole = sum(reader.share for reader in chosen.values())
    inputs = {name: round(given.inputs * reader.share / whole) for name, reader in chosen.items()}
    begin = time.monotonic()
    fine = show(fuzz(chosen, inputs, given.seed, given.jobs), given.failures)
    print(f"{sum(inputs.values())} inputs in {time.monotonic() - begin:.0f} s")
    sys.exit(not fine)


if __name__ == "__main__":
    main()
