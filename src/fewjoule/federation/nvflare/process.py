"""A site in the foreground: NVFlare's daemon as a child, its log in plain lines, restarts with back-off, a clean end.

The daemon starts one process per run. When this process ends, by a signal or by force, all of them end with it.
"""

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

from fewjoule.errors import InputError
from fewjoule.federation.nvflare.site import MARK, lock, template

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
GRACE_SECONDS = 5.0
LARGEST_LOG_BYTES = 20_000_000
_PR_SET_CHILD_SUBREAPER = 36
_LINES = tomllib.loads(template("log-lines.toml"))
# Asks the kernel to end this process with its parent, then becomes the daemon; done in a program of its own because a
# fork of a process that has loaded JAX may hang.
_LEASH = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); "
    "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)


def plain_line(raw: str) -> str | None:
    """What to show of one line of a daemon's output; None for nothing."""
    raw = raw.rstrip()
    if MARK in raw:
        return raw.split(MARK, 1)[1]
    if re.search(r" - (?:DEBUG|INFO) - ", raw):
        for pattern, text in _LINES["told"].items():
            if found := re.search(pattern, raw):
                return text.format(*found.groups())
        return None
    if "Handshake failed" in raw:
        for code, text in _LINES["handshakes"].items():
            if code in raw:
                return f"refused: {text} ({code}{raw.split(code, 1)[1]})"
    if re.search(_LINES["alarm"], raw):
        return "refused: " + re.sub(r"^.*? - (?:WARNING|ERROR|CRITICAL) - ", "", raw)[:500]
    return None


def run_site(kit: Path, command: list[str]) -> int:
    """Keep `command` running until SIGINT or SIGTERM; 0 after a clean end."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with lock(kit / ".lock") as free:
        if not free:
            raise InputError(f"{kit} is already running on this machine; stop that one first.")
        _adopt_orphans()
        pause = FIRST_PAUSE_SECONDS
        while not stop.is_set():
            began = time.monotonic()
            child = _start(kit, command)
            reader = threading.Thread(target=_pump, args=(child, kit / "log.txt"), daemon=True)
            reader.start()
            while child.poll() is None and not stop.wait(0.2):
                pass
            _end(child)
            reader.join(2)
            if stop.is_set():
                break
            pause = FIRST_PAUSE_SECONDS if time.monotonic() - began > LONGEST_PAUSE_SECONDS else pause
            _show(f"ended with code {child.returncode}; starting again in {pause:.0f} s (details in {kit / 'log.txt'})")
            stop.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    _show("stopped")
    return 0


def daemon_command(kit: Path, agent: str | None = None) -> list[str]:
    """NVFlare's daemon of this kit: the server's, or that of the agent with this name."""
    side, uid = ("server", []) if agent is None else ("client", [f"uid={agent}"])
    program = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{side}.{side}_train"]
    settings = ["secure_train=true", *uid, "org=fewjoule", "config_folder=config"]
    return [*program, "-m", str(kit.resolve()), "-s", f"fed_{side}.json", "--set", *settings]


def _start(kit: Path, command: list[str]) -> "subprocess.Popen[bytes]":
    # gRPC tells why it refused a TLS handshake at this level only
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "MALLOC_ARENA_MAX": "4", "GRPC_VERBOSITY": "INFO"}
    if sys.platform == "linux":
        command = [sys.executable, "-c", _LEASH, str(os.getpid()), *command]
    return subprocess.Popen(
        command,
        cwd=kit,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # a Ctrl-C in the terminal reaches this process alone, which ends the daemon in order
        umask=0o077,
    )


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End the daemon and everything it started: first politely, then by force."""
    import psutil

    family = psutil.Process().children(recursive=True)
    for process in family:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, left = psutil.wait_procs(family, timeout=GRACE_SECONDS)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=GRACE_SECONDS)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_SECONDS)


def _pump(child: "subprocess.Popen[bytes]", log: Path) -> None:
    assert child.stdout is not None
    if log.exists() and log.stat().st_size > LARGEST_LOG_BYTES:
        log.replace(log.with_suffix(".old.txt"))
    last = ""
    with log.open("a", errors="replace") as file:
        for raw in child.stdout:
            text = raw.decode(errors="replace")
            file.write(text)
            file.flush()
            line = plain_line(text)
            if line is not None and line != last:
                _show(line)
                last = line


def _show(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def _adopt_orphans() -> None:
    """Become the parent of processes whose own parent died, so that none is left behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
