"""Attacks on a federation of real processes: what an agent, an operator, a neighbour or a stranger may try.

`north` is the attacker's: its kit is real, its process is this one. `south` and `west` are honest.
"""

import contextlib
import datetime
import json
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("grpc", reason="needs the extra: pip install 'fewjoule[federation]'")

import grpc

from fewjoule import InputError
from fewjoule.federation import blocks, wire
from fewjoule.federation.authority import Authority, provision
from fewjoule.federation.carrier import frames
from fewjoule.federation.carrier.frames import Frame
from fewjoule.federation.carrier.operator import Operator
from fewjoule.federation.carrier.tls import AGENT_METHOD, OPERATOR_METHOD
from fewjoule.federation.federation_file import Federation
from fewjoule.federation.spec import Spec, contract
from fewjoule.federation.wire import AgentReport, Message
from fewjoule.randomness import agent_id
from tests.federation.attacks import SECONDS, UNLIMITED, Rogue, ask, call, dial, listening_ports, memory_within, tls
from tests.federation.real import FEWJOULE, LOCAL, MODEL, Real, await_true

pytestmark = pytest.mark.slow

DENIED = grpc.StatusCode.PERMISSION_DENIED
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # how an HTTP/2 client begins


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    made = Real(tmp_path_factory.mktemp("attacked"))
    try:
        made.start("server", "south", "west")
        for name in ("south", "west"):
            made.await_log("server", f"agent {name} connected")
        yield made
    finally:
        codes = made.stop()
    assert codes == [0, 0, 0]


@pytest.fixture
def operator(real: Real) -> Iterator[Operator]:
    with contextlib.closing(Operator(real.kit("operator"))) as made:
        yield made


@pytest.fixture(autouse=True)
def unharmed(real: Real) -> Iterator[None]:
    """After every attack: all processes live, the honest agents are connected, and were told nothing."""
    before = {name: len(real.log(name)) for name in ("south", "west")}
    yield
    assert [process.poll() for process in real.processes.values()] == [None] * 3
    with contextlib.closing(Operator(real.kit("operator"))) as operator:
        agents = operator.status()["agents"]
    assert None not in (agents["south"], agents["west"])
    for name, length in before.items():
        assert real.log(name)[length:] == ""
    assert "Traceback" not in real.log("server")


def spec_of(*agents: str, **changes: Any) -> Spec:
    settings = {"method": "fedavg", "rounds": 3, "local_steps": 2, "batch": 8, "start": "random"}
    model = {"spec": MODEL, "init": "glorot", "loss": "mse"}
    same: dict[str, Any] = {"model": model, "agents": agents, "local": LOCAL, "nonce": str(time.monotonic_ns())}
    return Spec(method={**settings, **changes.pop("settings", {})}, **same | changes)


def refused(real: Real, after: int, *words: str) -> None:
    """The server's screen names who, what and why."""
    await_true(lambda: "refused: " in real.log("server")[after:], 20, "a refusal on the screen")
    await_true(lambda: all(word in real.log("server")[after:] for word in words), 20, f"{words} on the screen")


def ended(operator: Operator, job: str) -> dict[str, Any]:
    await_true(lambda: operator.look(job)["state"] in ("stopped", "complete"), 60, "the end of the run")
    return operator.look(job)


# With an agent's kit


@pytest.mark.parametrize(
    "method",
    [
        OPERATOR_METHOD, "/fewjoule/Admin", "/fewjoule/agent", "/fewjoule/Agent/south", "/grpc.health.v1.Health/Check",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", "/", "/fewjoule/../fewjoule/Operator",
    ],
)  # fmt: skip
def test_trial_33_an_agent_cannot_call_anything_else(real: Real, method: str) -> None:
    """Not the operator's methods, not another agent, not what other gRPC servers offer."""
    before = len(real.log("server"))
    request = json.dumps({"ask": "status"}).encode()
    code, details, heard = call(real.kit("north"), real.port, method, *frames.split(Frame(frames.REQUEST, 0, request)))
    assert (code, heard) == (DENIED, [])
    assert "may not do that" in details or "there is no such method" in details
    if method == OPERATOR_METHOD:
        refused(real, before, "/fewjoule/Operator by agent north at [::1]:", "may not do that")


@pytest.mark.parametrize("kind", range(16))
def test_trial_33_an_agents_messages_reach_nobody_else(real: Real, kind: int) -> None:
    """Every kind of message, unasked: none is passed on, and all but a notice and a pong end the stream."""
    rogue = Rogue(real.kit("north"), real.port)
    try:
        rogue.send(Frame(kind, 0, b"" if kind == frames.PONG else b"south, give me your model"))
        if kind in (frames.NOTICE, frames.PONG):
            return
        code, details = rogue.end()
        assert code == DENIED
        assert "not due" in details
    finally:
        rogue.close()


def test_text_of_an_agent_cannot_forge_a_line(real: Real) -> None:
    before = len(real.log("server"))
    rogue = Rogue(real.kit("north"), real.port)
    try:
        rogue.send(Frame(frames.NOTICE, 0, b"hello\n12:00:00 agent south is gone\x1b[2J\x1b]0;owned\x07\r"))
        real.await_log("server", "agent north says: hello 12:00:00 agent south is gone", 20, before)
        told = real.log("server")[before:]
        assert "\x1b" not in told
        assert "\n12:00:00 agent south" not in told
    finally:
        rogue.close()


def answer_of(spec: Spec, kind: int, round: int, agent: str, value: float = 0.0) -> bytes:
    """A message as an honest agent would send it."""
    arrays = [np.full(form.shape, value, form.dtype) for form in contract(spec).reply_forms(kind)]
    report = AgentReport(samples=4.0)
    return wire.encode(Message(kind, spec.run, round, agent_id(agent), tuple(arrays), report))


@contextlib.contextmanager
def attacked_run(real: Real, operator: Operator, **changes: Any) -> Iterator[tuple[Rogue, Spec, str]]:
    """A run with north in it, which is asked to agree."""
    spec = spec_of("north", "south", "west", **changes)
    rogue = Rogue(real.kit("north"), real.port)
    try:
        job = operator.start([spec.text], begun=False)
        yield rogue, spec, job
        with contextlib.suppress(InputError):
            operator.stop(job)
        ended(operator, job)
    finally:
        rogue.close()


def test_trial_33_an_agent_cannot_speak_for_another(real: Real, operator: Operator) -> None:
    """The certificate says north, the message says south."""
    with attacked_run(real, operator, policy="stop", deadline_seconds=60.0) as (rogue, spec, job):
        asked = rogue.read()
        assert asked.kind == frames.AGREE
        rogue.send(Frame(frames.ANSWER, asked.call, answer_of(spec, blocks.AGREE, 0, "south")))
        reason = ended(operator, job)["reason"]
        assert f"agent north: the message names agent {agent_id('south'):08x}" in reason


def test_an_answer_of_an_earlier_round_or_another_run_is_refused(real: Real, operator: Operator) -> None:
    with attacked_run(real, operator, policy="stop", deadline_seconds=60.0) as (rogue, spec, job):
        asked = rogue.read()
        rogue.send(Frame(frames.ANSWER, asked.call, answer_of(spec, blocks.AGREE, 0, "north")))
        for round in (0, 1):
            asked = rogue.read()
            assert asked.kind == frames.HANDLE
            if round == 0:
                first = answer_of(spec, blocks.ROUND, 0, "north", 0.1)
            rogue.send(Frame(frames.ANSWER, asked.call, first))
        assert "agent north: the message is of round" in ended(operator, job)["reason"]
    other = spec_of("north")
    with attacked_run(real, operator, policy="stop", deadline_seconds=60.0) as (rogue, spec, job):
        asked = rogue.read()
        rogue.send(Frame(frames.ANSWER, asked.call, answer_of(other, blocks.AGREE, 0, "north")))
        assert "agent north: message refused" in ended(operator, job)["reason"]


def test_an_answer_that_is_repeated_ends_the_stream(real: Real, operator: Operator) -> None:
    with attacked_run(real, operator, policy="wait") as (rogue, spec, _):
        asked = rogue.read()
        frame = Frame(frames.ANSWER, asked.call, answer_of(spec, blocks.AGREE, 0, "north"))
        rogue.send(frame)
        rogue.send(frame)
        code, details = rogue.end()
        assert code == DENIED
        assert "not due" in details


def test_trial_36_an_answer_of_a_gigabyte_takes_no_memory(real: Real, operator: Operator) -> None:
    """The length in its head is refused before any of it is taken; pieces above a megabyte never get in."""
    process = real.processes["server"].pid
    with attacked_run(real, operator, policy="wait") as (rogue, *_), memory_within(process, 60):
        asked = rogue.read()
        rogue.send_piece(frames._HEAD.pack(frames.ANSWER, asked.call, 1 << 30) + bytes(1 << 20))
        for _ in range(100):
            rogue.send_piece(bytes(1 << 20))
        code, details = rogue.end()
        assert code == DENIED
        assert "1073741824 bytes where at most" in details
    with contextlib.closing(Rogue(real.kit("north"), real.port)) as rogue, memory_within(process, 60):
        rogue.send_piece(frames._HEAD.pack(frames.NOTICE, 0, 200 << 20) + bytes(200 << 20))
        assert rogue.end()[0] in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED)


def test_a_compressed_bomb_is_not_unpacked(real: Real) -> None:
    process = real.processes["server"].pid
    with memory_within(process, 60):
        body = frames._HEAD.pack(frames.NOTICE, 0, 500 << 20) + bytes(500 << 20)
        code, _, heard = call(real.kit("north"), real.port, AGENT_METHOD, body, compression=grpc.Compression.Gzip)
        assert code != grpc.StatusCode.OK
        assert len(heard) <= 1  # a welcome at most


def test_metadata_is_bounded(real: Real) -> None:
    with memory_within(real.processes["server"].pid, 60):
        code, _, heard = call(real.kit("north"), real.port, "/fewjoule/" + "x" * 100_000)
        assert code != grpc.StatusCode.OK
        assert heard == []


# With the operator's kit


def test_the_operators_kit_is_no_agent(real: Real) -> None:
    before = len(real.log("server"))
    code, details, _ = call(real.kit("operator"), real.port, AGENT_METHOD)
    assert (code, details) == (DENIED, "the kit of operator operator may not do that")
    refused(real, before, "/fewjoule/Agent by operator operator at")


BAD_REQUESTS = [
    b"", b"null", b"[]", b"{}", b"\xff\xfe", b"{" * 1000, b"[" * 1_000_000, b'{"ask": "shell", "command": "id"}',
    b'{"ask": "status", "more": 1}', b'{"ask": "job", "job": "../../../etc/passwd"}', b'{"ask": "job", "job": 3}',
    b'{"ask": "fetch", "job": "' + b"a" * 32 + b'", "number": ' + b"9" * 5000 + b"}",
    b'{"ask": "fetch", "job": "' + b"a" * 32 + b'", "number": -1}', b'{"ask": "fetch", "job": "..", "number": 0}',
    b'{"ask": "start", "specs": []}', b'{"ask": "start", "specs": [[[[]]]]}', b'{"ask": "start", "specs": "x"}',
    b'{"ask": "stop", "job": "' + b"A" * 32 + b'"}', b'{"ask": 1e999}', b'{"ask": "members", "members": {}}',
    b'{"ask":"status","ask":"shell"}',
]  # fmt: skip


@pytest.mark.parametrize("request_bytes", BAD_REQUESTS, ids=range(len(BAD_REQUESTS)))
def test_trial_34_a_request_of_no_known_form_is_refused(real: Real, request_bytes: bytes) -> None:
    """There is no request that names code, a class, a file or a command."""
    code, _, heard = ask(real.kit("operator"), real.port, request_bytes)
    assert (code, heard) == (DENIED, [])


@pytest.mark.parametrize(
    "change",
    [
        {"method": {"method": "subprocess.Popen"}}, {"method": {"method": "../../evil"}},
        {"model": {"spec": "os:system"}},
        {"agents": ["../../south"]}, {"agents": ["north", "stranger"]}, {"seed": 2**70}, {"largest_rms": float("nan")},
        {"method": {"method": "fedavg", "rounds": 2**70}}, {"nonce": {"a": 1}}, {"extra": 1},
        {"model": {"spec": "mlp:1-999999999-1", "init": "glorot", "loss": "mse"}},
    ],
)  # fmt: skip
def test_trial_34_a_spec_that_names_what_is_not_there_is_refused(real: Real, change: dict[str, Any]) -> None:
    """A spec is settings of known methods and models; whatever else it says stops the run or is refused at once."""
    text = json.dumps({**json.loads(spec_of("south", "west").text), **change})
    with memory_within(real.processes["server"].pid, 200):
        code, _, heard = ask(real.kit("operator"), real.port, json.dumps({"ask": "start", "specs": [text]}).encode())
        if code == grpc.StatusCode.OK and heard[0][0] == frames.ANSWER:
            job = json.loads(heard[0][17:])["job"]
            with contextlib.closing(Operator(real.kit("operator"))) as operator:
                assert ended(operator, job)["state"] == "stopped"
                assert "Traceback" not in operator.look(job)["reason"]


def test_a_list_of_members_needs_the_authoritys_signature(real: Real, tmp_path: Path) -> None:
    """Nobody but the authority says who is a member: not the operator, not another federation's authority."""
    own = json.loads((real.kit("server") / "members.json").read_text())
    provision(Federation("test", "localhost", real.port, real.names), tmp_path / "other")
    forged = {**own, "list": {**own["list"], "version": own["list"]["version"] + 1}}
    foreign = json.loads((tmp_path / "other" / "server" / "members.json").read_text())
    for table in (forged, foreign, own, {"list": own["list"], "signatures": []}):
        request = json.dumps({"ask": "members", "members": json.dumps(table)}).encode()
        _, _, heard = ask(real.kit("operator"), real.port, request)
        assert heard[0][0] == frames.FAILED


# Without a kit of this federation


def self_signed(folder: Path, real: Real) -> Path:
    """North's names, signed by its own key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    old = x509.load_pem_x509_certificate((real.kit("north") / "certificate.pem").read_bytes())
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(old.subject).issuer_name(old.issuer).public_key(key.public_key())
    builder = builder.serial_number(old.serial_number).not_valid_before(now - datetime.timedelta(days=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=1))
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "certificate.pem").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, *plain))
    return folder


def of_another_federation(folder: Path, real: Real) -> Path:
    provision(Federation("test", "localhost", real.port, real.names), folder / "kits")
    return folder / "kits" / "north"


def expired(folder: Path, real: Real) -> Path:
    """A certificate of this federation's authority that ended yesterday."""
    shutil.copytree(real.folder / "kits", folder / "kits", ignore=shutil.ignore_patterns(".lock"))
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=2)
    Authority(folder / "kits", lambda: past).renew(["north"], lasts=datetime.timedelta(days=1))
    return folder / "kits" / "north"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (None, "it shows no certificate (PEER_DID_NOT_RETURN_A_CERTIFICATE)"),
        (self_signed, "BAD_SIGNATURE"),
        (of_another_federation, "CERTIFICATE_VERIFY_FAILED"),
        (expired, "CERTIFICATE_VERIFY_FAILED, certificate has expired"),
    ],
    ids=["no certificate", "self-signed", "another federation's", "expired"],
)
def test_a_certificate_that_is_not_ours_ends_in_the_handshake(
    real: Real, tmp_path: Path, made: Any, words: str
) -> None:
    kit = None if made is None else made(tmp_path, real)
    with contextlib.closing(Operator(real.kit("operator"))) as operator:
        before = operator.status()["refused"]
        assert dial(real.port, tls(real.kit("south"), kit), HELLO) == b""
        await_true(lambda: operator.status()["refused"] > before, 20, "a refusal that is counted")
    assert words in (real.kit("server") / "log.jsonl").read_text().replace('\\"', '"')
    assert dial(real.port, tls(real.kit("south"), real.kit("north")), HELLO) != b""  # the right one is answered


@pytest.mark.parametrize(
    "sent", [HELLO, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", bytes(range(256)) * 300, b"\x16\x03\x01"]
)
def test_who_does_not_speak_tls_hears_nothing_useful(real: Real, sent: bytes) -> None:
    assert b"HTTP" not in dial(real.port, None, sent)


def test_old_tls_is_refused(real: Real) -> None:
    context = tls(None, real.kit("north"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    assert dial(real.port, context, HELLO) == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"garbage" * 1000, HELLO + b"\xff" * 10_000, HELLO + b"\0\xff\xff\1\4\0\0\0\1" + bytes(70_000),
        HELLO + b"\0\0\4\3\0\0\0\0\1\0\0\0\0" * 20_000,  # 20 000 times: reset a stream
        HELLO + b"\0\0\0\4\0\0\0\0\0" * 20_000,  # settings, again and again
        HELLO + b"\0\0\x08\6\0\0\0\0\0" * 1 + b"12345678" + (b"\0\0\x08\6\0\0\0\0\0" + b"12345678") * 20_000,  # pings
    ],
    ids=["garbage", "frames", "headers", "resets", "settings", "pings"],
)  # fmt: skip
def test_broken_http2_from_a_member_harms_nobody(real: Real, sent: bytes) -> None:
    with memory_within(real.processes["server"].pid, 60):
        dial(real.port, tls(real.kit("south"), real.kit("north")), sent)
    assert real.processes["server"].poll() is None


def test_a_run_goes_on_among_ten_thousand_connections(real: Real, operator: Operator) -> None:
    """10 000 connections that never say anything, or only begin a handshake, of the address that agents and operator
    have too. Runs go on among them; they are closed after some seconds, and the port is free again."""

    def finished() -> str:
        spec = spec_of("south", "west", settings={"rounds": 20})
        return str(ended(operator, operator.start([spec.text], begun=False))["state"])

    assert finished() == "complete"
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most[1], most[1]))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, most)
        idle = [stack.enter_context(socket.create_connection(("::1", real.port), 20)) for _ in range(100)]
        for each in idle:
            each.sendall(b"\x16\x03\x01\x02\x00\x01")  # the beginning of a handshake
        for _ in range(9_900):
            idle.append(stack.enter_context(socket.socket(socket.AF_INET6)))
            idle[-1].setblocking(False)
            idle[-1].connect_ex(("::1", real.port))
        assert finished() == "complete"
        idle[0].settimeout(60)
        with contextlib.suppress(ConnectionError):
            assert idle[0].recv(1) == b""  # hung up by the server
    with contextlib.closing(Operator(real.kit("operator"))) as newcomer:
        newcomer.await_server(print, 60)
    assert finished() == "complete"


FLOOD = """
    import resource, socket, sys, time
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    held = []
    while True:
        held.append(socket.socket())
        held[-1].setblocking(False)
        held[-1].connect_ex(("127.0.0.1", int(sys.argv[1])))
        if len(held) == 10_000:
            print("ready", flush=True)
        if len(held) > 10_000:
            held.pop(0).close()
            time.sleep(0.0005)
"""


@contextlib.contextmanager
def coming_from(source: str, port: int) -> Iterator[int]:
    """A port whose connections go on to `port` from this address."""

    def carry(near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(1 << 16):
                far.sendall(data)
            far.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near = listening.accept()[0]
                far = socket.create_connection(("127.0.0.1", port), SECONDS, (source, 0))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=carry, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield listening.getsockname()[1]


def _patient_rogue(real: Real, port: int) -> Rogue:
    """North's certificate at this port, dialled again where a handshake fails, as an agent does."""
    for _ in range(9):
        with contextlib.suppress(grpc.RpcError):
            return Rogue(real.kit("north"), port)
    return Rogue(real.kit("north"), port)


def test_a_neighbour_with_ten_thousand_connections_keeps_nobody_out(real: Real, operator: Operator) -> None:
    """One address holds as many connections as it can get and opens more all the time. An agent of another address
    comes in the middle of it and is welcome; what is too much is closed, counted and on the screen."""
    before = operator.status()["refused"], len(real.log("server"))
    flood = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(FLOOD), str(real.port)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert flood.stdout is not None
        assert flood.stdout.readline() == "ready\n"
        with coming_from("127.0.0.2", real.port) as port:
            for _ in range(3):
                with contextlib.closing(_patient_rogue(real, port)):
                    real.await_log("server", "agent north connected from 127.0.0.2", 20, before[1])
        assert flood.poll() is None
    finally:
        flood.kill()
        flood.wait()
    refused(real, before[1], "connections by 127.0.0.1: an address may have 128 at once")
    with contextlib.closing(Operator(real.kit("operator"))) as newcomer:
        assert newcomer.status()["refused"] > before[0]


# On the agents' machines


@pytest.mark.parametrize("other", ["west", "another federation"])
def test_an_agent_obeys_only_its_server(real: Real, tmp_path: Path, other: str) -> None:
    """Who took over the address answers with another agent's kit, or as another federation's server."""
    if other == "west":
        kit = real.kit("west")
    else:
        provision(Federation("test", "localhost", real.port, real.names), tmp_path / "kits")
        kit = tmp_path / "kits" / "server"
    heard: list[str] = []

    class Listener(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            heard.append(details.method)

    files = [path.read_bytes() for path in (kit / "key.pem", kit / "certificate.pem", real.kit("west") / "ca.pem")]
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=(Listener(),))
    port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([(files[0], files[1])], files[2], True))
    server.start()
    copy, log = tmp_path / "north", tmp_path / "log"
    shutil.copytree(real.kit("north"), copy)
    facts = json.loads((copy / "fewjoule.json").read_text())
    (copy / "fewjoule.json").write_text(json.dumps({**facts, "port": port}))
    with log.open("wb") as out:
        agent = subprocess.Popen(
            [*FEWJOULE, "agent", str(copy), "--data", str(real.folder / "north.npz")], stdout=out, stderr=out
        )
    try:
        await_true(lambda: "nothing was sent" in log.read_text(), 60, "a line that says so")
        assert heard == []
    finally:
        agent.terminate()
        agent.wait(20)
        server.stop(None)


HOSTILE = [
    Frame(frames.HANDLE, 1, b"a round, before any agreement"), Frame(frames.REQUEST, 1, b"{}"), Frame(99, 1, b"x"),
    Frame(frames.AGREE, 1, bytes(2 << 20)), Frame(frames.ANSWER, 1, b"x"), Frame(frames.WELCOME, 0, bytes(3000)),
]  # fmt: skip
UNUSABLE = [
    b"", b"{" * 1000, b"[" * 900_000, b"\xff" * 100, b'{"method": "os.system"}', b"9" * 5000,
    b'{"fewjoule": {}, "wire": []}',
]  # fmt: skip


def test_a_hostile_server_gets_nothing_from_an_agent(real: Real, tmp_path: Path) -> None:
    """Somebody has the server's own kit: what an agent is sent is bounded and checked all the same."""
    own = Real(tmp_path, ("north",))
    kit, heard, left = own.kit("server"), list[Frame](), list(HOSTILE)
    own_files = [(kit / name).read_bytes() for name in ("key.pem", "certificate.pem", "ca.pem")]

    def serve(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        yield from frames.split(Frame(frames.WELCOME, 0, b"{}"))
        if left:
            yield from frames.split(left.pop(0))
            for piece in requests:  # until the agent hangs up
                heard.append(frames.Joiner(lambda kind, call: 1 << 20).feed(piece))  # type: ignore[arg-type]
            return
        for number, text in enumerate(UNUSABLE, 1):
            yield from frames.split(Frame(frames.AGREE, number, text))
            heard.append(frames.Joiner(lambda kind, call: 1 << 20).feed(next(requests)))  # type: ignore[arg-type]
        done.set()

    class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            return grpc.stream_stream_rpc_method_handler(serve)

    done = threading.Event()
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=(Handler(),), options=UNLIMITED)
    credentials = grpc.ssl_server_credentials([(own_files[0], own_files[1])], own_files[2], True)
    server.add_secure_port(f"localhost:{own.port}", credentials)
    server.start()
    try:
        own.start("north")
        assert done.wait(150), own.log("north")
        assert [frame.kind for frame in heard] == [frames.FAILED] * len(UNUSABLE)  # nothing before an agreement
        assert "refused: the server sent a message of kind 5, which is not due" in own.log("north")
        assert "Traceback" not in own.log("north")
        assert own.processes["north"].poll() is None
    finally:
        own.stop()
        server.stop(None)


def test_trial_35_agents_listen_on_no_port(real: Real) -> None:
    for name in ("south", "west"):
        assert listening_ports(real.processes[name].pid) == []
    assert set(listening_ports(real.processes["server"].pid)) == {real.port}


def test_nothing_of_a_kit_is_for_others(real: Real) -> None:
    for path in (real.folder / "kits").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    for name in ("server", "south"):
        told = (real.kit(name) / "log.jsonl").read_text()
        assert "PRIVATE KEY" not in told
        for line in told.splitlines():
            json.loads(line)
