"""Processes that make one run together, on one machine or many.

They find each other through JAX's distributed runtime (`jax.distributed`), connect to each other, and leave it: its
port is open only until all have met. From then on they exchange bytes over these connections (Gloo, JAX's collectives
between CPUs). A process that dies closes its connections, which the others find at the next exchange. Nothing of this
is encrypted or asks who calls: it is for machines that trust their network.
"""

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

from fewjoule.errors import InputError

MEET_SECONDS = 300
"""How long a process waits for the others at the beginning."""
AXIS = "processes"


@dataclass(frozen=True)
class Team:
    """The processes of a run, and which of them this one is."""

    index: int = 0
    count: int = 1

    def share(self, rows: int) -> slice:
        """This process's part of so many rows of work: parts are as equal as can be, in the order of processes."""
        bounds = [rows * process // self.count for process in range(self.count + 1)]
        return slice(bounds[self.index], bounds[self.index + 1])

    def exchange(self, content: bytes) -> list[bytes]:
        """What every process gave, by process. All wait for the last; `InputError` where one is gone."""
        if self.count == 1:
            return [content]
        sizes = self._rows(np.asarray([len(content)], np.uint32))[:, 0]
        longest = 1 << int(sizes.max()).bit_length()  # powers of two, since every length is compiled once
        rows = self._rows(np.frombuffer(content.ljust(longest, b"\0"), np.uint8))
        return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]

    def _rows(self, row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        first = {device.process_index: device for device in reversed(jax.devices())}
        mesh = Mesh([first[process] for process in range(self.count)], (AXIS,))
        rowwise, whole = (NamedSharding(mesh, spec) for spec in (Spec(AXIS), Spec()))  # type: ignore[no-untyped-call]

        def gather() -> np.ndarray[Any, Any]:
            own = jax.device_put(row[None], first[self.index])
            rows = jax.make_array_from_single_device_arrays((self.count, *row.shape), rowwise, [own])
            return np.asarray(jax.jit(_same, out_shardings=whole)(rows).addressable_data(0))

        try:
            return _interruptible(gather)
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            raise InputError(
                "another process of this run is gone or out of reach, so the run has stopped; start all of them again "
                "with --resume FOLDER."
            ) from error


ALONE = Team()


def _same(array: Any) -> Any:  # at the top level, so that it is compiled once for each shape
    return array


def meet(coordinator: str, process: int, of: int, patience_seconds: float = MEET_SECONDS) -> Team:
    """Wait for all processes of a run. `coordinator` is HOST:PORT of process 0, which listens there and nowhere else.

    To be called before JAX computes. The program ends with one line where the others do not come.
    """
    if not 0 <= process < of:
        raise InputError(f"--process must be from 0 to {of - 1}, one below --of {of}, got {process}.")
    _check_address(coordinator, listen=process == 0)

    def give_up() -> None:  # JAX would end the program as well, with a page of its inner state
        late = f"not all {of} processes met at {coordinator} within {patience_seconds:g} s"
        print(f"fewjoule: {late}; start all of them, and see that they reach that address.", file=sys.stderr)
        os._exit(2)

    timer = threading.Timer(patience_seconds, give_up)
    timer.daemon = True
    timer.start()
    with _quiet_stdout():  # Gloo reports every connection there
        try:
            jax.distributed.initialize(
                coordinator, of, process, cluster_detection_method="deactivate", coordinator_bind_address=coordinator,
                initialization_timeout=int(10 * patience_seconds),
            )  # fmt: skip
        except RuntimeError as error:
            raise InputError(f"the processes cannot meet at {coordinator}: {error}.") from error
        team = Team(process, jax.process_count())
        team.exchange(b"here")
        jax.distributed.shutdown()  # type: ignore[no-untyped-call]
    timer.cancel()
    return team


def free_address() -> str:
    """An address of this machine alone with a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def _check_address(coordinator: str, *, listen: bool) -> None:
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError(f"--coordinator takes HOST:PORT of process 0, as in node1:4711, got {coordinator!r}.")
    if not listen:
        return
    try:
        family, *_, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()
    except OSError as error:
        raise InputError(
            f"process 0 cannot listen on {coordinator} ({error.strerror or error}); give a free port of an address of "
            "its own machine."
        ) from error


def _interruptible(function: Callable[[], Any]) -> Any:
    """What the function gives. It runs in another thread, because a thread that waits inside JAX does not hear
    Ctrl-C."""
    given: list[Any] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            given.append(function())
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(0.2)
    if raised:
        raise raised[0]
    return given[0]


@contextlib.contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Nothing that C++ prints is seen."""
    sys.stdout.flush()
    shown, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(shown, 1)
        os.close(shown)
        os.close(nowhere)
