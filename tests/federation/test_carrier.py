"""The carrier's parts without a network: pieces, questions, refusals, metrics, and words for failures."""

import asyncio
import contextlib
import ipaddress
import json
import socket
import sys
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("grpc", reason="needs the extra: pip install 'fewjoule[federation]'")

import grpc

from fewjoule import InputError
from fewjoule.federation.carrier import crowds, frames, sieve, streams
from fewjoule.federation.carrier.crowds import Crowds
from fewjoule.federation.carrier.facts import job_id
from fewjoule.federation.carrier.frames import PIECE_BYTES, Frame, FrameError, Joiner
from fewjoule.federation.carrier.gate import Gate, Refused
from fewjoule.federation.carrier.handshakes import told
from fewjoule.federation.carrier.jobs import Jobs
from fewjoule.federation.carrier.log import Log
from fewjoule.federation.carrier.metrics import render, serve_metrics
from fewjoule.federation.carrier.streams import Stream, Streams
from fewjoule.federation.carrier.tls import explain
from fewjoule.federation.certificates import Identity
from tests.federation.bench import Bench

NORTH = Identity("ab" * 16, "agent", "north", 1)


@pytest.mark.parametrize("length", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
def test_pieces_make_the_message_again(length: int) -> None:
    frame = Frame(frames.ANSWER, 7, bytes(range(256)) * (length // 256) + bytes(length % 256))
    pieces = list(frames.split(frame))
    assert max(len(piece) for piece in pieces) <= frames.LARGEST_PIECE
    joiner = Joiner(lambda kind, call: length)
    *first, last = [joiner.feed(piece) for piece in pieces]
    assert set(first) <= {None}
    assert last == frame
    assert joiner.feed(pieces[0]) in (None, frame)  # it is ready for the next


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([b"short"], "5 bytes are no message"),
        ([frames._HEAD.pack(6, 1, 101)], "101 bytes where at most 100"),
        ([frames._HEAD.pack(6, 1, 2**63)], "where at most 100"),
        ([frames._HEAD.pack(6, 1, 10) + bytes(11)], "do not fit a message of 10 bytes"),
        ([frames._HEAD.pack(6, 1, 10) + bytes(9), bytes(2)], "do not fit"),
        ([frames._HEAD.pack(6, 1, 10) + bytes(9), b""], "do not fit"),
    ],
)
def test_what_is_no_message_is_refused(pieces: list[bytes], words: str) -> None:
    joiner = Joiner(lambda kind, call: 100)
    *first, last = pieces
    for piece in first:
        assert joiner.feed(piece) is None
    with pytest.raises(FrameError, match=words):
        joiner.feed(last)


class Context:
    """A gRPC call of one agent: what the server wrote, and what the agent will say."""

    def __init__(self) -> None:
        self.sent: list[Frame] = []
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._joiner = Joiner(lambda kind, call: 1 << 30)

    def peer(self) -> str:
        return "ipv6:%5B::1%5D:5"

    async def read(self) -> Any:
        return await self.inbox.get()

    async def write(self, piece: bytes) -> None:
        if (frame := self._joiner.feed(piece)) is not None:
            self.sent.append(frame)

    def say(self, frame: Frame) -> None:
        for piece in frames.split(frame):
            self.inbox.put_nowait(piece)

    async def asked(self, number: int) -> Frame:
        while len(self.sent) < number:
            await asyncio.sleep(0)
        return self.sent[number - 1]


def connected(folder: Path, work: Callable[[Streams, Context, "asyncio.Task[None]"], Awaitable[None]]) -> list[str]:
    """Run `work` with north's stream live; the lines that the log showed."""
    lines: list[str] = []

    async def run() -> None:
        made, context = Streams({}, Log(folder, lines.append)), Context()
        task = asyncio.ensure_future(made.serve(NORTH, context))
        await context.asked(1)  # the welcome
        await asyncio.wait_for(work(made, context, task), 20)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    return lines


def test_trial_43_a_slow_agent_is_asked_once(tmp_path: Path) -> None:
    async def work(made: Streams, context: Context, _: Any) -> None:
        for _ in range(3):
            assert await made.ask({"north": b"round 1"}, frames.HANDLE, 100, 0.01) == ({}, {})
        asked = await context.asked(2)
        context.say(Frame(frames.ANSWER, asked.call, b"done"))
        assert (await made.ask({"north": b"round 1"}, frames.HANDLE, 100, 5.0)).replies == {"north": b"done"}
        assert len(context.sent) == 2

    connected(tmp_path, work)


def test_a_question_that_was_overtaken_waits_its_turn(tmp_path: Path) -> None:
    """The agent is still at round 1 when rounds 2 and 3 are due: 2 never leaves, 3 follows the answer to 1."""

    async def work(made: Streams, context: Context, _: Any) -> None:
        for body in (b"1", b"2", b"3"):
            await made.ask({"north": body}, frames.HANDLE, 100, 0.01)
        assert [frame.body for frame in context.sent[1:]] == [b"1"]
        context.say(Frame(frames.FAILED, context.sent[1].call, b"late\x1b[2J\n"))
        third = await context.asked(3)
        assert third.body == b"3"
        context.say(Frame(frames.FAILED, third.call, b"no\nreason"))
        assert (await made.ask({"north": b"3"}, frames.HANDLE, 100, 5.0)).errors == {"north": "no reason"}

    connected(tmp_path, work)


def test_a_lost_agent_is_not_heard_and_a_wish_to_stop_ends_the_wait(tmp_path: Path) -> None:
    async def work(made: Streams, context: Context, task: "asyncio.Task[None]") -> None:
        waiting = asyncio.ensure_future(made.ask(dict.fromkeys(("north", "south"), b"spec"), frames.AGREE, 0, 1000.0))
        await context.asked(2)
        made.wake()
        assert await waiting == ({}, {})
        waiting = asyncio.ensure_future(made.ask({"north": b"spec"}, frames.AGREE, 0, 1000.0))
        await asyncio.sleep(0)
        context.inbox.put_nowait(grpc.aio.EOF)
        assert await waiting == ({}, {})
        await task
        assert made["north"] is None

    assert connected(tmp_path, work)[-1] == "agent north is gone"


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (Frame(frames.ANSWER, 1, b""), "kind 6 for question 1, which is not due"),
        (Frame(frames.HANDLE, 0, b""), "kind 5"),
        (Frame(frames.NOTICE, 0, bytes(frames.LONGEST_TEXT + 1)), "2001 bytes where at most 2000"),
    ],
)
def test_what_was_not_asked_for_ends_the_stream(tmp_path: Path, frame: Frame, words: str) -> None:
    async def work(made: Streams, context: Context, task: "asyncio.Task[None]") -> None:
        context.say(frame)
        with pytest.raises(Refused, match=words):
            await task

    connected(tmp_path, work)


def test_trial_42_a_second_stream_is_refused_unless_the_first_is_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "PONG_SECONDS", 0.05)

    async def work(made: Streams, context: Context, task: "asyncio.Task[None]") -> None:
        second = asyncio.ensure_future(made.serve(NORTH, Context()))
        assert (await context.asked(2)).kind == frames.PING
        context.say(Frame(frames.PONG))
        with pytest.raises(Refused, match=r"north is connected from \[::1\]:5 already") as caught:
            await second
        assert caught.value.code == grpc.StatusCode.ALREADY_EXISTS
        assert (await context.asked(3)).kind == frames.NOTICE
        again = Context()
        third = asyncio.ensure_future(made.serve(NORTH, again))  # and the first answers no more
        await again.asked(1)
        with pytest.raises(Refused, match="does not answer"):
            await task
        assert isinstance(made["north"], Stream)
        third.cancel()

    connected(tmp_path, work)


class Call:
    """A gRPC call that shows a certificate, or none."""

    def __init__(self, *chain: bytes) -> None:
        self.chain, self.aborted = chain, ""

    def peer(self) -> str:
        return "ipv4:10.0.0.9:77"

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_pem_cert": list(self.chain)} if self.chain else {}

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        self.aborted = details
        raise asyncio.CancelledError


def test_the_gate_refuses_logs_and_counts(tmp_path: Path) -> None:
    lines: list[str] = []
    log = Log(tmp_path, lines.append)
    kit: Any = SimpleNamespace(facts=SimpleNamespace(id="ab" * 16))
    gate = Gate(kit, lambda: SimpleNamespace(refuses=lambda identity: None), None, None, log)  # type: ignore[arg-type, return-value]

    async def knock(call: Call) -> str:
        handler = gate.service(SimpleNamespace(method="/fewjoule/Agent"))
        try:
            await handler.stream_stream(None, call)
        except asyncio.CancelledError:
            return call.aborted
        return ""

    assert asyncio.run(knock(Call())) == "the connection shows no certificate."
    assert "none of a fewjoule federation" in asyncio.run(knock(Call(b"-----BEGIN nonsense")))
    assert log.refusals == 2
    assert lines[0] == "refused: /fewjoule/Agent by 10.0.0.9:77: the connection shows no certificate."
    for _ in range(5):
        asyncio.run(knock(Call()))
    assert log.refusals == 7
    assert len(lines) == 2  # the same refusal is on the screen once a minute
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert len(records) == 7
    assert (tmp_path / "log.jsonl").stat().st_mode & 0o077 == 0
    assert gate.refuses(NORTH._replace(federation="cd" * 16)) == "the certificate is of another federation"


def test_trial_42_a_server_without_its_state_says_so(bench: Bench) -> None:
    log = Log(bench.folder, lambda line: None)
    jobs = Jobs(bench.folder, None, None, log)  # type: ignore[arg-type]
    spec = bench.spec()
    with pytest.raises(InputError, match=r"the server has no state of run .* put back a copy"):
        jobs.start([spec.text], begun=True)
    job = jobs.start([spec.text], begun=False)
    assert jobs.start([spec.text], begun=False) is job  # once, however often it is asked for
    assert [path.name for path in (bench.folder / "jobs").iterdir()] == [f"{job_id([spec.text])}.json"]
    with pytest.raises(InputError, match="the server has no job"):
        jobs.find("0" * 32)


def test_failed_handshakes_count_and_other_lines_pass(tmp_path: Path) -> None:
    lines: list[str] = []
    log = Log(tmp_path, lines.append)
    begin = "I1116 12:34:56.689539   18460 ssl_transport_security.cc:2563] "
    handshake = "Handshake failed with error SSL_ERROR_SSL: error:100000c0:SSL routines:OPENSSL_internal:"
    assert told(f"{begin}{handshake}PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid certificate", log)
    assert told(f"{begin}{handshake}CERTIFICATE_VERIFY_FAILED: certificate has expired", log)
    assert told(f"{begin}anything else", log)
    assert not told("Traceback (most recent call last):", log)
    assert log.refusals == 2
    assert "it shows no certificate" in lines[0]
    assert "CERTIFICATE_VERIFY_FAILED, certificate has expired" in lines[1]


@pytest.mark.parametrize(
    ("code", "details", "words"),
    [
        ("UNAVAILABLE", "errors resolving fl.example.org:1: Domain name not found", "cannot be resolved"),
        ("UNAVAILABLE", "connections failed; last error: ipv4:1.2.3.4:1: Connection refused", "is away"),
        ("UNAVAILABLE", "Ssl handshake failed: CERTIFICATE_VERIFY_FAILED", "is not this federation's server"),
        ("UNAVAILABLE", "Socket closed", "does not accept this kit's certificate"),
        ("ALREADY_EXISTS", "agent north is connected from x", "stop one of the two"),
        ("PERMISSION_DENIED", "agent north is not a member (any more)", "refused by the server: agent north is not"),
    ],
)
def test_trial_42_why_a_connection_failed_is_said_in_words(code: str, details: str, words: str) -> None:
    kit: Any = SimpleNamespace(address="fl.example.org:1", facts=SimpleNamespace(host="fl.example.org"))
    assert words in explain(grpc.StatusCode[code], details, kit)


def test_metrics_are_text_on_this_machine(bench: Bench) -> None:
    progress = bench.server(bench.spec("fedavg")).status() | {"round": 4, "present": 3, "joules": {"measured": 2.5}}
    before = {"payload_bytes": 7, "joules": {"measured": 0.5}}  # of runs of the same job that have ended
    job = {"state": "running", "progress": progress, "before": before}
    status: dict[str, Any] = {"agents": {"north": {}, "south": None}, "jobs": [job], "refused": 3}
    status |= {"last_exchange": 1.5, "certificates": {"north": 9.0}}
    text = render(status)
    for line in (
        "fewjoule_connected_agents 1", 'fewjoule_jobs{state="running"} 1', "fewjoule_round 4",
        "fewjoule_refused_total 3", 'fewjoule_joules_total{kind="measured"} 3.0', "fewjoule_present_agents 3",
        "fewjoule_payload_bytes_total 7",
        "fewjoule_last_exchange_timestamp_seconds 1.5",
    ):  # fmt: skip
        assert line in text.splitlines()
    with serve_metrics(0, lambda: status) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert answer.read().decode() == text
        with pytest.raises(InputError, match=f"--metrics {port}: the port cannot be had"), serve_metrics(port, dict):
            pass


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("10.0.0.9", ("10.0.0.9:5", "10.0.0.9/32")),
        ("::ffff:10.0.0.9", ("10.0.0.9:5", "10.0.0.9/32")),
        ("2001:db8:1:2:3:4:5:6", ("[2001:db8:1:2:3:4:5:6]:5", "2001:db8:1:2::/64")),
    ],
)
def test_a_peer_is_named_as_grpc_does_and_counts_for_its_address(host: str, names: tuple[str, str]) -> None:
    peer, network = crowds.names(host, 5)
    assert (peer, str(network)) == names


def test_an_address_with_too_many_connections_loses_those_that_came_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six of 127.0.0.1, of which one is an agent's, and two of 127.0.0.2, where three are allowed."""
    monkeypatch.setattr(crowds, "MOST_STRANGERS", 3)
    monkeypatch.setattr(sieve, "attach", lambda listening, networks: None)
    lines: list[str] = []
    log = Log(tmp_path, lines.append)
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        near: list[socket.socket] = []
        watch = Crowds(listening.getsockname()[1], lambda: {f"127.0.0.1:{near[0].getsockname()[1]}"}, log)
        for source in ["127.0.0.1"] * 6 + ["127.0.0.2"] * 2:
            near.append(stack.enter_context(socket.create_connection(listening.getsockname(), 5, (source, 0))))
            stack.enter_context(listening.accept()[0])
            watch.thin()
        ended = []
        for each in near:
            each.settimeout(0.05)
            try:
                ended.append(each.recv(1) == b"")
            except TimeoutError:
                ended.append(False)
    assert ended == [False, True, True, False, False, False, False, False]
    assert log.refusals == 2
    assert lines == ["refused: connections by 127.0.0.1: an address may have 3 at once that are not a member's"]


@pytest.mark.skipif(sys.platform != "linux", reason="socket filters are Linux'")
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_does_not_hear_a_network_and_hears_it_again(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    others = [ipaddress.ip_network(n) for n in ("10.0.0.1", "2001:db8::/64", "127.0.0.2", "2001:db8:0:1::/64")]
    own = ipaddress.ip_network("::/64" if ":" in host else host)
    with socket.create_server((host, 0), family=family) as listening:

        def hears() -> bool:
            try:
                with socket.create_connection(listening.getsockname()[:2], 0.2):
                    return True
            except TimeoutError:
                return False

        cases = [([], True), (others, True), ([*others, own], False), ([own, *others], False), ([], True)]
        for networks, heard in cases:
            sieve.attach(listening, networks)
            assert hears() == heard, networks


@pytest.mark.skipif(sys.platform != "linux", reason="socket filters are Linux'")
def test_a_crowded_address_is_not_heard_for_a_while_and_an_agents_connection_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowds, "MOST_STRANGERS", 3)
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def dial(source: str) -> socket.socket:
            return stack.enter_context(socket.create_connection(listening.getsockname(), 0.2, (source, 0)))

        agent, *_ = [dial("127.0.0.1") for _ in range(5)]
        far, *_ = [stack.enter_context(listening.accept()[0]) for _ in range(5)]
        peer = f"127.0.0.1:{agent.getsockname()[1]}"
        watch = Crowds(listening.getsockname()[1], lambda: {peer}, Log(tmp_path, [].append))
        watch.thin()
        with pytest.raises(TimeoutError):
            dial("127.0.0.1")
        dial("127.0.0.2")
        agent.sendall(b"still here")
        assert far.recv(10) == b"still here"
        monkeypatch.setattr(crowds.time, "monotonic", lambda: 1e12)
        watch.thin()
        dial("127.0.0.1")
