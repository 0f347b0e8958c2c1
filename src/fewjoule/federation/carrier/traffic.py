"""Bytes that this process's TCP connections to one port really carried, from the kernel's own counters (Linux).

They count everything above TCP: TLS, HTTP/2 frames, the engine's headers and heartbeats, repeats left out. Headers of
TCP and IP are not in them.
"""

import os
import socket
import stat
import struct
import sys
import time

LOOK_AGAIN_SECONDS = 1.0
_TCP_INFO = getattr(socket, "TCP_INFO", 11)
_ACKED_AT, _RECEIVED_AT = 120, 128  # tcpi_bytes_acked, tcpi_bytes_received of struct tcp_info


class Traffic:
    """Bytes sent and received over all connections to `port`, those already closed included."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._seen: dict[int, tuple[int, int]] = {}  # by the socket's inode, which outlives nothing else
        self._ours: list[int] = []  # descriptors that were connections to the port
        self._looked = -LOOK_AGAIN_SECONDS

    def __call__(self) -> tuple[float, float]:
        if sys.platform != "linux":
            return 0.0, 0.0
        descriptors = self._ours
        if time.monotonic() - self._looked >= LOOK_AGAIN_SECONDS:  # connections live long, and counters add up
            descriptors, self._looked = [int(name) for name in os.listdir("/proc/self/fd")], time.monotonic()
        self._ours = [d for d in descriptors if self._look(d)]
        sent, received = (sum(column) for column in zip((0, 0), *self._seen.values(), strict=True))
        return float(sent), float(received)

    def _look(self, descriptor: int) -> bool:
        """Read one connection's counters; False where it is not one to the port."""
        try:
            facts = os.fstat(descriptor)
            if not stat.S_ISSOCK(facts.st_mode):
                return False
            with socket.socket(fileno=os.dup(descriptor)) as copy:
                if copy.getpeername()[1] != self._port:
                    return False
                info = copy.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 136)
        except (OSError, IndexError, TypeError):
            return False  # closed meanwhile, not connected, or not TCP
        if len(info) >= _RECEIVED_AT + 8:
            self._seen[facts.st_ino] = struct.unpack_from("<QQ", info, _ACKED_AT)
        return True
