"""Processes of one run on this machine: start them, wait for them, and end all when one ends."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import typer

from fewjoule.training.processes import free_address

STARTED_BY = "FEWJOULE_STARTED_BY"
"""In the environment of a process that was started here: the number of the one that did."""
GRACE_SECONDS = 10.0


def start_processes(folder: Path, count: int) -> None:
    """Run a study that lies in its folder by `count` processes, each with its share of the cores.

    The first one shows its progress here; what any says on stderr is shown when all have ended, and only that of the
    one that failed first.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    with ExitStack() as files:
        said = [files.enter_context(tempfile.TemporaryFile()) for _ in range(count)]
        address = free_address()
        started = [_started(folder, address, process, count, said[process]) for process in range(count)]
        try:
            failed, code = _wait(started)
        except KeyboardInterrupt:
            _end(started, signal.SIGINT)
            failed, code = 0, 130
        finally:
            _end(started, signal.SIGKILL)
        if code >= 0:
            said[failed].seek(0)
            sys.stderr.buffer.write(said[failed].read())
            raise typer.Exit(code)
    lost = f"process {failed} of {count} was killed by signal {-code}, so the run has stopped"
    print(f"fewjoule: {lost}; continue with: fewjoule run --resume {folder} --processes {count}", file=sys.stderr)
    raise typer.Exit(1)


def end_with_parent() -> None:
    """In a process that was started here: end it when the one that did is gone, however that ended."""
    parent = os.environ.get(STARTED_BY)
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _started(folder: Path, address: str, process: int, count: int, stderr: IO[bytes]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "fewjoule", "run", "--resume", str(folder)]
    command += ["--coordinator", address, "--process", str(process), "--of", str(count)]
    environment = {**os.environ, STARTED_BY: str(os.getpid())}
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": stderr, "env": environment}
    options["stdout"] = None if process == 0 else subprocess.DEVNULL
    options["start_new_session"] = True  # Ctrl-C reaches them once, from here
    if not hasattr(os, "sched_setaffinity"):
        environment.setdefault("JAX_NUM_CPU_DEVICES", str(max(1, (os.cpu_count() or 1) // count)))
        return subprocess.Popen(command, **options)
    every = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, every[process::count] or [every[process % len(every)]])
    try:
        return subprocess.Popen(command, **options)  # it inherits the cores
    finally:
        os.sched_setaffinity(0, every)


def _wait(started: "Sequence[subprocess.Popen[bytes]]") -> tuple[int, int]:
    """Wait until all have ended well, or one has not: which one, and its code. One that was killed comes before those
    that miss it."""
    while any(process.poll() is None for process in started) and not any(process.returncode for process in started):
        time.sleep(0.1)
    time.sleep(0.5 if any(process.returncode for process in started) else 0)
    codes = [process.poll() or 0 for process in started]
    code = min(codes) if min(codes) < 0 else next((code for code in codes if code), 0)
    return codes.index(code), code


def _end(started: "Sequence[subprocess.Popen[bytes]]", number: int) -> None:
    """Send a signal to those that still run, and wait for them for a while."""
    for process in started:
        if process.poll() is None:
            process.send_signal(number)
    before = time.monotonic()
    while any(process.poll() is None for process in started) and time.monotonic() - before < GRACE_SECONDS:
        time.sleep(0.05)
