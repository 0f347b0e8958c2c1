"""A federation ends with the simulator's numbers: same seed, same agents, every method of the registry."""

from typing import Any

import numpy as np
import pytest

from fewjoule import METHODS, method, simulate, train_locally
from fewjoule.federation import blocks, wire
from fewjoule.federation.agent import AgentRunner
from fewjoule.federation.drive import drive
from tests.federation.bench import NAMES, SHORT, Bench

# One compiled program differs from another in the order of sums only.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


@pytest.mark.parametrize("name", METHODS)
def test_meta_model_trace_losses_and_bits_are_the_simulators(bench: Bench, name: str) -> None:
    spec = bench.spec(name, seed=7)
    run = simulate(method(name, **SHORT[name]), bench.model, bench.agents, bench.local, seed=7)
    server, outcome = bench.run(spec)
    assert outcome.status == "complete"
    np.testing.assert_allclose(server.meta, run.meta, **TOLERANCE)
    np.testing.assert_allclose(server.losses, [run.final_loss, run.start_loss], rtol=1e-5)
    trace = np.stack(run.trace, -1)
    known = ~np.isnan(server.trace)
    np.testing.assert_allclose(server.trace[known], trace[known], rtol=1e-4, atol=1e-5)
    split = len(server.contract.plan) - 1 - server.contract.method.rounds  # exchanges before the first round
    up, down = (np.nan_to_num(8 * server.records.column(c)) for c in ("charged_up", "charged_down"))
    np.testing.assert_array_equal(np.vstack([up[:split].sum(0), up[split:-1]]), run.uplink_bits)
    np.testing.assert_array_equal(np.vstack([down[:split].sum(0), down[split:-1]]), run.downlink_bits)


@pytest.mark.parametrize(
    ("name", "codecs"),
    [
        ("fedavg", {"codec": "quantise:3"}),
        ("meta_backward", {"codec": "top-k:0.25:4", "radius": 0.3}),
        ("fedsgd", {"codec": "lloyd-max:2", "first_codec": "quantise:8"}),
    ],
)
def test_coded_messages_cross_as_few_bytes_and_decode_the_same(bench: Bench, name: str, codecs: Any) -> None:
    settings = {**SHORT[name], **codecs}
    run = simulate(method(name, **settings), bench.model, bench.agents, bench.local, seed=2)
    server, outcome = bench.run(bench.spec(name, seed=2, settings=codecs))
    assert outcome.status == "complete"
    np.testing.assert_allclose(server.meta, run.meta, rtol=1e-4, atol=1e-5)
    charged, payload = (server.records.column(c) for c in ("charged_up", "payload_up"))
    np.testing.assert_array_equal(8 * charged[1:-1], run.uplink_bits[1:])
    frame = wire.size([blocks.Form("uint8", (0,))])
    np.testing.assert_array_equal(payload[:-1], charged[:-1] + frame)  # what is charged is what crossed, and a frame


@pytest.mark.parametrize("name", ["average", "meta_backward", "reptile"])
def test_methods_that_send_models_are_equal_bit_for_bit_here(bench: Bench, name: str) -> None:
    run = simulate(method(name, **SHORT[name]), bench.model, bench.agents, bench.local, seed=1)
    server, _ = bench.run(bench.spec(name, seed=1))
    ulp = np.spacing(np.abs(np.asarray(run.meta)))
    assert (np.abs(server.meta - np.asarray(run.meta)) <= 2 * ulp).all()


def test_agents_without_a_model_train_their_own(bench: Bench) -> None:
    local = {"max_steps": 60, "batch": 8}
    models = train_locally(bench.model, bench.agents, seed=5, **local)
    run = simulate(method("average"), bench.model, bench.agents, models, seed=5)
    spec = bench.spec("average", seed=5, local=local)
    channel = bench.channel()
    channel.agents = {name: bench.agent(name, own=None) for name in NAMES}
    server, _ = bench.run(spec, channel=channel)
    np.testing.assert_allclose(server.meta, run.meta, rtol=1e-4, atol=1e-6)


def test_absent_agents_are_as_in_the_simulator(bench: Bench) -> None:
    """`south` is away in rounds 1 and 2 and comes back with its own state."""
    spec = bench.spec("meta_backward", policy="skip", quorum=2, settings={"radius": 0.3})
    availability = np.ones((4, 3), bool)
    availability[1:3, 1] = False
    chosen = method("meta_backward", **SHORT["meta_backward"], radius=0.3)
    run = simulate(chosen, bench.model, bench.agents, bench.local, availability=availability)
    channel, server = bench.channel(), bench.server(spec)
    away: list[AgentRunner] = []

    def reached(round: int) -> str:
        return "pause" if server.at == (4, round) else ""

    assert drive(server, channel, asked_to_stop=lambda: reached(1)).status == "paused"
    away.append(channel.agents.pop("south"))
    assert drive(server, channel, asked_to_stop=lambda: reached(3)).status == "paused"
    channel.agents["south"] = away.pop()
    assert drive(server, channel).status == "complete"
    np.testing.assert_allclose(server.meta, run.meta, **TOLERANCE)
    assert [(s["round"], s["agent"], s["reason"]) for s in server.skipped] == [
        (1, "south", "not reachable"),
        (2, "south", "not reachable"),
    ]
