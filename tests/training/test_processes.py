"""How processes share work and meet; tests/studies/test_processes.py has a study that several run."""

import os
import socket
import subprocess
import sys

import pytest

from fewjoule.errors import InputError
from fewjoule.training.processes import ALONE, Team, free_address, meet

MEET = """
import sys
from fewjoule.training.processes import meet
address, process, of, patience = sys.argv[1:]
team = meet(address, int(process), int(of), float(patience))
for size in (0, 3, 100_000):
    said = team.exchange(bytes([65 + team.index]) * size * (1 + team.index))
    assert said == [b"A" * size, b"BB" * size], said
print("met")
"""


def started(*arguments, devices=1):
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", MEET, *map(str, arguments)], env=environment, **pipes)


@pytest.mark.parametrize(("rows", "processes"), [(10, 2), (10, 4), (3, 3), (7, 1)])
def test_every_row_is_in_one_share_and_shares_are_as_equal_as_can_be(rows, processes):
    shares = [range(rows)[Team(index, processes).share(rows)] for index in range(processes)]
    assert [row for share in shares for row in share] == list(range(rows))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_process_alone_hears_itself():
    assert ALONE.exchange(b"words") == [b"words"]


@pytest.mark.parametrize("address", ["nonsense", "host:", ":4711", "host:0", "host:65536", "host:4711x"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(InputError, match="takes HOST:PORT"):
        meet(address, 1, 2)


def test_a_process_beyond_the_last_is_refused():
    with pytest.raises(InputError, match=r"--process must be from 0 to 1, one below --of 2, got 3\."):
        meet("127.0.0.1:4711", 3, 2)


def test_a_port_in_use_and_an_address_of_another_machine_are_refused():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(InputError, match=r"cannot listen on 127.0.0.1:\d+ \(Address already in use\); give a free"):
            meet(f"127.0.0.1:{listener.getsockname()[1]}", 0, 2)
    with pytest.raises(InputError, match=r"cannot listen on 192\.0\.2\.1:4711"):  # an address for documentation
        meet("192.0.2.1:4711", 0, 2)


@pytest.mark.slow
def test_processes_with_unequal_devices_exchange_bytes():
    address = free_address()
    both = [started(address, process, 2, 60, devices=1 + process) for process in (0, 1)]
    for process in both:
        out, error = process.communicate(timeout=120)
        assert (out, process.returncode) == ("met\n", 0), error


@pytest.mark.slow
@pytest.mark.parametrize("process", [0, 1])
def test_a_process_that_nobody_joins_says_so_in_one_line(process):
    address = free_address()
    alone = started(address, process, 2, 2)
    out, error = alone.communicate(timeout=120)
    assert (out, alone.returncode) == ("", 2)
    (line,) = error.splitlines()
    assert line.startswith(f"fewjoule: not all 2 processes met at {address} within 2 s; start all of them")
