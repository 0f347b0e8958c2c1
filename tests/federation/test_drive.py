"""Agents that hang, full disks, too little memory: who is named, what is waited for, and equal bits after it."""

import errno
import os
import random
import resource
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewjoule.federation import agent as agent_module
from fewjoule.federation import journal as journal_module
from fewjoule.federation import server as server_module
from fewjoule.federation import state as state_module
from fewjoule.federation.drive import Answers, drive
from fewjoule.federation.patience import Asked, passing, patiently
from fewjoule.federation.server import ServerRunner
from tests.federation.bench import NAMES, Bench, LocalChannel


class Hung(LocalChannel):
    """`south` is connected and never answers a round; a call returns at once where `stopped` says so."""

    def __init__(self, bench: Bench) -> None:
        super().__init__({name: bench.agent(name) for name in NAMES})
        self.now, self.asked = 0.0, 0
        self.stopped: Callable[[], bool] = lambda: False

    def call(self, requests: Mapping[str, bytes], timeout_seconds: float) -> Answers:
        if "south" in requests:
            requests = {name: request for name, request in requests.items() if name != "south"}
            self.asked += 1
            if not self.stopped():
                self.now += timeout_seconds
        return super().call(requests, timeout_seconds)


def test_trial_39_an_agent_that_hangs_is_named_again_and_again_and_stop_is_heard(bench: Bench) -> None:
    channel, lines, seen = Hung(bench), [], {}
    server = bench.server(bench.spec("fedavg", policy="wait", deadline_seconds=120.0))
    channel.stopped = lambda: channel.now > 5000

    def asked() -> str:
        seen.update(server.status()["waiting"])
        return "enough" if channel.stopped() else ""

    outcome = drive(server, channel, report=lines.append, asked_to_stop=asked, clock=lambda: channel.now)
    assert (outcome.status, outcome.reason) == ("paused", "enough")
    assert channel.now < 5000 + 60  # the call at hand, no more
    assert lines[0].startswith("upload: still waiting for south after 120 s; connected, but without an answer")
    assert 5 < len(lines) < 15
    assert all("south" in line and "north" not in line for line in lines)
    assert seen["south"].startswith("upload: no answer for ")
    assert server.status()["waiting"] == {}


def test_trial_37_a_stuck_agent_does_not_cost_the_deadline_in_every_round(bench: Bench) -> None:
    channel, rounds = Hung(bench), 40
    spec = bench.spec(
        "fedavg", policy="skip", quorum=2, deadline_seconds=30.0, settings={"rounds": rounds, "local_steps": 1}
    )
    server = bench.server(spec)
    assert drive(server, channel, clock=lambda: channel.now).status == "complete"
    assert channel.now <= 30 * 7  # after 1, 2, 4, 8, ... exchanges, of 42
    reasons = [s["reason"] for s in server.records.skipped]
    assert len(reasons) == rounds + 2
    assert "did not answer before the deadline, 2 times in a row; asked again in round 3" in reasons


def test_an_agent_that_recovers_is_back_when_it_is_asked_again(bench: Bench) -> None:
    channel = Hung(bench)
    spec = bench.spec(
        "fedavg", policy="skip", quorum=2, deadline_seconds=30.0, settings={"rounds": 12, "local_steps": 1}
    )
    server = bench.server(spec)

    def recover() -> str:
        if server.exchange == 3 and type(channel) is Hung:
            channel.__class__ = LocalChannel  # type: ignore[assignment]
        return ""

    drive(server, channel, clock=lambda: getattr(channel, "now", 0.0), asked_to_stop=recover)
    assert [s["round"] for s in server.records.skipped] == [0, 1, 2]  # asked in exchanges 0, 1 and 3


def test_the_quorum_is_asked_even_where_it_would_rest(bench: Bench) -> None:
    channel = Hung(bench)
    spec = bench.spec("fedavg", policy="skip", quorum=3, deadline_seconds=30.0)
    outcome = drive(bench.server(spec), channel, clock=lambda: channel.now)
    assert outcome.status == "paused"
    assert outcome.missing == ("south",)


class Odd(LocalChannel):
    """`south` answers with something that is no bytes."""

    def call(self, requests: Mapping[str, bytes], timeout_seconds: float) -> Answers:
        answers = super().call(requests, timeout_seconds)
        answers.replies["south"] = object()  # type: ignore[assignment]
        return answers


def test_trial_39_an_answer_of_another_type_is_refused_at_once(bench: Bench) -> None:
    channel = Odd({name: bench.agent(name) for name in NAMES})
    _, outcome = bench.run(bench.spec("fedavg"), channel=channel)
    assert outcome.status == "stopped"
    assert "upload: agent south: message refused: it must be bytes, got object" in outcome.reason


@pytest.fixture(scope="module")
def undisturbed(trained: Any, tmp_path_factory: pytest.TempPathFactory) -> ServerRunner:
    bench = Bench(*trained, tmp_path_factory.mktemp("undisturbed"))
    return bench.run(bench.spec())[0]


def check_equal(server: ServerRunner, other: ServerRunner) -> None:
    assert server.complete
    np.testing.assert_array_equal(server.meta, other.meta)
    np.testing.assert_array_equal(server.trace, other.trace)
    np.testing.assert_array_equal(server.losses, other.losses)
    for column in ("present", "loss", "payload_up", "charged_up"):
        np.testing.assert_array_equal(server.records.column(column), other.records.column(column))


def test_trial_42_a_full_disk_at_the_server_pauses_the_run_and_it_goes_on_by_itself(
    bench: Bench, undisturbed: ServerRunner
) -> None:
    lines: list[str] = []
    spec = bench.spec()
    server, channel, slept = bench.server(spec), bench.channel(), [0.0]
    real, full = server.save, [False]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def save() -> None:
        if not full[0] and server.exchange == 3:  # the disk fills up now
            full[0] = True
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        real()

    def sleep(seconds: float) -> None:
        slept[0] += seconds
        if slept[0] > 10:  # somebody frees space
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    server.save = save  # type: ignore[method-assign]
    try:
        outcome = drive(server, channel, report=lines.append, sleep=sleep)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert outcome.status == "complete"
    assert lines[0] == "paused: File too large; have its limit on the size of files raised, it goes on by itself"
    assert lines[-1] == "going on"
    check_equal(server, undisturbed)
    check_equal(bench.server(spec), undisturbed)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), MemoryError()], ids=["disk", "memory"]
)
@pytest.mark.parametrize("module", [agent_module, server_module], ids=["agent", "server"])
def test_causes_that_pass_leave_equal_bits(
    bench: Bench, undisturbed: ServerRunner, monkeypatch: pytest.MonkeyPatch, module: Any, error: BaseException
) -> None:
    """Every second write fails once before it succeeds, at the server or at the agents."""
    real, count = module.write_state, [0]

    def unsteady(*args: Any) -> None:
        count[0] += 1
        if count[0] % 2:
            raise error
        real(*args)

    class Patient(LocalChannel):  # as an agent's process is
        def _each(self, names: Any, ask: Any) -> Answers:
            return super()._each(names, lambda agent: patiently(lambda: ask(agent), lines.append, sleep=lambda s: None))

    lines: list[str] = []
    monkeypatch.setattr(module, "write_state", unsteady)
    channel = Patient({name: bench.agent(name) for name in NAMES})
    spec = bench.spec()
    server, outcome = bench.run(spec, channel=channel, report=lines.append, sleep=lambda seconds: None)
    assert outcome.status == "complete"
    assert any("goes on by itself" in line for line in lines)
    assert "going on" in lines
    check_equal(server, undisturbed)


def test_a_stop_is_heard_while_the_disk_is_full_and_nothing_is_lost(
    bench: Bench, undisturbed: ServerRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, slept = bench.spec(), [0.0]

    def full(*args: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    server = bench.server(spec)
    drive(server, bench.channel(), asked_to_stop=lambda: "pause" if server.exchange == 2 else "")
    monkeypatch.setattr(server_module, "write_state", full)

    def sleep(seconds: float) -> None:
        slept[0] += seconds

    asked = lambda: "enough" if slept[0] >= 90 else ""  # noqa: E731
    outcome = drive(bench.server(spec), bench.channel(), asked_to_stop=asked, sleep=sleep)
    assert (outcome.status, outcome.reason) == ("paused", "enough")
    assert slept[0] == 90
    monkeypatch.undo()
    again = bench.server(spec)
    assert again.exchange == 2
    drive(again, bench.channel())
    check_equal(again, undisturbed)


def test_other_errors_are_not_waited_for() -> None:
    assert passing(OSError(errno.ENOENT, "No such file")) is None
    assert passing(ValueError("RESOURCE")) is None
    assert "too little memory" in (passing(RuntimeError("RESOURCE_EXHAUSTED: out of memory allocating 8 bytes")) or "")
    with pytest.raises(ZeroDivisionError):
        patiently(lambda: 1 // 0, print)
    with pytest.raises(Asked, match="no more"):
        patiently(full, lambda line: None, asked_to_stop=lambda: "no more")


def full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class Killed(BaseException):
    """Stands for the end of a process."""


@pytest.mark.parametrize("seed", range(3))
def test_ten_random_kills_of_server_and_agents_end_with_equal_bits(
    bench: Bench, undisturbed: ServerRunner, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Deaths within a write of a state or of rows, before its rename or after it; everything is loaded from the disk
    again. Rows go to their file every second exchange here."""
    rng, deaths = random.Random(seed), [10]
    monkeypatch.setattr(journal_module, "MOST_PENDING_BYTES", 1000)

    def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
        def work(*args: Any, **kwargs: Any) -> Any:
            die = deaths[0] > 0 and rng.random() < 0.5
            deaths[0] -= die
            if die and rng.random() < 0.5:
                raise Killed
            result = real(*args, **kwargs)
            if die:
                raise Killed
            return result

        return work

    def torn(path: Path, at: int, rows: bytes) -> int:
        if deaths[0] > 0 and rng.random() < 0.5:
            deaths[0] -= 1
            with path.open("ab") as file:
                file.truncate(at)
                file.write(rows[: rng.randrange(len(rows))])
            raise Killed
        return append(path, at, rows)

    append = journal_module.append
    monkeypatch.setattr(journal_module, "append", torn)
    monkeypatch.setattr(state_module.os, "replace", deadly(os.replace))
    spec = bench.spec()
    for _ in range(15):
        try:
            server, outcome = bench.run(spec)
            break
        except Killed:
            continue
    assert deaths[0] == 0
    assert outcome.status == "complete"
    check_equal(server, undisturbed)
    check_equal(bench.server(spec), undisturbed)
