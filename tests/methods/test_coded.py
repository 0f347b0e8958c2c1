"""Methods through codecs: what is counted is what the bytes are, and nothing is lost that error feedback keeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fewjoule import InputError, codec, method, mlp, simulate, sinusoid, with_codec
from fewjoule.codecs import decode
from fewjoule.codecs.frame import frame_bytes
from fewjoule.methods.method import Broadcast
from fewjoule.randomness import agent_ids, key_for

MODEL = mlp([1, 8, 1])
D = MODEL.size
AGENTS = sinusoid.agents(samples=20, validation=5)
LOCAL = np.random.default_rng(0).standard_normal((3, D)).astype(np.float32)
COMMON = np.asarray(MODEL.init(key_for(0, "start")))
DATA = jax.tree.map(lambda a: a[0], AGENTS.data)


@pytest.mark.slow
def test_float32_through_a_codec_is_the_plain_method():
    settings = {"rounds": 3, "local_steps": 4}
    plain = simulate(method("fedavg", **settings), MODEL, AGENTS, LOCAL)
    coded = simulate(method("fedavg", codec="float32", down_codec="float32", **settings), MODEL, AGENTS, LOCAL)
    np.testing.assert_allclose(coded.meta, plain.meta, rtol=1e-4, atol=1e-5)
    assert (plain.uplink_bits == 32 * D).all()
    assert (coded.uplink_bits == 32 * D + 8 * frame_bytes(D)).all()
    assert (plain.downlink_bits == np.array([0, 1, 1, 1])[:, None] * 32 * D).all()
    assert (coded.downlink_bits == np.array([0, 1, 1, 1])[:, None] * (32 * D + 8 * frame_bytes(D))).all()


@pytest.mark.parametrize("spec", ["quantise:3", pytest.param("top-k:0.2:2", marks=pytest.mark.slow)])
def test_one_upload_is_the_mean_of_the_decoded_bytes(spec):
    run = simulate(method("average", codec=spec), MODEL, AGENTS, LOCAL)
    keys = [jax.random.fold_in(key_for(0, "codec"), i) for i in agent_ids(AGENTS.names)]
    messages = [codec(spec).encode(local - COMMON, key) for local, key in zip(LOCAL, keys, strict=True)]
    np.testing.assert_allclose(run.meta, COMMON + np.mean([decode(m, D) for m in messages], 0), rtol=1e-5, atol=1e-6)
    assert run.uplink_bits.tolist() == [[8 * len(m) for m in messages]]
    assert (run.downlink_bits == 0).all()


@pytest.mark.parametrize(
    "name", ["fedavg", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedsgd", "fedexp", "meta_backward"))]
)
def test_an_agents_packed_message_is_its_bytes(name):
    """What a device sends decodes, on the server, to the message that the simulator averages."""
    chosen = method(name, rounds=2, codec="top-k:0.3:2")
    state = chosen.agent_init(jnp.asarray(LOCAL[0]), jnp.asarray(LOCAL[0]) + 0.1)
    scalars = jnp.asarray(0.5) if name == "meta_backward" else ()
    broadcast = Broadcast(jnp.asarray(LOCAL[1]), scalars)
    _, message, info = jax.jit(chosen.agent, static_argnums=0)(MODEL.loss, state, broadcast, DATA, jax.random.key(3))
    vector = jax.tree.leaves(message)[0]
    sent = codec("top-k:0.3:2").to_bytes(info.packed[0], D)
    np.testing.assert_array_equal(decode(sent, D), vector)
    assert info.size_bytes == len(sent) + (4 if name == "fedexp" else 0)


@pytest.mark.slow
def test_error_feedback_loses_nothing_in_the_end():
    """Sum of what was sent + what is still kept = sum of what was to be sent."""
    plain = method("fedsgd", rounds=5, batch=None)
    coded = with_codec(plain, "top-k:0.1:1")
    agent = jax.jit(coded.agent, static_argnums=0)
    state, broadcast = coded.agent_init(jnp.asarray(LOCAL[0])), Broadcast(jnp.asarray(LOCAL[0]))
    _, wanted, _ = plain.agent(MODEL.loss, (), broadcast, DATA, jax.random.key(0))
    total = np.zeros(D)
    for _ in range(5):
        state, message, _ = agent(MODEL.loss, state, broadcast, DATA, jax.random.key(0))
        assert (np.asarray(message) != 0).sum() <= codec("top-k:0.1:1").kept(D)
        total += np.asarray(message)
    np.testing.assert_allclose(total + np.asarray(state[1]), 5 * np.asarray(wanted), rtol=1e-4, atol=1e-4)


def test_feedback_keeps_what_the_first_upload_lost_and_only_where_asked():
    local, uploaded = jnp.asarray(LOCAL[0]), jnp.asarray(LOCAL[0]) + 0.25
    for spec, feedback, kept in (
        ("top-k:0.1:1", True, True),
        ("top-k:0.1:1", False, False),
        ("quantise:3", True, False),
    ):
        _, lost = method("fedavg", codec=spec, feedback=feedback).agent_init(local, uploaded)
        if kept:
            np.testing.assert_allclose(lost, -0.25, atol=1e-6)
        else:
            assert lost == ()


@pytest.mark.slow
def test_the_way_down_reaches_the_agents_coded_and_the_meta_model_is_the_servers_own():
    """With one agent and a server that passes its model on, coded broadcasts approach it, and `meta` is it."""
    run = simulate(method("fedavg", rounds=4, local_steps=1, down_codec="top-k:0.5:4"), MODEL, AGENTS, LOCAL)
    plain = simulate(method("fedavg", rounds=4, local_steps=1), MODEL, AGENTS, LOCAL)
    assert (run.downlink_bits[1:] < plain.downlink_bits[1:]).all()
    assert (run.uplink_bits == plain.uplink_bits).all()
    last = simulate(method("average", down_codec="quantise:1"), MODEL, AGENTS, LOCAL)
    np.testing.assert_allclose(last.meta, LOCAL.mean(0), rtol=1e-6, atol=1e-7)


def test_a_random_start_costs_no_message():
    run = simulate(
        method("fedavg", rounds=2, start="random", codec="quantise:2", down_codec="quantise:4"), MODEL, AGENTS
    )
    assert (run.uplink_bits[0] == 0).all()
    assert (run.downlink_bits[:2] == 0).all()
    assert (run.downlink_bits[2] > 0).all()


def test_an_absent_agent_sends_nothing():
    here = np.array([[1, 0, 1], [0, 0, 1]], bool)
    run = simulate(method("fedavg", rounds=2, codec="top-k:0.2:2"), MODEL, AGENTS, LOCAL, availability=here)
    np.testing.assert_array_equal(run.uplink_bits[1:] > 0, here)
    np.testing.assert_array_equal(run.downlink_bits[1:] > 0, here)


def test_who_was_away_receives_the_whole_model_once():
    """A coded broadcast is a difference from the one before, which only those have who were there."""
    here = np.array([[1, 0, 1], [1, 1, 0], [1, 1, 1]], bool)
    coded = method("fedavg", rounds=3, local_steps=1, down_codec="quantise:3")
    run = simulate(coded, MODEL, AGENTS, LOCAL, availability=here)
    change, whole = 8 * coded.codecs[2].most_bytes(MODEL.size), 32 * MODEL.size
    wanted = [[change, 0, change], [change, whole, 0], [change, change, whole]]
    np.testing.assert_array_equal(run.downlink_bits[1:], wanted)
    all_there = simulate(coded, MODEL, AGENTS, LOCAL, availability=np.ones((3, 3), bool))
    np.testing.assert_array_equal(all_there.downlink_bits, simulate(coded, MODEL, AGENTS, LOCAL).downlink_bits)


def test_settings_build_the_method_again():
    for settings in (
        {"codec": "top-k:0.1:2"},
        {"codec": "quantise:3", "first_codec": "float16", "down_codec": "quantise:8"},
    ):
        first = method("fedavg", rounds=2, **settings)
        described = first.describe()
        assert method(described.pop("method"), **described) == first
        assert method("fedavg", rounds=2) != first
    with pytest.raises(InputError, match="give codec as well"):
        method("fedavg", feedback=True)
    with pytest.raises(InputError, match="feedback must be true or false"):
        method("fedavg", codec="quantise:3", feedback=1)
    with pytest.raises(InputError, match="did you mean 'codec'"):
        method("fedavg", codek="quantise:3")


@pytest.mark.slow
def test_limits_of_the_methods_for_few_rounds():
    """FedAvgM without momentum and FedExP among equal agents are FedAvg; Fisher weights all alike are the average."""
    settings = {"rounds": 3, "local_steps": 3, "batch": None}
    fedavg = simulate(method("fedavg", **settings), MODEL, AGENTS, LOCAL)
    momentum = simulate(method("fedavgm", momentum=0.0, **settings), MODEL, AGENTS, LOCAL)
    np.testing.assert_allclose(momentum.meta, fedavg.meta, rtol=1e-5, atol=1e-6)
    alone = AGENTS.select([1])
    exp = simulate(method("fedexp", **settings), MODEL, alone, LOCAL[1:2])
    avg = simulate(method("fedavg", **settings), MODEL, alone, LOCAL[1:2])
    np.testing.assert_allclose(exp.meta, avg.meta, rtol=1e-4, atol=1e-5)
    merged = simulate(method("fisher", floor=1e6), MODEL, AGENTS, LOCAL)
    np.testing.assert_allclose(merged.meta, LOCAL.mean(0), rtol=1e-3, atol=1e-4)
    assert (merged.uplink_bits == np.array([0, 2])[:, None] * 32 * D).all()
    with pytest.raises(InputError, match="train_locally"):
        simulate(method("fisher"), MODEL, AGENTS)


def test_fedexp_goes_further_where_agents_disagree():
    """n agents with orthogonal unit steps: the mean of squares is 1, the squared mean 1 / n, so eta = n / 2."""
    from fewjoule.methods.fedexp import extrapolation

    for count, eta in ((1, 1.0), (2, 1.0), (3, 1.5), (8, 4.0)):
        steps = jnp.eye(count)
        assert extrapolation(steps.mean(0), (steps**2).sum(-1).mean(), 0.0) == pytest.approx(eta)
    assert extrapolation(jnp.zeros(3), jnp.zeros(()), 0.0) == 1


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedexp", {"epsilon": -1.0}),
        ("fedavgm", {"momentum": 1.0}),
        ("fedavgm", {"server_learning_rate": 0}),
        ("fisher", {"floor": 0}),
    ],
)
def test_wrong_settings_are_refused(name, settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        method(name, **settings)
