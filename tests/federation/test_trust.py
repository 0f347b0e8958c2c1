"""What the server believes of agents: sizes beside the others', readings, texts; and who is named for it."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewjoule import InputError
from fewjoule.federation import blocks, trust, wire
from fewjoule.federation.drive import MOST_OFFENCES, Answers
from fewjoule.federation.wire import AgentReport, Message, MessageError
from tests.federation.bench import NAMES, Bench, LocalChannel


class Liar(LocalChannel):
    """`south` answers requests of one kind with what `lie` makes of its true message, from the `after`-th on."""

    def __init__(
        self, bench: Bench, lie: Callable[[Message], Message], kind: int = blocks.ROUND, after: int = 0
    ) -> None:
        super().__init__({name: bench.agent(name) for name in NAMES})
        self.lie, self.kind, self.left, self.asked = lie, kind, after, 0

    def call(self, requests: Mapping[str, bytes], timeout_seconds: float) -> Answers:
        answers = super().call(requests, timeout_seconds)
        kind = wire.kind_of(next(iter(requests.values())))
        if "south" in requests and kind == self.kind:
            self.asked += 1
            self.left -= 1
            if self.left < 0:
                contract = self.agents["south"]._contract
                assert contract is not None
                forms, run = contract.reply_forms(kind), contract.spec.run
                told = wire.decode(answers.replies["south"], kind=kind, run=run, forms=forms)
                answers.replies["south"] = wire.encode(self.lie(told))
        return answers


def constant(value: float) -> Callable[[Message], Message]:
    return lambda message: message._replace(arrays=tuple(np.full_like(a, value) for a in message.arrays))


@pytest.mark.parametrize(
    ("name", "settings", "kind", "value"),
    [
        ("fedavg", {}, blocks.ROUND, 9000.0),
        ("fedavg", {}, blocks.UPLOAD, -9000.0),
        ("fedsgd", {}, blocks.ROUND, 9000.0),
        ("meta_backward", {"radius": 0.3}, blocks.ROUND, 200.0),
        ("fedavg", {"rounds": 2}, blocks.ROUND, 500.0),
    ],
)
def test_trial_37_a_poisoned_message_below_the_absolute_bound_names_its_sender(
    bench: Bench, name: str, settings: dict[str, Any], kind: int, value: float
) -> None:
    lines: list[str] = []
    channel = Liar(bench, constant(value), kind, after=1 if kind == blocks.ROUND else 0)
    spec = bench.spec(name, policy="wait", settings=settings)
    server, outcome = bench.run(spec, channel=channel, report=lines.append)
    assert outcome.status == "stopped"
    assert outcome.missing == ("south",)
    assert re.search(r"agent south: the size of its message, .* the agents' median is", outcome.reason)
    assert not any("north" in line or "west" in line for line in lines)
    assert np.isfinite(server.meta if kind == blocks.ROUND else 0).all()


def test_trial_37_a_square_beside_a_vector_is_bounded_too(bench: Bench) -> None:
    """FedExP's server divides by it: a small change with a huge norm would send the model away."""

    def lie(message: Message) -> Message:
        return message._replace(arrays=(message.arrays[0], np.float32(3e4)))

    _, outcome = bench.run(bench.spec("fedexp", settings={"local_steps": 3}), channel=Liar(bench, lie))
    assert outcome.status == "stopped"
    assert outcome.missing == ("south",)


def test_trial_37_a_repeated_offender_is_left_out_and_no_longer_asked(bench: Bench) -> None:
    lines: list[str] = []
    gone: dict[str, str] = {}
    channel = Liar(bench, constant(9000.0))
    spec = bench.spec("fedavg", policy="skip", quorum=2, settings={"rounds": 8})
    server, outcome = bench.run(spec, channel=channel, report=lines.append, gone=gone)
    assert outcome.status == "complete"
    assert channel.asked == MOST_OFFENCES
    assert "left out after 3 refused answers: the size of its message" in gone["south"]
    assert [s["round"] for s in server.records.skipped if s["exchange"] == "round"] == list(range(1, 9))
    honest, _ = bench.run(bench.spec("fedavg", policy="skip", quorum=2, settings={"rounds": 8}, nonce="2"))
    assert np.abs(server.meta - honest.meta).max() < 1


def test_honest_agents_that_differ_a_hundredfold_are_not_accused() -> None:
    known = np.ones(10)
    messages = {name: (np.full(10, size),) for name, size in (("a", 0.001), ("b", 0.01), ("c", 0.9))}
    assert trust.outliers(messages, known, 100.0, models=False) == {}  # below the size of the model
    messages |= {"c": (np.full(10, 0.02),), "d": (np.full(10, 5.0),)}
    assert trust.outliers(messages, known, 100.0, models=False).keys() == {"d"}


def test_two_agents_are_compared_with_the_broadcast() -> None:
    known = np.ones(10)
    messages = {"a": (known + 0.1,), "b": (known * 500,)}
    assert trust.outliers(messages, known, 100.0, models=True).keys() == {"b"}
    assert trust.outliers(messages, known, 100.0, models=False) == {}  # a gradient has no natural size
    assert trust.outliers({}, known, 100.0, models=True) == {}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"joules": 1e300, "seconds": 1.0, "kind": "measured"},
            r"reading of joules, 1e\+300, is above any plausible one, 2e",
        ),
        ({"joules": 1.0, "seconds": 0.0, "kind": "measured"}, "reading of joules, 1, is above any plausible one, 0"),
        ({"joules": 1e300, "kind": "analytic"}, "reading of joules"),
        ({"seconds": 1e12}, "reading of seconds"),
        ({"bytes_sent": 1e18}, "reading of bytes_sent"),
        ({"charged_bytes": 1e6}, "reading of charged_bytes"),
    ],
)
def test_trial_37_impossible_readings_are_refused_with_the_agents_name(
    bench: Bench, change: dict[str, Any], words: str
) -> None:
    channel = Liar(bench, lambda m: m._replace(report=m.report._replace(**change)))
    _, outcome = bench.run(bench.spec("fedavg"), channel=channel)
    assert outcome.status == "stopped"
    assert re.search(f"round 1: agent south: its {words}", outcome.reason)


def test_possible_readings_pass() -> None:
    trust.check_reading(AgentReport(joules=700.0, seconds=1.0, kind="measured", charged_bytes=10.0), 10)
    trust.check_reading(AgentReport(joules=5.0, kind="analytic"), 0)
    with pytest.raises(MessageError):
        trust.check_reading(AgentReport(samples=1e12), 0)


class Forger(LocalChannel):
    def call(self, requests: Mapping[str, bytes], timeout_seconds: float) -> Answers:
        answers = super().call(requests, timeout_seconds)
        if answers.replies.pop("south", None) is None:
            return answers
        forged = "\x1b[2J\x1b]0;owned\x07oops\r\nagent north: cheats\n" + 10_000 * "x" + "\u202etxt"
        return Answers(answers.replies, {"south": forged})


def test_trial_37_an_agents_text_forges_no_line_and_no_escape(bench: Bench) -> None:
    lines: list[str] = []
    channel = Forger({name: bench.agent(name) for name in NAMES})
    server, _ = bench.run(bench.spec("fedavg", policy="skip", quorum=2), channel=channel, report=lines.append)
    told = [*lines, *(s["reason"] for s in server.records.skipped)]
    assert all(line.isprintable() and len(line) < 500 for line in told)
    assert any(line.startswith("agent south: oops agent north: cheats xxx") for line in lines)
    assert not any(line.startswith("agent north") for line in lines)


@given(st.text(max_size=700))
def test_any_text_is_one_short_printable_line(text: str) -> None:
    line = trust.clean(text)
    assert line.isprintable()
    assert len(line) <= trust.LONGEST_TEXT
    assert trust.clean(line) == line


def test_the_ratio_is_a_setting(bench: Bench) -> None:
    channel = Liar(bench, constant(200.0))
    assert (
        bench.run(bench.spec("fedavg", largest_ratio=1e6, settings={"rounds": 1}), channel=channel)[1].status
        == "complete"
    )
    with pytest.raises(InputError, match="largest_ratio must be"):
        bench.spec(largest_ratio=0.0)


def test_a_robust_mean_needs_its_agents_in_every_round(bench: Bench) -> None:
    median = {"settings": {"combine": "median"}}
    assert bench.server(bench.spec("fedavg", policy="wait", **median)).contract.method.combine == "median"
    with pytest.raises(InputError, match="out of fewer than 3 agents, and a round has 2"):
        bench.server(bench.spec("fedavg", policy="skip", quorum=2, **median))


@pytest.mark.slow
def test_one_poisoned_agent_hardly_moves_a_median_below_every_bound(bench: Bench) -> None:
    """A lie that no bound notices: all weights shifted by 3."""
    metas = {}
    for how in ("mean", "median"):
        for lie in (constant(3.0), lambda message: message):
            spec = bench.spec("fedavg", settings={"combine": how, "rounds": 1, "local_steps": 3}, nonce=str(lie))
            server, outcome = bench.run(spec, channel=Liar(bench, lie))
            assert outcome.status == "complete"
            metas.setdefault(how, []).append(server.meta)
    moved = {how: float(np.abs(a - b).max()) for how, (a, b) in metas.items()}
    assert moved["median"] < 0.5
    assert moved["mean"] > 1
