"""Answers between machines: the simulator's bytes, models of three architectures, and agents that leave early."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fewjoule import OwnModel, answers, mlp, simulate
from fewjoule.federation import blocks, wire
from fewjoule.federation.drive import drive
from fewjoule.randomness import key_for
from tests.federation.bench import NAMES, Bench, LocalChannel

SHORT = {"questions": "range:-5:5", "number": 9, "episodes": 3, "steps": 4}


@pytest.fixture
def different(bench: Bench) -> dict[str, OwnModel]:
    nets = [mlp([1, 8, 1]), mlp([1, 5, 3, 1]), mlp([1, 30, 1])]
    return {name: OwnModel(m, m.init(key_for(i, "local"))) for i, (name, m) in enumerate(zip(NAMES, nets, strict=True))}


@pytest.mark.slow
def test_models_of_three_architectures_answer_as_in_the_simulator(bench: Bench, different: dict[str, OwnModel]) -> None:
    run = simulate(answers(**SHORT), bench.model, bench.agents, list(different.values()), seed=2)
    channel = LocalChannel({name: bench.agent(name, own=own) for name, own in different.items()})
    server, outcome = bench.run(bench.spec("answers", seed=2, settings=SHORT), channel=channel)
    assert outcome.status == "complete"
    np.testing.assert_allclose(server.meta, run.meta, rtol=1e-5, atol=1e-6)
    assert run.uplink_bits[1].tolist() == [8 * (6 + 4 + 7)] * 3
    charged, payload = (server.records.column(c)[0] for c in ("charged_up", "payload_up"))
    np.testing.assert_array_equal(payload, charged + wire.size([blocks.Form("uint8", (0,))]))


@pytest.mark.slow
def test_an_agent_leaves_after_its_message(bench: Bench) -> None:
    """With the policy `wait` too: everything the server needs of it has been said."""
    channel, server = bench.channel(), bench.server(bench.spec("answers", settings=SHORT))
    stop = drive(server, channel, asked_to_stop=lambda: "pause" if server.at[0] == blocks.CLOSE else "")
    assert stop.status == "paused"
    channel.agents.clear()
    assert drive(server, channel).status in ("paused", "complete")
    if not server.complete:  # nobody agrees any more; the server closes alone
        server.finish(dict.fromkeys(NAMES, "left"))
    assert server.complete
    assert np.isfinite(server.meta).all()
    assert np.isnan(server.losses).all()


@pytest.mark.slow
def test_own_questions_are_sent_and_charged(bench: Bench) -> None:
    asked = {**SHORT, "questions": [[-1.0], [0.5], [2.0]]}
    run = simulate(answers(**asked), bench.model, bench.agents, bench.local, seed=2)
    server, _ = bench.run(bench.spec("answers", seed=2, settings=asked))
    assert run.downlink_bits[1].tolist() == [3 * 32] * 3
    np.testing.assert_array_equal(server.records.column("charged_down")[0] * 8, run.downlink_bits[1])
    np.testing.assert_allclose(server.meta, run.meta, rtol=1e-5, atol=1e-6)


def test_another_methods_agent_must_have_the_runs_architecture(bench: Bench, different: dict[str, Any]) -> None:
    agent = bench.agent("south", own=different["south"])
    with pytest.raises(ValueError, match="needs models of one architecture"):
        agent.agree(bench.spec("fedavg").text)
    wrong = mlp([1, 8, 2])
    agent = bench.agent("west", own=OwnModel(wrong, jnp.zeros(wrong.size)))
    with pytest.raises(ValueError, match="2 outputs"):
        agent.agree(bench.spec("answers", settings=SHORT).text)
