"""What an attacker has: raw sockets, gRPC with any certificate, and an agent that says what it likes."""

import contextlib
import queue
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import psutil

from fewjoule.federation.carrier import frames
from fewjoule.federation.carrier.frames import Frame, Joiner
from fewjoule.federation.carrier.tls import AGENT_METHOD, OPERATOR_METHOD

UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
SECONDS = 20.0


def channel(kit: Path, port: int, ca: Path | None = None, **options: Any) -> grpc.Channel:
    """A gRPC connection with the certificate of one kit, without any of our own limits."""
    files = [(ca or kit) / "ca.pem", kit / "key.pem", kit / "certificate.pem"]
    credentials = grpc.ssl_channel_credentials(*(path.read_bytes() for path in files))
    return grpc.secure_channel(f"localhost:{port}", credentials, options=UNLIMITED, **options)


def call(kit: Path, port: int, method: str, *pieces: bytes, **options: Any) -> tuple[grpc.StatusCode, str, list[bytes]]:
    """What the server answers to these pieces: status, details, and pieces."""
    heard: list[bytes] = []
    with channel(kit, port, options.pop("ca", None), **options) as dialled:
        answer = dialled.stream_stream(method)(iter(pieces), timeout=SECONDS)
        with contextlib.suppress(grpc.RpcError):
            heard.extend(answer)
        return answer.code(), answer.details(), heard


def ask(kit: Path, port: int, request: bytes) -> tuple[grpc.StatusCode, str, list[bytes]]:
    """One request to the operator's desk."""
    return call(kit, port, OPERATOR_METHOD, *frames.split(Frame(frames.REQUEST, 0, request)))


class Rogue:
    """An agent with a real kit whose answers are the test's."""

    def __init__(self, kit: Path, port: int, **options: Any) -> None:
        self._out: queue.Queue[bytes | None] = queue.Queue()
        self._channel = channel(kit, port, **options)
        self._call = self._channel.stream_stream(AGENT_METHOD)(iter(self._out.get, None), timeout=60)
        self._joiner = Joiner(lambda kind, call: 1 << 30)
        assert self.read().kind == frames.WELCOME

    def send(self, frame: Frame) -> None:
        for piece in frames.split(frame):
            self.send_piece(piece)

    def send_piece(self, piece: bytes) -> None:
        self._out.put(piece)

    def read(self) -> Frame:
        for piece in self._call:
            if (frame := self._joiner.feed(piece)) is not None:
                return frame
        raise AssertionError("the stream ended")

    def end(self) -> tuple[grpc.StatusCode, str]:
        """How the server ended the stream."""
        with contextlib.suppress(grpc.RpcError):
            for _ in self._call:
                pass
        return self._call.code(), self._call.details()

    def close(self) -> None:
        self._out.put(None)
        self._channel.close()


def dial(port: int, context: ssl.SSLContext | None, sent: bytes) -> bytes:
    """What the server says to these bytes over TLS, or in the clear; nothing where it hangs up."""
    with socket.create_connection(("localhost", port), SECONDS) as plain, contextlib.suppress(OSError):
        plain.settimeout(SECONDS)
        if context is None:
            plain.sendall(sent)
            return plain.recv(100)
        with context.wrap_socket(plain) as secured:  # in TLS 1.3 the refusal comes with the first read
            secured.sendall(sent)
            return secured.recv(100)
    return b""


def tls(ca: Path | None = None, kit: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=None if ca is None else str(ca / "ca.pem"))
    context.check_hostname = False
    if ca is None:
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if kit is not None:
        context.load_cert_chain(kit / "certificate.pem", kit / "key.pem")
    return context


@contextlib.contextmanager
def memory_within(process: int, megabytes: float) -> Iterator[None]:
    """The process does not grow by more than this, now or at its highest."""
    before = _peak(process)
    yield
    grown = (_peak(process) - before) / 1e6
    assert grown <= megabytes, f"the process grew by {grown:.0f} MB"


def _peak(process: int) -> float:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(1024 * float(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def listening_ports(process: int) -> list[int]:
    connections = psutil.Process(process).net_connections()
    return [c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN]
