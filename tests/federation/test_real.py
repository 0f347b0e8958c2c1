"""Real processes on loopback with real certificates: runs, kills, absences, pauses, and nothing left behind."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import psutil
import pytest

pytest.importorskip("grpc", reason="needs the extra: pip install 'fewjoule[federation]'")

from fewjoule import InputError
from fewjoule.federation.carrier.operator import Operator
from tests.federation.real import FEWJOULE, MANY_ROUNDS, NAMES, Real, Running, await_true, federation, meta_of

pytestmark = pytest.mark.slow

SETTINGS = {"rounds": 600, "radius": 0.0005, "batch": 16}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """One federation for all tests that leave it as they found it."""
    with federation(tmp_path_factory.mktemp("real")) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(real: Real) -> np.ndarray:
    return meta_of(real.run(real.study(MANY_ROUNDS), "undisturbed"), "mb")


def test_trial_40_every_kind_of_method_gives_the_simulators_bits(real: Real) -> None:
    study = real.study(
        """
        [[methods]]
        name = "average"
        method = "average"
        [[methods]]
        name = "fedavg"
        method = "fedavg"
        rounds = 3
        local_steps = 5
        batch = 16
        [[methods]]
        name = "maml"
        method = "maml"
        rounds = 3
        batch = 8
        [[methods]]
        name = "coded"
        method = "fedavg"
        rounds = 3
        local_steps = 5
        batch = 16
        codec = "top-k:0.25:4"
        [[methods]]
        name = "auto"
        method = "meta_backward"
        rounds = 3
        batch = 16
        """
    )
    folder = real.run(study, "methods", [].append)
    local = {"rounds": 3, "local_steps": 5, "batch": 16}
    for name, wanted in {
        "average": real.simulated("average"),
        "fedavg": real.simulated("fedavg", **local),
        "maml": real.simulated("maml", rounds=3, batch=8),
        "coded": real.simulated("fedavg", **local, codec="top-k:0.25:4"),
        "auto": real.simulated("meta_backward", rounds=3, batch=16),
    }.items():
        np.testing.assert_array_equal(meta_of(folder, name), wanted, name)
    rows = (folder / "traffic.csv").read_text().splitlines()
    assert rows[0] == (
        "method,seed,exchange,round,agent,payload_up,payload_down,network_up,network_down,charged_up,charged_down"
    )
    summary = json.loads((folder / "summary.json").read_text())
    traffic = summary["methods"]["fedavg"]["traffic"]
    if sys.platform == "linux":
        assert traffic["network_up"] > traffic["payload_up"] > traffic["charged_up"] > 0
    energy = (folder / "energy.csv").read_text()
    for agent in NAMES:
        assert f"fedavg,3,{agent},1,computation," in energy


def test_undisturbed_run_equals_the_simulator(real: Real, undisturbed: np.ndarray) -> None:
    np.testing.assert_array_equal(undisturbed, real.simulated("meta_backward", **SETTINGS))


def test_a_killed_agent_comes_back_and_the_numbers_are_the_same(real: Real, undisturbed: np.ndarray) -> None:
    running = Running(real, real.study(MANY_ROUNDS), "agent")
    running.await_round(20)
    real.kill("south")
    await_true(lambda: any("waiting for south" in line for line in running.lines), 30, "a line that names the agent")
    page = real.folder / "agent" / "report.html"
    await_true(lambda: '<th>south</th><td class="left">away' in page.read_text(), 30, "a page that names the agent")
    assert 'http-equiv="refresh"' in page.read_text()
    real.start("south")
    np.testing.assert_array_equal(meta_of(running.result(), "mb"), undisturbed)
    assert "complete: the results" in page.read_text()
    assert 'http-equiv="refresh"' not in page.read_text()


def test_a_killed_server_comes_back_and_the_numbers_are_the_same(real: Real, undisturbed: np.ndarray) -> None:
    running = Running(real, real.study(MANY_ROUNDS), "server")
    running.await_round(20)
    real.kill("server")
    real.start("server")
    np.testing.assert_array_equal(meta_of(running.result(), "mb"), undisturbed)


def test_both_killed_and_the_numbers_are_the_same(real: Real, undisturbed: np.ndarray) -> None:
    running = Running(real, real.study(MANY_ROUNDS), "both")
    running.await_round(20)
    real.kill("server")
    real.kill("west")
    real.start("server", "west")
    np.testing.assert_array_equal(meta_of(running.result(), "mb"), undisturbed)


DIE_WHILE_WRITING = """
    import os, signal
    real, count = os.replace, [0]
    def replace(source, target, **rest):
        count[0] += str(target).endswith(".state")
        mark = os.environ["DIE_ONCE"]
        if count[0] == 30 and not os.path.exists(mark):
            open(mark, "w").close()
            os.truncate(source, 100)
            os.kill(os.getpid(), signal.SIGKILL)
        real(source, target, **rest)
    os.replace = replace
"""


@pytest.mark.parametrize("site", ["south", "server"])
def test_a_kill_in_the_middle_of_a_state_file(real: Real, undisturbed: np.ndarray, tmp_path: Path, site: str) -> None:
    """The process is killed with half of a state file on the disk, through a sitecustomize of its own."""
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(DIE_WHILE_WRITING))
    mark = tmp_path / "died"
    real.kill(site)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    real.start(site, environment={"PYTHONPATH": path, "DIE_ONCE": str(mark)})
    running = Running(real, real.study(MANY_ROUNDS), f"state-{site}")
    await_true(mark.exists, 60, "the kill")
    real.processes[site].wait()
    real.start(site)
    np.testing.assert_array_equal(meta_of(running.result(), "mb"), undisturbed)


def test_ten_random_kills_and_the_numbers_are_the_same(real: Real, undisturbed: np.ndarray) -> None:
    """Agents and the server, at any moment, in any order, also while the last one killed is still coming back."""
    running = Running(real, real.study(MANY_ROUNDS), "ten")
    running.await_round(5)
    random = np.random.default_rng(10)
    names = [*random.choice(["server", *NAMES], 10)]
    try:
        for name in names:
            real.kill(name)
            real.start(name)
            time.sleep(random.uniform(0.0, 4.0))
        np.testing.assert_array_equal(meta_of(running.result(), "mb"), undisturbed)
    except BaseException:
        print(f"killed in this order: {names}")
        raise


DISK_FULL = """
    import errno, os
    real = os.replace
    def replace(source, target, **rest):
        if str(target).endswith(".state") and os.path.exists(os.environ["DISK_FULL"]):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target, **rest)
    os.replace = replace
"""


@pytest.mark.parametrize("site", ["south", "server"])
def test_trial_42_a_full_disk_is_a_pause(real: Real, undisturbed: np.ndarray, tmp_path: Path, site: str) -> None:
    """Said in one line on the site's screen and to the operator; the run goes on by itself when there is space."""
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(DISK_FULL))
    full = tmp_path / "full"
    real.kill(site)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    real.start(site, environment={"PYTHONPATH": path, "DISK_FULL": str(full)})
    before = {name: len(real.log(name)) for name in (site, "server")}
    try:
        running = Running(real, real.study(MANY_ROUNDS), f"full-{site}")
        running.await_round(5)
        full.touch()
        real.await_log(site, "paused: No space left on device; free space", 60, before[site])
        real.await_log("server", "No space left on device", 30, before["server"])
        if site == "server":
            await_true(lambda: any("No space left" in line for line in running.lines), 30, "the operator's line")
        full.unlink()
        np.testing.assert_array_equal(meta_of(running.result(), "mb"), undisturbed)
    finally:
        full.unlink(missing_ok=True)
        real.kill(site)
        real.start(site)


def test_trial_44_and_46_few_threads_and_little_memory(real: Real) -> None:
    """After thousands of messages; all processes of a site together."""
    real.run(real.study(MANY_ROUNDS), "small")
    for name, started in real.processes.items():
        process = psutil.Process(started.pid)
        assert process.children(recursive=True) == [], name
        assert process.num_threads() <= 200, name
        assert process.memory_full_info().pss <= 350e6, name


def test_skip_goes_on_without_an_agent_and_takes_it_back(real: Real) -> None:
    study = real.study(MANY_ROUNDS, 'policy = "skip"\nquorum = 2\ndeadline_seconds = 10.0')
    running = Running(real, study, "skip")
    running.await_round(20)
    real.kill("north")
    await_true(lambda: any("agents 2/3" in line for line in running.lines), 90, "a round with two agents")
    real.start("north")
    folder = running.result()
    rows = (folder / "skipped.csv").read_text().splitlines()[1:]
    assert rows
    assert {row.split(",")[4] for row in rows} == {"north"}
    trace = [line.split(",") for line in (folder / "trace.csv").read_text().splitlines()[1:]]
    present = [float(row[-1]) for row in trace]
    assert present[0] == 3.0
    assert 2.0 in present
    assert present[-1] == 3.0  # it came back


def test_stop_status_and_resume(real: Real, undisturbed: np.ndarray) -> None:
    kit = str(real.kit("operator"))
    running = Running(real, real.study(MANY_ROUNDS), "stopped")
    running.await_round(5)
    status = subprocess.run([*FEWJOULE, "status", "--kit", kit], capture_output=True, text=True, check=True).stdout
    assert "north: connected for" in status
    assert "running: run 1/1  round" in status
    folder = str(real.folder / "stopped")
    subprocess.run([*FEWJOULE, "stop", folder, "--kit", kit], check=True)
    with pytest.raises(InputError, match="asked to stop; continue with: fewjoule federation resume"):
        running.result()
    done = subprocess.run([*FEWJOULE, "resume", folder, "--kit", kit], capture_output=True, text=True, check=True)
    assert "run folder" in done.stdout
    rows = (Path(folder) / "trace.csv").read_text().splitlines()[1:]
    assert [int(row.split(",")[2]) for row in rows] == list(range(1, 601))  # none lost, none twice
    np.testing.assert_array_equal(meta_of(Path(folder), "mb"), undisturbed)
    again = subprocess.run([*FEWJOULE, "resume", folder, "--kit", kit], capture_output=True, text=True)
    assert again.returncode == 2
    assert "nothing is left to resume" in again.stderr


def test_a_server_goes_on_by_itself_when_nobody_follows(real: Real, undisturbed: np.ndarray) -> None:
    """The operator and the server are killed; the server, started again, finishes the run before anybody asks."""
    operator = subprocess.Popen(
        [*FEWJOULE, "run", str(real.study(MANY_ROUNDS)), "--kit", str(real.kit("operator")), "--out", "alone"],
        cwd=real.folder, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert operator.stdout is not None
    for line in operator.stdout:
        if "  round " in line and "round 0/" not in line:
            break
    operator.kill()
    operator.wait()
    real.kill("server")
    before = len(real.log("server"))
    real.start("server")
    real.await_log("server", "complete: all exchanges done", 120, before)
    subprocess.run(
        [*FEWJOULE, "resume", str(real.folder / "alone"), "--kit", str(real.kit("operator"))], check=True, timeout=120
    )
    np.testing.assert_array_equal(meta_of(real.folder / "alone", "mb"), undisturbed)


def test_trial_39_an_agent_that_hangs_is_named_and_stop_works(real: Real) -> None:
    """The process is stopped by a signal: its connection stays open, and it answers nothing."""
    running = Running(real, real.study(MANY_ROUNDS), "hung")
    running.await_round(5)
    real.processes["west"].send_signal(signal.SIGSTOP)
    try:
        time.sleep(2)
        with closing(Operator(real.kit("operator"))) as operator:
            began = time.monotonic()
            (job,) = [job for job in operator.status()["jobs"] if job["state"] in ("running", "waiting")]
            operator.stop(job["job"])
            with pytest.raises(InputError, match="asked to stop"):
                running.result()
            assert time.monotonic() - began < 20  # not the minutes of a deadline
    finally:
        real.processes["west"].send_signal(signal.SIGCONT)
    real.await_log("west", "connected to federation")


def test_trial_42_a_port_in_use_is_one_line_and_exit_code_2(real: Real, tmp_path: Path) -> None:
    copy = tmp_path / "kit"
    shutil.copytree(real.kit("server"), copy, ignore=shutil.ignore_patterns(".lock", "state", "jobs"))
    done = subprocess.run([*FEWJOULE, "server", str(copy)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"port {real.port} of this machine cannot be listened on" in done.stderr
    assert done.stderr.count("\n") == 1


def test_trial_42_a_copied_kit_is_told_on_both_sides(real: Real, tmp_path: Path) -> None:
    real.await_log("server", "agent north connected")
    copy, log = tmp_path / "kit", tmp_path / "copy.log"
    shutil.copytree(real.kit("north"), copy, ignore=shutil.ignore_patterns(".lock", "state"))
    before = {name: len(real.log(name)) for name in ("server", "north")}
    with log.open("wb") as out:
        second = subprocess.Popen(
            [*FEWJOULE, "agent", str(copy), "--data", str(real.folder / "north.npz")], stdout=out, stderr=out
        )
    try:
        await_true(lambda: b"the server knows this kit from elsewhere" in log.read_bytes(), 30, "a line at the copy")
        real.await_log("server", "refused: a second connection with the same kit by agent north", 5, before["server"])
        real.await_log("north", "a second machine connects with a copy of this kit", 5, before["north"])
        assert b"connected to federation" not in log.read_bytes()
    finally:
        second.terminate()
        assert second.wait(20) == 0
    assert "is gone" not in real.log("server")[before["server"] :]  # the first one stayed


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        ("localhost", 1, "the server localhost:1 is away"),
        ("no-such-host.invalid", 9, "the name no-such-host.invalid cannot be resolved"),
    ],
)
def test_trial_42_an_agent_says_why_it_is_alone(real: Real, tmp_path: Path, host: str, port: int, words: str) -> None:
    kit = tmp_path / "kit"
    shutil.copytree(real.kit("north"), kit, ignore=shutil.ignore_patterns(".lock", "state"))
    facts = json.loads((kit / "fewjoule.json").read_text())
    (kit / "fewjoule.json").write_text(json.dumps({**facts, "host": host, "port": port}))
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*FEWJOULE, "agent", str(kit), "--data", str(real.folder / "north.npz")], stdout=out, stderr=out
        )
    try:
        await_true(lambda: words in log.read_text(), 60, words)
    finally:
        process.terminate()
        assert process.wait(20) == 0


def test_the_demo_ends_by_itself_and_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    subprocess.run(
        [sys.executable, "-m", "fewjoule", "federation", "demo", "-o", str(out)], check=True, timeout=180, cwd=tmp_path
    )
    assert (out / "run" / "summary.json").is_file()
    port = json.loads((out / "kits" / "server" / "fewjoule.json").read_text())["port"]
    left = [p.pid for p in psutil.process_iter(["cmdline"]) if str(out) in " ".join(p.info["cmdline"] or [])]
    assert left == []
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # fails all the same where anyone listens
        listener.bind(("127.0.0.1", port))
    for path in (out / "kits").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
