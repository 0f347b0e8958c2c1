"""A federation that runs for long, on real processes: members come, go and are renewed while runs are under way."""

import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("grpc", reason="needs the extra: pip install 'fewjoule[federation]'")

from fewjoule.federation.authority import Authority, provision
from fewjoule.federation.carrier.operator import Operator
from fewjoule.federation.federation_file import Federation
from tests.federation.real import FEWJOULE, MANY_ROUNDS, Real, Running, await_true, federation, meta_of

pytestmark = pytest.mark.slow
SKIP = 'policy = "skip"\nquorum = 2\ndeadline_seconds = 20.0'


def command(*words: object, code: int = 0) -> str:
    done = subprocess.run([*FEWJOULE, *map(str, words)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """One federation for all; every test leaves north, south and west as members."""
    with federation(tmp_path_factory.mktemp("year")) as made:
        yield made


def kits_of(real: Real) -> Path:
    return real.folder / "kits"


def agents_of(folder: Path) -> list[str]:
    specs = json.loads((folder / "federation.json").read_text())["specs"]
    agents: list[str] = json.loads(specs[0])["agents"]
    return agents


def test_renewed_and_added_during_a_run_bit_for_bit(real: Real) -> None:
    """New keys for every agent, one after the other: each old connection ends at once, each new kit goes on."""
    undisturbed = meta_of(real.run(real.study(MANY_ROUNDS), "undisturbed"), "mb")
    authority = Authority(kits_of(real))
    running = Running(real, real.study(MANY_ROUNDS), "renewed")
    running.await_round(20)
    for name in ("north", "south", "west"):
        said = len(real.log("server"))
        authority.renew([name], new_keys=True)
        real.await_log("server", f"agent {name} is gone", after=said)
        real.await_log("server", f"agent {name} connected", after=said)
    authority.add(["east"])
    shutil.copy(real.folder / "west.npz", real.folder / "east.npz")
    real.start("east")
    # the server's own certificate: who is connected stays, who connects sees the new one
    authority.renew(["server", "operator"])
    real.await_log("server", "agent east connected")
    real.await_log("server", "the server's certificate was renewed")
    folder = running.result()
    assert np.array_equal(meta_of(folder, "mb"), undisturbed)
    assert agents_of(folder) == ["north", "south", "west"]
    one = real.run(real.study('[[methods]]\nname = "average"\nmethod = "average"\n'), "after")
    assert agents_of(one) == ["north", "south", "west", "east"]
    real.processes.pop("east").terminate()
    authority.remove(["east"])
    with closing(Operator(real.kit("operator"))) as operator:
        await_true(lambda: "east" not in operator.status()["agents"], 30, "a list without east")


def test_trial_41_a_removed_agent_is_sent_away_and_stays_away(real: Real) -> None:
    authority = Authority(kits_of(real))
    running = Running(real, real.study(MANY_ROUNDS, SKIP), "removed")
    running.await_round(20)
    said, told = len(real.log("west")), len(real.log("server"))
    authority.remove(["west"])
    real.await_log("west", "refused by the server: agent west is not a member (any more)", 10, said)
    real.await_log("server", "agent west is gone", 10, told)
    skipped = (running.result() / "skipped.csv").read_text()
    assert "west" in skipped
    assert "north" not in skipped
    # a restart of agent and server changes nothing
    for name in ("west", "server"):
        real.processes[name].terminate()
        real.processes[name].wait(40)
    said, told = len(real.log("west")), len(real.log("server"))
    real.start("server", "west")
    real.await_log("west", "refused by the server: agent west is not a member", after=said)
    assert "agent west connected" not in real.log("server")[told:]
    with closing(Operator(real.kit("operator"))) as operator:
        assert sorted(operator.status()["agents"]) == ["north", "south"]
    # the name may come back, with a new kit
    shutil.move(real.kit("west"), real.folder / "old-west")
    authority.add(["west"])
    real.processes["west"].terminate()
    real.processes["west"].wait(40)
    real.start("west")
    real.await_log("server", "agent west connected", after=told)


def test_a_server_elsewhere_gets_the_list_from_the_operator(real: Real) -> None:
    """As users do it, with the commands; the authority is on another machine than the server's kit."""
    real.await_log("west", "connected to federation")
    away = real.folder / "away"
    away.mkdir()
    for name in ("authority", "operator"):
        shutil.copytree(kits_of(real) / name, away / name)
    said = len(real.log("west"))
    assert f"fewjoule federation members --push --kits {away}" in command("remove", "west", "--kits", away)
    assert "not a member" not in real.log("west")[said:], "nothing changes before the server has the list"
    told = command("members", "--push", "--kits", away)
    assert "the server has list number" in told
    real.await_log("west", "refused by the server: agent west is not a member (any more)", 10, said)
    assert " already" in command("members", "--push", "--kits", away)
    north = real.kit("north")
    assert "is the kit of an agent" in command("members", "--push", "--kits", away, "--kit", north, code=2)
    assert "west" not in command("status", "--kit", real.kit("operator"))


class Proxy(threading.Thread):
    """A web proxy that knows CONNECT alone, and counts."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.asked: list[str] = []
        self.start()

    def run(self) -> None:
        def pump(a: socket.socket, b: socket.socket) -> None:
            with suppress(OSError):
                while data := a.recv(65536):
                    b.sendall(data)
                b.close()

        while True:
            client, _ = self.socket.accept()
            request = b""
            while b"\r\n\r\n" not in request:
                request += client.recv(4096)
            self.asked.append(request.split(b"\r\n")[0].decode())
            host, _, port = self.asked[-1].split()[1].rpartition(":")
            target = socket.create_connection((host, int(port)))
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            for pair in ((client, target), (target, client)):
                threading.Thread(target=pump, args=pair, daemon=True).start()


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """A federation on another address than localhost, not started yet; north's certificate lasts for seconds."""
    names = ("north", "south")
    real = Real(tmp_path_factory.mktemp("elsewhere"), names)
    shutil.rmtree(kits_of(real))
    provision(Federation("test", "127.0.0.2", real.port, names), kits_of(real))
    try:
        yield real
    finally:
        real.stop()


def test_trial_41_an_ended_certificate_is_one_clear_line(elsewhere: Real) -> None:
    """Nothing is silent, nobody else is disturbed, and a renewed file is all that it takes."""
    real, authority = elsewhere, Authority(kits_of(elsewhere))
    real.start("server", "south")
    real.await_log("server", "agent south connected")
    authority.renew(["north"], new_keys=True, lasts=timedelta(seconds=30))
    real.start("north")
    real.await_log("north", f"connected to federation test at 127.0.0.2:{real.port}")
    real.await_log("north", "the certificate of north ends on ")
    told = command("status", "--kit", real.kit("operator"))
    assert "the certificate of north ends on" in told
    assert "certificate of south" not in told
    real.await_log("north", "the certificate of north ended on ")
    real.await_log("server", "the certificate of agent north ended on ")
    real.await_log("server", "agent north is gone")
    ended = real.log("north").index("the certificate of north ended on ")
    assert "renew it where the federation's authority is (fewjoule federation renew north)" in real.log("north")
    command("renew", "north", "--kits", kits_of(real))
    real.await_log("north", "connected to federation test", after=ended)
    assert "agent south is gone" not in real.log("server")
    # a start with an ended certificate
    real.processes.pop("north").terminate()
    authority.renew(["north"], new_keys=True, lasts=timedelta(seconds=1))
    time.sleep(1.1)
    said = command("agent", real.kit("north"), "--data", real.folder / "north.npz", code=2)
    assert said.count("\n") == 1
    assert "the certificate of north ended on" in said


def test_only_names_in_the_certificate_are_dialled_also_through_a_web_proxy(elsewhere: Real) -> None:
    real, proxy = elsewhere, Proxy()
    if "server" not in real.processes:
        real.start("server")
    if "south" in real.processes:
        real.processes["south"].terminate()
        real.processes["south"].wait(40)
    said = 0 if "south" not in real.processes else len(real.log("south"))
    real.start("south", environment={"grpc_proxy": f"http://127.0.0.1:{proxy.port}", "no_grpc_proxy": "none"})
    real.await_log("south", f"connected to federation test at 127.0.0.2:{real.port}", after=said)
    assert proxy.asked == [f"CONNECT 127.0.0.2:{real.port} HTTP/1.1"]
    path = real.kit("south") / "fewjoule.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": "127.0.0.3"}))
    real.processes["south"].terminate()
    real.processes["south"].wait(40)
    real.start("south")
    real.await_log("south", f"what answers at 127.0.0.3:{real.port} has a certificate for another name")
