"""Coded broadcasts cross as they are charged, bit for bit the simulator's, also for agents that were away."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from fewjoule import method, simulate
from fewjoule.federation import blocks, wire
from fewjoule.federation.drive import Answers, drive
from fewjoule.federation.results import read_result
from fewjoule.federation.server import ServerRunner
from fewjoule.federation.wire import MessageError
from tests.federation.bench import NAMES, SHORT, Bench, LocalChannel

CODED = {"down_codec": "quantise:3", "rounds": 4, "local_steps": 1}
DEEPLY = {"codec": "quantise:3", "down_codec": "top-k:0.25:3", "start": "random", "rounds": 4, "local_steps": 2}
AWAY = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 0], [1, 1, 1]], bool)
"""South misses round 2, west round 3."""


class Present(LocalChannel):
    """Agents are there as `availability` says; keeps the requests that were answered, by round and agent."""

    def __init__(self, bench: Bench, availability: np.ndarray) -> None:
        super().__init__({name: bench.agent(name) for name in NAMES})
        self.availability, self.heard, self.now = availability, {}, 0.0

    def call(self, requests: Mapping[str, bytes], timeout_seconds: float) -> Answers:
        kind, there = wire.kind_of(next(iter(requests.values()))), dict(requests)
        if kind in (blocks.ROUND, blocks.CHANGE):
            round = int.from_bytes(next(iter(requests.values()))[28:32], "little")  # the note begins there
            there = {n: r for n, r in requests.items() if self.availability[round, NAMES.index(n)]}
            self.heard |= {(round, name): request for name, request in there.items()}
            self.now += timeout_seconds if len(there) < len(requests) else 0.0
        return super().call(there, timeout_seconds)


def federated(bench: Bench, settings: dict[str, Any], availability: np.ndarray) -> tuple[ServerRunner, Present]:
    channel = Present(bench, availability)
    spec = bench.spec("fedavg", seed=2, settings=settings, policy="skip", quorum=1, deadline_seconds=30.0)
    server = bench.server(spec)
    assert drive(server, channel, clock=lambda: channel.now).status == "complete"
    return server, channel


def sent_bytes(server: ServerRunner, request: bytes) -> int:
    """Bytes of the arrays in a request: what remains without the message's own frame."""
    kind = wire.kind_of(request)
    forms = server.contract.request_forms(kind)
    return sum(a.nbytes for a in wire.decode(request, kind=kind, run=server.spec.run, forms=forms).arrays)


@pytest.mark.slow
def test_the_bytes_on_the_wire_are_the_charge(bench: Bench) -> None:
    """A change for who holds the broadcast before, the whole model for who was away."""
    server, channel = federated(bench, CODED, AWAY)
    charged = read_result(server.result()).bits("charged_down")
    assert server.contract.down_codec is not None
    change, whole = server.contract.down_codec.most_bytes(bench.model.size), 4 * bench.model.size
    for round, name in zip(*np.nonzero(AWAY), strict=True):
        request = channel.heard[round, NAMES[name]]
        held = round == 0 or AWAY[round - 1, name]
        assert sent_bytes(server, request) == (change if held else whole)
        assert 8 * sent_bytes(server, request) == charged[1 + round, name]
    assert not charged[1:][~AWAY].any()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [CODED, DEEPLY])
def test_the_bytes_on_the_wire_are_the_simulators(bench: Bench, settings: dict[str, Any]) -> None:
    server, channel = federated(bench, settings, AWAY)
    chosen = method("fedavg", **{**SHORT["fedavg"], **settings})
    run = simulate(chosen, bench.model, bench.agents, bench.local, seed=2, availability=AWAY, one_by_one=True)
    np.testing.assert_array_equal(server.meta, run.meta)
    result = read_result(server.result())
    np.testing.assert_array_equal(result.bits("charged_down"), run.downlink_bits)
    np.testing.assert_array_equal(result.bits("charged_up"), run.uplink_bits)
    for (round, name), request in channel.heard.items():
        assert 8 * sent_bytes(server, request) == run.downlink_bits[1 + round, NAMES.index(name)]
    whole = 32 * bench.model.size
    kinds = {at: wire.kind_of(request) for at, request in channel.heard.items()}
    assert {at for at, kind in kinds.items() if kind == blocks.ROUND} == {(2, "south"), (3, "west")}
    assert (run.downlink_bits[3:] == whole).tolist() == [[False, True, False], [False, False, True]]
    assert (run.downlink_bits[1] == 0).all() == ("start" in settings)


def test_a_server_that_is_started_again_sends_the_same_bytes(bench: Bench) -> None:
    """Who holds which broadcast is part of its state."""
    undisturbed, first = federated(bench, CODED, AWAY)
    other = Bench(bench.model, bench.agents, bench.local, bench.folder / "again")
    channel = Present(other, AWAY)
    spec = undisturbed.spec
    while True:
        server = other.server(spec)
        at = server.exchange
        outcome = drive(
            server,
            channel,
            clock=lambda: channel.now,
            asked_to_stop=lambda s=server, a=at: "" if s.exchange == a else "x",
        )
        if outcome.status == "complete":
            break
        channel.agents = {name: other.agent(name) for name in NAMES}  # the agents' processes are new ones too
    assert channel.heard == first.heard
    np.testing.assert_array_equal(server.meta, undisturbed.meta)


def test_a_change_that_does_not_follow_is_refused_and_changes_nothing(bench: Bench) -> None:
    server, channel = federated(bench, CODED, AWAY)
    fresh = Bench(bench.model, bench.agents, bench.local, bench.folder / "fresh").agent("north")
    fresh.agree(server.spec.text)
    with pytest.raises(MessageError, match="round 3 came as a change of a broadcast that agent 'north' does not hold"):
        fresh.handle(channel.heard[2, "north"])
    whole = channel.heard[3, "west"]
    assert fresh.handle(whole)  # a round from anywhere can be gone on from
    torn = bytearray(channel.heard[0, "north"])
    torn[-40] ^= 1
    with pytest.raises(MessageError, match="damaged"):
        fresh.handle(bytes(torn))


def test_bytes_that_are_no_message_of_the_codec_are_refused(bench: Bench) -> None:
    server, channel = federated(bench, CODED, AWAY)
    fresh = Bench(bench.model, bench.agents, bench.local, bench.folder / "fresh").agent("north")
    fresh.agree(server.spec.text)
    forms = server.contract.request_forms(blocks.CHANGE)
    message = wire.decode(channel.heard[0, "north"], kind=blocks.CHANGE, run=server.spec.run, forms=forms)
    junk = message._replace(arrays=(np.zeros(9, np.uint8),))
    with pytest.raises(MessageError, match="message refused: coded message"):
        fresh.handle(wire.encode(junk))
    plain = bench.agent("west")
    spec = bench.spec("fedavg")
    plain.agree(spec.text)
    with pytest.raises(MessageError, match="it is a change message, not a request"):
        plain.handle(wire.encode(message._replace(run=spec.run)))
