"""Real processes on loopback with real certificates: runs, kills, absences, refusals, and nothing left behind."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs the extra: pip install 'fewjoule[federation]'")

from fewjoule import InputError
from fewjoule.federation.nvflare.jobs import Operator
from tests.federation.real import NAMES, Real, await_true, federation, meta_of

pytestmark = pytest.mark.slow

MANY_ROUNDS = """
    [[methods]]
    name = "mb"
    method = "meta_backward"
    rounds = 400
    radius = 0.0005
    batch = 16
"""
SETTINGS = {"rounds": 400, "radius": 0.0005, "batch": 16}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """One federation for all tests that leave it as they found it."""
    with federation(tmp_path_factory.mktemp("real")) as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(real: Real) -> np.ndarray:
    return meta_of(real.run(real.study(MANY_ROUNDS), "undisturbed"), "mb")


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


def test_every_kind_of_method_gives_the_simulators_model(real: Real) -> None:
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
        codec = "quantise:3"
        [[methods]]
        name = "auto"
        method = "meta_backward"
        rounds = 3
        batch = 16
        """
    )
    folder = real.run(study, "methods")
    same = {"rtol": 1e-4, "atol": 1e-6}
    np.testing.assert_allclose(meta_of(folder, "average"), real.simulated("average"), **same)
    wanted = real.simulated("fedavg", rounds=3, local_steps=5, batch=16)
    np.testing.assert_allclose(meta_of(folder, "fedavg"), wanted, **same)
    coded = real.simulated("fedavg", rounds=3, local_steps=5, batch=16, codec="quantise:3")
    np.testing.assert_allclose(meta_of(folder, "coded"), coded, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(meta_of(folder, "maml"), real.simulated("maml", rounds=3, batch=8), **same)
    wanted = real.simulated("meta_backward", rounds=3, batch=16)
    np.testing.assert_allclose(meta_of(folder, "auto"), wanted, **same)
    rows = (folder / "traffic.csv").read_text().splitlines()
    assert rows[0] == (
        "method,seed,agent,round,payload_up,payload_down,network_up,network_down,charged_up,charged_down"
    )
    summary = json.loads((folder / "summary.json").read_text())
    traffic = summary["methods"]["fedavg"]["traffic"]
    if sys.platform == "linux":
        assert traffic["network_up"] > traffic["payload_up"] > traffic["charged_up"] > 0
    energy = (folder / "energy.csv").read_text()
    for agent in NAMES:
        assert f"fedavg,3,{agent},1,computation," in energy


def test_undisturbed_run_equals_the_simulator(real: Real, undisturbed: np.ndarray) -> None:
    np.testing.assert_allclose(undisturbed, real.simulated("meta_backward", **SETTINGS), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("whole", [False, True], ids=["process of the job", "whole site"])
def test_a_killed_agent_comes_back_and_the_numbers_are_the_same(
    real: Real, undisturbed: np.ndarray, whole: bool
) -> None:
    running = Running(real, real.study(MANY_ROUNDS), f"agent-{whole}")
    running.await_round(20)
    real.kill("south", worker_only=not whole)
    if whole:
        real.start("south")
    folder = running.result()
    np.testing.assert_array_equal(meta_of(folder, "mb"), undisturbed)
    assert len(json.loads((folder / "federation.json").read_text())["jobs"]) >= 2


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
    import os, signal, sys
    if any("worker_process" in a or "runner_process" in a for a in sys.orig_argv):
        real, count = os.replace, [0]
        def replace(source, target):
            count[0] += str(target).endswith(".state")
            mark = os.environ["DIE_ONCE"]
            if count[0] == 30 and not os.path.exists(mark):
                open(mark, "w").close()
                os.truncate(source, 100)
                os.kill(os.getpid(), signal.SIGKILL)
            real(source, target)
        os.replace = replace
"""


@pytest.mark.parametrize("site", ["south", "server"])
def test_a_kill_in_the_middle_of_a_state_file(real: Real, undisturbed: np.ndarray, tmp_path: Path, site: str) -> None:
    """The process is killed with half of a state file on the disk, through a sitecustomize of its own."""
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(DIE_WHILE_WRITING))
    mark = tmp_path / "died"
    real.kill(site)
    real.start(site, environment={"PYTHONPATH": str(tmp_path), "DIE_ONCE": str(mark)})
    try:
        folder = real.run(real.study(MANY_ROUNDS), f"state-{site}")
    finally:
        real.kill(site)
        real.start(site)
    assert mark.exists()
    np.testing.assert_array_equal(meta_of(folder, "mb"), undisturbed)


def test_skip_goes_on_without_an_agent_and_takes_it_back(real: Real) -> None:
    study = real.study(MANY_ROUNDS.replace("400", "600"), 'policy = "skip"\nquorum = 2\ndeadline_seconds = 10.0')
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


def test_stop_status_and_resume(real: Real) -> None:
    kit = str(real.folder / "kits" / "operator")
    running = Running(real, real.study(MANY_ROUNDS.replace("400", "1500")), "stopped")
    running.await_round(5)
    command = [sys.executable, "-m", "fewjoule", "federation"]
    status = subprocess.run([*command, "status", "--kit", kit], capture_output=True, text=True, check=True).stdout
    assert "north: connected" in status
    assert "fewjoule-" in status
    folder = str(real.folder / "stopped")
    subprocess.run([*command, "stop", folder, "--kit", kit], check=True)
    with pytest.raises(InputError, match="asked to stop; go on with: fewjoule federation resume"):
        running.result()
    done = subprocess.run([*command, "resume", folder, "--kit", kit], capture_output=True, text=True, check=True)
    assert "run folder" in done.stdout
    rows = (Path(folder) / "trace.csv").read_text().splitlines()[1:]
    assert [int(row.split(",")[2]) for row in rows] == list(range(1, 1501))  # none lost, none twice
    again = subprocess.run([*command, "resume", folder, "--kit", kit], capture_output=True, text=True)
    assert again.returncode == 2
    assert "nothing is left to resume" in again.stderr


# Who is not let in


@contextlib.contextmanager
def stranger(real: Real, tmp_path: Path, name: str, change: "Changed") -> Iterator[Path]:
    """An agent that starts from a changed copy of a kit; its log."""
    kit = tmp_path / "kit"
    shutil.copytree(real.folder / "kits" / name, kit, ignore=shutil.ignore_patterns(".lock", "state", "log.txt"))
    change(kit)
    log = tmp_path / "stranger.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "fewjoule", "federation", "agent", str(kit), "--data", real.folder / "north.npz"],
            stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        yield log
    finally:
        process.terminate()
        process.wait(40)


def self_signed(kit: Path) -> None:
    """The right names, signed by nobody the server knows."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    old = x509.load_pem_x509_certificate((kit / "startup" / "client.crt").read_bytes())
    key = rsa.generate_private_key(65537, 2048)
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    (kit / "startup" / "client.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pem, plain = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL
    (kit / "startup" / "client.key").write_bytes(key.private_bytes(pem, plain, serialization.NoEncryption()))


def another_federation(kit: Path) -> None:
    """A whole kit of another federation with the same names, pointed at this server."""
    from fewjoule.federation.nvflare.provision import Federation, provision

    facts = json.loads((kit / "fewjoule.json").read_text())
    other = kit.parent / "other"
    provision(Federation(facts["federation"], facts["host"], facts["port"], tuple(facts["agents"])), other)
    for name in ("client.crt", "client.key", "rootCA.pem"):
        shutil.copy(other / facts["name"] / "startup" / name, kit / "startup" / name)


def posing(kit: Path) -> None:
    """The certificate of `north`, the name of `south`."""
    for name in ("fewjoule.json", "startup/fed_client.json"):
        path = kit / name
        path.write_text(path.read_text().replace('"north"', '"south"', 1 if name == "fewjoule.json" else -1))


Changed = type(self_signed)


def dial(real: Real, kit: Path | None) -> bytes:
    """What the server says to a TLS client that trusts it and shows this kit's certificate, or none."""
    import ssl

    context = ssl.create_default_context(cafile=str(real.folder / "kits" / "north" / "startup" / "rootCA.pem"))
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    if kit is not None:
        context.load_cert_chain(kit / "startup" / "client.crt", kit / "startup" / "client.key")
    heard = b""
    with (
        socket.create_connection(("localhost", real.federation.port), 10) as plain,
        contextlib.suppress(OSError),
        context.wrap_socket(plain) as secured,  # in TLS 1.3 the refusal comes with the first read
    ):
        secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        heard = secured.recv(100)
    return heard


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (None, "refused: a connection without a certificate"),
        (self_signed, "CERTIFICATE_VERIFY_FAILED: self signed certificate"),
        (another_federation, "CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate"),
    ],
    ids=["no certificate", "self-signed", "another federation's"],
)
def test_a_certificate_that_is_not_ours_is_refused(
    real: Real, tmp_path: Path, change: Changed | None, words: str
) -> None:
    real.await_log("server", "connected")
    kit = None
    if change is not None:
        kit = tmp_path / "kit"
        shutil.copytree(real.folder / "kits" / "north", kit, ignore=shutil.ignore_patterns(".lock", "state"))
        change(kit)
    before = len(real.log("server"))
    assert dial(real, kit) == b""
    real.await_log("server", words, 20, before)
    assert dial(real, real.folder / "kits" / "north") != b""  # the right one is answered


def test_a_site_that_poses_as_another_is_refused(real: Real, tmp_path: Path) -> None:
    real.await_log("server", "agent north connected")
    before = len(real.log("server"))
    with stranger(real, tmp_path, "north", posing) as log:
        real.await_log("server", "authenticated as 'north' but claimed endpoint 'south'", 90, before)
    assert "connected to federation" not in log.read_text()


def test_an_agents_kit_cannot_submit_a_run(real: Real, tmp_path: Path) -> None:
    """An agent's certificate in the place of the operator's."""
    with pytest.raises(InputError, match="is the kit of an agent, an operator's kit is needed"):
        Operator(real.folder / "kits" / "north")
    kit = tmp_path / "kit"
    shutil.copytree(real.folder / "kits" / "operator", kit)
    for name in ("client.crt", "client.key"):
        shutil.copy(real.folder / "kits" / "north" / "startup" / name, kit / "startup" / name)
    before = len(real.log("server"))
    with pytest.raises(InputError, match="refused this kit"):
        Operator(kit).reconnect(print, 5)
    real.await_log("server", "refused", 20, before)


@pytest.mark.parametrize("kind", ["code", "class"])
def test_a_job_that_brings_code_or_names_another_class_is_refused(real: Real, tmp_path: Path, kind: str) -> None:
    from fewjoule.federation.nvflare.jobs import write_job
    from fewjoule.federation.spec import load_federated_study, specs_of

    specs = specs_of(load_federated_study(str(real.study(MANY_ROUNDS))), NAMES)
    job = tmp_path / "job"
    write_job(job, "job", specs, 3)
    if kind == "code":
        (job / "app" / "custom").mkdir()
        (job / "app" / "custom" / "evil.py").write_text("raise SystemExit\n")
        site, words = "server", "refused: Failed to run the Job"
    else:
        config = job / "app" / "config" / "config_fed_client.json"
        config.write_text(
            config.read_text().replace("fewjoule.federation.nvflare.app.FederatedAgent", "subprocess.Popen")
        )
        site, words = "north", "is not in allow_list"
    before = len(real.log(site))
    operator = Operator(real.folder / "kits" / "operator")
    try:
        operator.reconnect(print, 20)
        await_true(lambda: len(operator.agents()) == 3, 60, "all agents")
        number = operator._session.submit_job(str(job))
        await_true(lambda: operator.status(number).startswith("FINISHED"), 90, "the end of the job")
        assert operator.status(number) != "FINISHED:COMPLETED"
    finally:
        operator.close()
    real.await_log(site, words, 20, before)


def test_the_demo_ends_by_itself_and_leaves_nothing_behind(tmp_path: Path) -> None:
    import psutil

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
    assert os.stat(out / "kits" / "server" / "storage").st_mode & 0o077 == 0
