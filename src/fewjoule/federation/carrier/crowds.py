"""No address may fill the server's table of connections.

gRPC bounds how many connections there are, not how many are of one address. So this looks through the sockets of the
process many times a second. Of the connections that are no agent's live stream, nor the operator's, an address may have
`MOST_STRANGERS`. Where it has more, those that came first are shut down, since whoever is welcome is soon known, and
the port does not hear that address for `DEAF_SECONDS` (`sieve`). IPv6 addresses count by their first 64 bits, which one
customer has to himself.
"""

import contextlib
import ipaddress
import os
import socket
import stat
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from fewjoule.federation.carrier import sieve
from fewjoule.federation.carrier.log import Log
from fewjoule.federation.carrier.sieve import Network

MOST_STRANGERS = 128
LOOK_SECONDS = 0.05
DEAF_SECONDS = 2.0
OVER = -1.0
FILES = "/dev/fd"  # one name per open file of this process; the same on Linux and macOS


class _Socket(NamedTuple):
    handle: socket.socket  # a second one, which stays this socket whatever gRPC does meanwhile
    inode: int


class Crowds:
    """Watches the connections to one port of this process. `welcome` gives the peers that are known."""

    def __init__(self, port: int, welcome: Callable[[], set[str]], log: Log) -> None:
        self._port, self._welcome, self._log = port, welcome, log
        self._seen: dict[int, float] = {}  # when a socket was first seen, by its inode; `OVER` once it was shut down
        self._deaf: dict[Network, float] = {}  # until when

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Look again and again while the block runs."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(LOOK_SECONDS):
                with contextlib.suppress(OSError):  # no file is left to look with: the next look may have one
                    self.thin()

        thread = threading.Thread(target=watch, name="crowds", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def thin(self) -> None:
        """Shut down what is too much, and do not hear for a while from where it came."""
        if not self._deaf and len(os.listdir(FILES)) <= MOST_STRANGERS:
            return
        crowds: dict[Network, list[_Socket]] = defaultdict(list)
        listening: list[socket.socket] = []
        before, now, welcome = self._seen, time.monotonic(), self._welcome()
        self._seen = {}
        with contextlib.ExitStack() as handles:
            for found in self._sockets(handles):
                try:
                    peer, network = names(*found.handle.getpeername()[:2])
                except OSError:  # not connected
                    listening.append(found.handle)
                    continue
                self._seen[found.inode] = before.get(found.inode, now)
                if peer not in welcome and self._seen[found.inode] != OVER:
                    crowds[network].append(found)
            crowds = {network: crowd for network, crowd in crowds.items() if len(crowd) > MOST_STRANGERS}
            self._hear(listening, now, crowds)  # first, so that no more of them come meanwhile
            closed = {network: self._close(crowd) for network, crowd in crowds.items()}
        for network, number in closed.items():
            who = str(network.network_address if network.version == 4 else network)
            why = f"an address may have {MOST_STRANGERS} at once that are not a member's"
            self._log.refused(who, "connections", why, times=number)

    def _close(self, crowd: list[_Socket]) -> int:
        """All but the newest; how many."""
        too_many = sorted(crowd, key=lambda one: self._seen[one.inode])[:-MOST_STRANGERS]
        for each in too_many:
            self._seen[each.inode] = OVER
            with contextlib.suppress(OSError):
                each.handle.shutdown(socket.SHUT_RDWR)
        return len(too_many)

    def _hear(self, listening: list[socket.socket], now: float, crowds: Iterable[Network]) -> None:
        """Hear everybody but those that are too many now, or were a short while ago."""
        deaf = {network: until for network, until in self._deaf.items() if until > now}
        deaf |= dict.fromkeys(crowds, now + DEAF_SECONDS)
        if deaf.keys() != self._deaf.keys():
            for each in listening:
                with contextlib.suppress(OSError):  # a system that cannot; its connections are closed all the same
                    sieve.attach(each, deaf)
        self._deaf = deaf

    def _sockets(self, handles: contextlib.ExitStack) -> Iterator[_Socket]:
        """All of the port."""
        for name in os.listdir(FILES):
            try:
                facts = os.fstat(int(name))
                if not stat.S_ISSOCK(facts.st_mode):
                    continue
                handle = handles.enter_context(socket.socket(fileno=os.dup(int(name))))
                if handle.getsockname()[1] == self._port:
                    yield _Socket(handle, facts.st_ino)
            except (OSError, IndexError, TypeError):
                continue  # closed meanwhile, or not TCP


def names(host: str, port: int) -> tuple[str, Network]:
    """A peer as gRPC writes it, and the network that it counts for."""
    text, network = _names(host)
    return f"{text}:{port}", network


@lru_cache(maxsize=10_000)
def _names(host: str) -> tuple[str, Network]:
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return f"[{host}]", ipaddress.IPv6Network((address, 64), strict=False)
    plain = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else address
    return str(plain), ipaddress.IPv4Network(str(plain))
