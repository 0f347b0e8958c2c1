"""A federation ends with the simulator's numbers: same seed, same agents, every method of the registry, every codec.

Agents and server run the simulator's own functions, each compiled alone. The simulator computes all agents at once, for
which XLA sums in another order: last bits differ, and training and thresholds of codecs make more of them. With
`one_by_one=True` it computes them as a federation does. The promise, with XLA's optimiser (the slow tests) and without:

    one_by_one=True     bit for bit, models, losses, bytes; every method and codec
    the default         bit for bit without the optimiser; with it, last bits of an agent's arithmetic differ
"""

import os
from typing import Any

import jax
import numpy as np
import pytest

from fewjoule import METHODS, make_agents, method, mlp, simulate, train_locally
from fewjoule.codecs import CODECS
from fewjoule.federation import blocks, wire
from fewjoule.federation.agent import AgentRunner
from fewjoule.federation.drive import drive
from fewjoule.federation.personal import PERSONAL_MODEL
from fewjoule.federation.results import read_result
from fewjoule.methods import CODE_THEMSELVES
from fewjoule.models.weights import read_model
from fewjoule.simulation.rules import NUMBER_BYTES, has_diverged, numbers
from tests.federation.bench import NAMES, SHORT, Bench, LocalChannel

OPTIMISED = "optimization_level=0" not in os.environ.get("XLA_FLAGS", "")
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}

CODINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "float32": {"codec": "float32"},
    "float16": {"codec": "float16"},
    "quantise": {"codec": "quantise:3", "down_codec": "quantise:8"},
    "lloyd-max": {"codec": "lloyd-max:2", "first_codec": "quantise:8"},
    "top-k": {"codec": "top-k:0.25:4"},
    "uniform": {"codec": "uniform:8"},
}
# compilation takes seconds, so by default few methods run, and two codecs; the slow tests run every pair
DEFAULT = {
    *((name, "plain") for name in ("answers", "fedavg", "fedrep", "maml", "meta_backward")),
    ("fedavg", "top-k"),
    ("fedexp", "quantise"),
}
PAIRS = [
    pytest.param(name, coding, id=f"{name}-{coding}", marks=() if (name, coding) in DEFAULT else pytest.mark.slow)
    for name in METHODS
    for coding in CODINGS
    if coding == "plain" or name not in CODE_THEMSELVES
]


def test_every_codec_is_tried() -> None:
    assert CODINGS.keys() - {"plain"} == set(CODECS)


@pytest.fixture(scope="module")
def unequal(trained: Any) -> Any:
    """Agents with 24, 10 and 17 samples, padded as the simulator has them."""
    rng = np.random.default_rng(4)
    draws = [[rng.uniform(-5, 5, (n, 1)).astype(np.float32) for n in sizes] for sizes in ((24, 10, 17), (12, 9, 7))]
    train, held = ([(x, (i + 1) * np.sin(x)) for i, x in enumerate(each)] for each in draws)
    return mlp([1, 8, 1]), make_agents(train, held, names=NAMES), trained[2]


def check_equality(bench: Bench, name: str, settings: dict[str, Any], seed: int = 2) -> None:
    chosen = method(name, **{**SHORT[name], **settings})
    run = simulate(chosen, bench.model, bench.agents, bench.local, seed=seed, one_by_one=True)
    server, outcome = bench.run(bench.spec(name, seed=seed, settings=settings))
    assert outcome.status == "complete"
    result = read_result(server.result())
    np.testing.assert_array_equal(result.bits("charged_up"), run.uplink_bits)
    np.testing.assert_array_equal(result.bits("charged_down"), run.downlink_bits)
    if run.method.start == "random" and run.method.probe is None and run.method.rounds:
        scalars = numbers(server.contract.shapes.broadcast.scalars)  # the start itself is drawn at both ends
        assert (result.bits("charged_down")[:2] == [[0], [8 * NUMBER_BYTES * scalars]]).all()
    if bool(run.diverged):  # the simulator gives NaN for such a run, and the federation's results call it diverged too
        (final, start), last = result.losses, result.trace.loss[-1]
        assert bool(has_diverged(run.method, start, final, last, np.isfinite(server.meta).all()))
        return
    np.testing.assert_array_equal(server.meta, run.meta)
    assert (result.rates is None) == (run.rates is None)
    if run.rates is not None:
        np.testing.assert_array_equal(result.rates, run.rates)
    for i, agent in enumerate(NAMES):  # its own model, which only the agent has
        kept = bench.folder / agent / server.spec.run.hex() / PERSONAL_MODEL
        assert kept.exists() == (run.personal is not None)
        if run.personal is not None:
            np.testing.assert_array_equal(read_model(kept, model=bench.model).vector, run.personal[i])
    np.testing.assert_allclose(server.losses, [run.final_loss, run.start_loss], rtol=1e-5)
    known, trace = ~np.isnan(server.trace), np.stack(run.trace, -1)
    np.testing.assert_allclose(server.trace[known], trace[known], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def classes() -> Any:
    """Agents with three classes, for the method that needs classes."""
    rng = np.random.default_rng(6)
    pairs = [(rng.normal(size=(24, 2)).astype(np.float32), rng.integers(0, 3, 24)) for _ in NAMES]
    model = mlp([2, 6, 3], loss="cross_entropy")
    return model, make_agents(pairs, names=NAMES), 0.3 * jax.random.normal(jax.random.key(6), (3, model.size))


@pytest.mark.parametrize(("name", "coding"), PAIRS)
def test_trial_13_every_method_with_every_codec_is_the_simulators(
    bench: Bench, classes: Any, tmp_path: Any, name: str, coding: str
) -> None:
    bench = Bench(*classes, tmp_path) if name == "protonet" else bench
    check_equality(bench, name, CODINGS[coding])


@pytest.mark.parametrize("name", ["fedavg", pytest.param("lean", marks=pytest.mark.slow)])
def test_all_at_once_is_one_by_one_without_the_optimiser(bench: Bench, name: str) -> None:
    chosen, seeds = method(name, **SHORT[name]), [0, 1]
    runs = [
        simulate(chosen, bench.model, bench.agents, bench.local, seed=seeds, one_by_one=one_by_one)
        for one_by_one in (False, True)
    ]
    if not OPTIMISED:
        np.testing.assert_array_equal(runs[0].meta, runs[1].meta)
    alone = simulate(chosen, bench.model, bench.agents, bench.local, seed=1, one_by_one=True)
    np.testing.assert_array_equal(runs[1].meta[1], alone.meta)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"), [("lean", {"target": "better"}), ("fedavg", {}), ("fedsgd", {"codec": "top-k:0.25:4"})]
)
def test_trial_40_a_model_of_1761_weights_is_equal_bit_for_bit(
    tmp_path: Any, name: str, settings: dict[str, Any]
) -> None:
    """Where codecs meet ties that only last bits decide, and matrices are large enough for other orders of sums."""
    rng = np.random.default_rng(5)
    pairs = [(x, a * np.sin(x)) for a in (1, 2, 3) for x in [rng.uniform(-5, 5, (100, 1)).astype(np.float32)]]
    model = mlp([1, 40, 40, 1])
    local = model.init(jax.random.key(5)) + 0.1 * jax.random.normal(jax.random.key(6), (3, model.size))
    check_equality(
        Bench(model, make_agents(pairs, pairs, names=NAMES), local, tmp_path), name, {"batch": 50, **settings}
    )


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedavg", {"weighting": "samples", "epochs": 2}),
        ("fedavgm", {"combine": "median"}),
        pytest.param(
            "fedexp", {"weighting": "samples", "start": "random", "codec": "quantise:3"}, marks=pytest.mark.slow
        ),
        pytest.param("fedsgd", {"combine": "trimmed:0.34", "codec": "quantise:4"}, marks=pytest.mark.slow),
    ],
)
def test_samples_weigh_epochs_pass_and_medians_are_as_in_the_simulator(
    unequal: Any, tmp_path: Any, name: str, settings: dict[str, Any]
) -> None:
    check_equality(Bench(*unequal, tmp_path), name, settings)


def test_an_agent_without_a_number_of_samples_or_with_another_is_refused(bench: Bench) -> None:
    server = bench.server(bench.spec("fedavg", settings={"weighting": "samples"}))
    answer = bench.agent("north").agree(server.spec.text)
    server.accept_agreement("north", answer)
    message = wire.decode(answer, kind=blocks.AGREE, run=server.spec.run, forms=())
    assert message.report.samples == 24
    for samples in (0.0, 1000.0):
        told = wire.encode(message._replace(report=message.report._replace(samples=samples)))
        with pytest.raises(wire.MessageError, match=f"it has {samples:g} samples"):
            server.accept_agreement("north", told)
    plain = bench.agent("south").agree(bench.spec("fedavg").text)
    assert (
        wire.decode(plain, kind=blocks.AGREE, run=plain[8:24], forms=()).report.samples == 0
    )  # nobody else's business


@pytest.mark.slow
def test_coded_messages_cross_as_few_bytes(bench: Bench) -> None:
    server, _ = bench.run(bench.spec("fedavg", settings={"codec": "quantise:3"}))
    charged, payload = (server.records.column(c) for c in ("charged_up", "payload_up"))
    frame = wire.size([blocks.Form("uint8", (0,))])
    np.testing.assert_array_equal(payload[:-1], charged[:-1] + frame)  # what is charged is what crossed, and a frame


@pytest.mark.slow
def test_agents_without_a_model_train_their_own(bench: Bench) -> None:
    local = {"max_steps": 60, "batch": 8}
    models = train_locally(bench.model, bench.agents, seed=5, **local)
    run = simulate(method("average"), bench.model, bench.agents, models, seed=5)
    channel = LocalChannel({name: bench.agent(name, own=None) for name in NAMES})
    server, _ = bench.run(bench.spec("average", seed=5, local=local), channel=channel)
    np.testing.assert_allclose(server.meta, run.meta, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_absent_agents_are_as_in_the_simulator(unequal: Any, tmp_path: Any) -> None:
    """`south` is away in the second and the third round and comes back with its own state."""
    bench, settings = Bench(*unequal, tmp_path), {"radius": 0.3}
    spec = bench.spec("meta_backward", policy="skip", quorum=2, settings=settings)
    availability = np.ones((4, 3), bool)
    availability[1:3, 1] = False
    chosen = method("meta_backward", **SHORT["meta_backward"], **settings)
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
    assert [(s["round"], s["agent"], s["reason"]) for s in server.records.skipped] == [
        (2, "south", "not reachable"),
        (3, "south", "not reachable"),
    ]
