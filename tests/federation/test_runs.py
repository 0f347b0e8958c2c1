"""Kills, repeats, absences and bad agents, in one process: objects are dropped, files stay."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fewjoule import InputError
from fewjoule.federation import agent as agent_module
from fewjoule.federation import blocks, wire
from fewjoule.federation import server as server_module
from fewjoule.federation.drive import Answers, drive
from fewjoule.federation.records import COLUMNS
from fewjoule.federation.server import ServerRunner
from fewjoule.federation.spec import Spec, read_spec
from fewjoule.federation.state import State, StateError, read_state, write_state
from fewjoule.federation.wire import AgentReport, MessageError
from tests.federation.bench import NAMES, Bench, LocalChannel


class Killed(BaseException):
    """Stands for the end of a process."""


class Fragile(LocalChannel):
    """Dies before or after handing a request to an agent, at the calls that `deaths` names."""

    def __init__(self, bench: Bench, deaths: Iterable[tuple[int, str]]) -> None:
        super().__init__({name: bench.agent(name) for name in NAMES})
        self.bench, self.deaths, self.calls = bench, dict(deaths), 0

    def call(self, requests: Mapping[str, bytes], timeout_seconds: float) -> Answers:
        replies = {}
        for name, request in requests.items():
            self.calls += 1
            death = self.deaths.pop(self.calls, "")
            if death == "agent before":
                self.agents[name] = self.bench.agent(name)
                self.agents[name].agree(self.text)
            if death == "server before":
                raise Killed
            replies[name] = self.agents[name].handle(request)
            if death == "agent after":  # it wrote its state, and its answer was lost
                self.agents[name] = self.bench.agent(name)
                self.agents[name].agree(self.text)
                replies[name] = self.agents[name].handle(request)
            if death == "server after":
                raise Killed
        return Answers(replies, {})

    def agree(self, names: Iterable[str], spec: str, timeout_seconds: float) -> Answers:
        self.text = spec
        return super().agree(names, spec, timeout_seconds)


@pytest.fixture(scope="session")
def undisturbed(trained: Any, tmp_path_factory: pytest.TempPathFactory) -> ServerRunner:
    bench = Bench(*trained, tmp_path_factory.mktemp("undisturbed"))
    return bench.run(bench.spec())[0]


DEATHS = ("agent before", "agent after", "server before", "server after")


@given(st.dictionaries(st.integers(1, 21), st.sampled_from(DEATHS), max_size=4), st.integers(0, 10**6))
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_deaths_end_with_the_same_numbers(
    bench: Bench, undisturbed: ServerRunner, deaths: dict[int, str], nonce: int
) -> None:
    spec = bench.spec(nonce=str(nonce))
    channel = Fragile(bench, deaths.items())
    for _ in range(6):
        server = bench.server(spec)
        try:
            outcome = drive(server, channel)
            break
        except Killed:
            continue
    assert outcome.status == "complete"
    np.testing.assert_array_equal(server.meta, undisturbed.meta)
    np.testing.assert_array_equal(server.trace, undisturbed.trace)
    np.testing.assert_array_equal(server.losses, undisturbed.losses)


@pytest.mark.parametrize("module", [agent_module, server_module])
def test_a_death_while_writing_state_ends_with_the_same_numbers(
    bench: Bench, undisturbed: ServerRunner, monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    spec, real, count = bench.spec(), module.write_state, [0]

    def die_in_the_middle(path: Path, *args: Any) -> None:
        count[0] += 1
        if count[0] in (5, 8):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_name(f".{path.name}.1.new").write_bytes(b"half of a state")
            raise Killed
        real(path, *args)

    monkeypatch.setattr(module, "write_state", die_in_the_middle)
    for _ in range(5):
        server = bench.server(spec)
        try:
            drive(server, bench.channel())
            break
        except Killed:
            continue
    assert server.complete
    np.testing.assert_array_equal(server.meta, undisturbed.meta)


def test_repeated_and_late_requests_change_nothing(bench: Bench) -> None:
    spec = bench.spec()
    server, channel = bench.server(spec), bench.channel()
    requests = []
    real = channel.call

    def listen(asked: Mapping[str, bytes], timeout_seconds: float) -> Answers:
        requests.append(next(iter(asked.values())))
        return real(asked, timeout_seconds)

    channel.call = listen  # type: ignore[method-assign]
    drive(server, channel, asked_to_stop=lambda: "now" if server.at == (blocks.ROUND, 2) else "")
    north = channel.agents["north"]
    path = bench.folder / "north" / spec.run.hex() / "agent.state"
    before = path.read_bytes()
    again = [north.handle(requests[-1]) for _ in range(2)]
    assert again[0] == again[1]
    with pytest.raises(MessageError, match="round 1 is late: agent 'north' has finished round 2"):
        north.handle(requests[-2])
    assert path.read_bytes() == before
    # the server takes the first answer of a round and ignores repeats
    drive(server, channel)
    final = server.meta
    assert server.complete
    with pytest.raises(MessageError, match="late"):
        north.handle(requests[-4])
    np.testing.assert_array_equal(bench.server(spec).meta, final)


def test_a_changed_broadcast_for_an_answered_round_is_refused(bench: Bench) -> None:
    spec = bench.spec()
    server, channel = bench.server(spec), bench.channel()
    drive(server, channel, asked_to_stop=lambda: "now" if server.at == (blocks.ROUND, 1) else "")
    request = server.request("north")
    channel.agents["north"].handle(request)
    shifted = wire.decode(request, kind=blocks.ROUND, run=spec.run, forms=server.contract.request_forms(blocks.ROUND))
    other = wire.encode(shifted._replace(arrays=(shifted.arrays[0] + 1, shifted.arrays[1])))
    with pytest.raises(MessageError, match="already answered to another broadcast"):
        channel.agents["north"].handle(other)


@pytest.mark.parametrize("site", ["north", "server"])
def test_a_damaged_state_is_refused_and_named(bench: Bench, site: str) -> None:
    spec = bench.spec(policy="stop")
    server = bench.server(spec)
    drive(server, bench.channel(), asked_to_stop=lambda: "now" if server.at == (blocks.ROUND, 2) else "")
    path = bench.folder / site / spec.run.hex() / f"{'server' if site == 'server' else 'agent'}.state"
    path.write_bytes(path.read_bytes()[:-5])
    if site == "server":
        with pytest.raises(StateError, match=r"server\.state .* refused"):
            bench.server(spec)
    else:
        outcome = drive(bench.server(spec), bench.channel())
        assert outcome.status == "stopped"
        assert "agent north: state file agent.state" in outcome.reason


def test_wait_pauses_and_goes_on(bench: Bench, undisturbed: ServerRunner) -> None:
    spec = bench.spec(policy="wait")
    server, outcome = bench.run(spec, channel=bench.channel("north", "west"))
    assert outcome.status == "paused"
    assert outcome.missing == ("south",)
    assert "waiting for south" in outcome.reason
    server, outcome = bench.run(spec)
    assert outcome.status == "complete"
    assert not server.records.skipped
    np.testing.assert_array_equal(server.meta, undisturbed.meta)


def test_stop_names_who_is_absent(bench: Bench) -> None:
    _, outcome = bench.run(bench.spec(policy="stop"), channel=bench.channel("north", "west"))
    assert outcome.status == "stopped"
    assert "agent south: not reachable" in outcome.reason


def test_skip_needs_its_quorum(bench: Bench) -> None:
    spec = bench.spec(policy="skip", quorum=3)
    assert bench.run(spec, channel=bench.channel("north", "west"))[1].status == "paused"
    server, outcome = bench.run(bench.spec(policy="skip", quorum=2), channel=bench.channel("north", "west"))
    assert outcome.status == "complete"
    assert {s["agent"] for s in server.records.skipped} == {"south"}
    assert server.trace[:, 5].tolist() == [2.0] * 4


class Slow(LocalChannel):
    """`south` is alive, and answers after `patience` asks."""

    def __init__(self, bench: Bench, patience: int) -> None:
        super().__init__({name: bench.agent(name) for name in NAMES})
        self.patience, self.now, self.asked = patience, 0.0, 0

    def call(self, requests: Mapping[str, bytes], timeout_seconds: float) -> Answers:
        if "south" in requests:
            self.asked += 1
            if self.asked <= self.patience:
                requests = {name: request for name, request in requests.items() if name != "south"}
                self.now += timeout_seconds
        return super().call(requests, timeout_seconds)


def test_a_slow_agent_is_waited_for_until_the_deadline(bench: Bench, undisturbed: ServerRunner) -> None:
    channel = Slow(bench, 3)
    server = bench.server(bench.spec(deadline_seconds=60.0, policy="skip", quorum=2))
    assert drive(server, channel, clock=lambda: channel.now).status == "complete"
    assert not server.records.skipped  # 5 + 10 + 20 seconds are below the deadline
    np.testing.assert_array_equal(server.meta, undisturbed.meta)


def test_a_late_agent_is_skipped_for_that_round_only(bench: Bench) -> None:
    channel = Slow(bench, 4)
    server = bench.server(bench.spec("fedavg", deadline_seconds=30.0, policy="skip", quorum=2))
    assert drive(server, channel, clock=lambda: channel.now).status == "complete"
    assert [(s["exchange"], s["reason"]) for s in server.records.skipped] == [
        ("upload", "did not answer before the deadline")
    ]


class Bad(LocalChannel):
    """`south` answers every round with the bytes that `spoil` makes of its true answer."""

    def __init__(self, bench: Bench, spoil: Any) -> None:
        super().__init__({name: bench.agent(name) for name in NAMES})
        self.spoil = spoil

    def call(self, requests: Mapping[str, bytes], timeout_seconds: float) -> Answers:
        answers = super().call(requests, timeout_seconds)
        if "south" in answers.replies and wire.kind_of(requests["south"]) == blocks.ROUND:
            answers.replies["south"] = self.spoil(answers.replies["south"], answers.replies["north"])
        return answers


def remake(data: bytes, change: Any) -> bytes:
    forms = (blocks.Form("float32", (25,)),)
    message = wire.decode(data, kind=blocks.ROUND, run=data[8:24], forms=forms)
    return wire.encode(message._replace(arrays=(change(message.arrays[0]),)))


SPOILS = {
    "NaN": (lambda own, other: remake(own, lambda a: a * np.float32(np.nan)), "25 of 25 values are NaN or infinite"),
    "huge": (lambda own, other: remake(own, lambda a: a * np.float32(1e9)), "norm .* is above the largest allowed"),
    "longer": (lambda own, other: own + b"x", "bytes, got"),
    "posing": (lambda own, other: other, "names agent"),
    "empty": (lambda own, other: b"", "bytes, got 0"),
    "not bytes": (lambda own, other: None, "must be bytes, got NoneType"),
}


@pytest.mark.parametrize("how", SPOILS)
def test_a_bad_agent_is_named_and_the_run_goes_on_without_it(bench: Bench, how: str) -> None:
    spoil, words = SPOILS[how]
    lines: list[str] = []
    spec = bench.spec("fedavg", policy="skip", quorum=2)
    server, outcome = bench.run(spec, channel=Bad(bench, spoil), report=lines.append)
    assert outcome.status == "complete"
    assert np.isfinite(server.meta).all()
    assert {s["agent"] for s in server.records.skipped} == {"south"}
    assert any(line.startswith("agent south: ") for line in lines)
    assert re.search(words, server.records.skipped[0]["reason"])
    assert bench.run(bench.spec("fedavg", policy="wait", nonce="2"), channel=Bad(bench, spoil))[1].status == "stopped"


def test_readings_and_payload_stand_in_the_table(bench: Bench) -> None:
    def meter(work: Any) -> tuple[Any, AgentReport]:
        return work(), AgentReport(joules=2.0, seconds=0.5, kind="measured", source="test meter")

    spec = bench.spec("meta_backward", settings={"radius": 0.3})
    channel = LocalChannel({n: bench.agent(n, meter=meter, traffic=lambda: (10.0, 20.0)) for n in NAMES})
    server, _ = bench.run(spec, channel=channel)
    table = {name: server.records.column(name) for name in COLUMNS}
    assert (table["joules"][1:] == 2.0).all()  # four rounds and the close
    assert server.status()["joules"] == {"measured": 5 * 3 * 2.0}
    assert (table["bytes_sent"] == 10).all()
    rounds = slice(1, 5)
    assert (table["payload_up"][rounds] == wire.size(server.contract.reply_forms(blocks.ROUND))).all()
    assert (table["charged_up"][rounds] == 4 * bench.model.size).all()
    assert "test meter" in server.records.sources


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"policy": "hope"}, "unknown policy 'hope'"),
        ({"quorum": 4}, "quorum must be from 1 to the number of agents, 3, got 4"),
        ({"quorum": 0}, "quorum must be from 1"),
        ({"deadline_seconds": -1.0}, "deadline_seconds must be"),
        ({"agents": ("north", "north")}, "names must differ"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_wrong_settings_are_refused(bench: Bench, change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        bench.spec(**change)


@given(st.text(max_size=300) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(repr))
@settings(max_examples=100)
def test_a_spec_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="spec"):
        read_spec(text)


def test_a_spec_of_another_release_is_refused(bench: Bench) -> None:
    from fewjoule import __version__

    text = bench.spec().text
    assert read_spec(text) == bench.spec()
    with pytest.raises(InputError, match="install one release on all sites"):
        read_spec(text.replace(f'"{__version__}"', '"0.0.0"'))


def test_an_agent_refuses_a_run_it_is_not_part_of(bench: Bench) -> None:
    with pytest.raises(InputError, match="agent 'north' is not one of this run: south, west"):
        bench.agent("north").agree(bench.spec(agents=("south", "west")).text)


class Training(LocalChannel):
    """`south` is alive and agrees after `patience` asks, since it trains its own model first."""

    def __init__(self, bench: Bench, patience: int) -> None:
        super().__init__({name: bench.agent(name) for name in NAMES})
        self.patience, self.now = patience, 0.0

    def agree(self, names: Iterable[str], spec: str, timeout_seconds: float) -> Answers:
        self.patience -= 1
        self.now += timeout_seconds
        return super().agree([n for n in names if n != "south" or self.patience < 0], spec, timeout_seconds)


def test_trial_15_offline_training_may_take_longer_than_the_deadline(bench: Bench, undisturbed: ServerRunner) -> None:
    channel, lines = Training(bench, 8), []
    server = bench.server(bench.spec(deadline_seconds=10.0, policy="skip", quorum=2))
    assert drive(server, channel, clock=lambda: channel.now, report=lines.append).status == "complete"
    assert channel.now > 100
    assert not server.records.skipped
    assert lines == ["waiting for south to agree; an agent may train its own model first"]
    np.testing.assert_array_equal(server.meta, undisturbed.meta)


def test_a_run_that_waits_for_an_agreement_can_be_stopped(bench: Bench) -> None:
    channel = Training(bench, 10**6)
    server = bench.server(bench.spec())
    outcome = drive(server, channel, asked_to_stop=lambda: "enough" if channel.now > 60 else "")
    assert (outcome.status, outcome.reason) == ("paused", "enough")


def changed(spec: Spec, **values: Any) -> str:
    return json.dumps({**json.loads(spec.text), **values})


@pytest.mark.parametrize("rounds", [2**70, 10**7])
def test_trial_19_rounds_are_bounded_before_anything_is_built(bench: Bench, rounds: int) -> None:
    text = changed(bench.spec("fedavg"), method={"method": "fedavg", "rounds": rounds})
    with pytest.raises(InputError, match="must be at most"):
        bench.agent("north").agree(text)
    with pytest.raises(InputError, match="must be at most"):
        ServerRunner(read_spec(text), bench.folder / "server")


def test_trial_19_a_models_size_is_bounded_before_anything_is_built(bench: Bench) -> None:
    text = changed(bench.spec("fedavg"), model={"spec": "mlp:10000000-10000000-1", "init": "glorot", "loss": "mse"})
    with pytest.raises(InputError, match="at most"):
        bench.agent("north").agree(text)


@pytest.mark.parametrize(
    "values",
    [
        {"deadline_seconds": "soon"},
        {"largest_rms": None},
        {"seed": True},
        {"nonce": 5},
        {"agents": ["north", 5]},
        {"agents": {"north": 1}},
        {"classes": "cat"},
        {"quorum": 1.5},
        {"model": {"spec": 5}},
        {"model": {"spec": "mlp:1-8-1", "colour": "red"}},
        {"model": []},
        {"local": {"max_step": 5}},
        {"local": {"max_steps": "many"}},
        {"method": {"method": ["fedavg"]}},
        {"method": {"method": "fedavg", "name": "fedavg"}},
        {"method": {"method": "fedavg", "rounds": {"a": 1}}},
        {"method": json.loads('{"method":' + "[" * 400 + "]" * 400 + "}")},
    ],
    ids=lambda values: str(values)[:50],
)
def test_trial_20_a_spec_of_wrong_types_is_refused_in_one_line(bench: Bench, values: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        bench.agent("north").agree(changed(bench.spec("fedavg"), **values))


@pytest.mark.parametrize(
    "values",
    [
        {"exchange": -1},
        {"exchange": 10**30},
        {"exchange": True},
        {"recorded": -1},
        {"recorded": "many"},
        {"sources": [[]]},
    ],
    ids=str,
)
def test_trial_20_a_state_with_wrong_values_is_refused(bench: Bench, values: dict[str, Any]) -> None:
    spec = bench.spec("average")
    server, _ = bench.run(spec)
    saved = server._save()
    write_state(server._path, blocks.SERVER, spec.run, State({**saved.values, **values}, saved.arrays))
    with pytest.raises(StateError, match=f"its value '{next(iter(values))}' must be"):
        bench.server(spec)


def test_trial_20_a_kept_local_model_with_a_wrong_report_is_refused(bench: Bench) -> None:
    bench.agent("north").agree(bench.spec("average").text)
    (path,) = (bench.folder / "north" / "local").iterdir()
    run = bytes.fromhex(path.stem)
    saved = read_state(path, blocks.AGENT, run)
    assert saved is not None
    write_state(path, blocks.AGENT, run, State({"report": {"joles": 1}}, saved.arrays))
    with pytest.raises(StateError, match="its value 'report' must be of type AgentReport"):
        bench.agent("north").agree(bench.spec("average", nonce="next").text)
