"""answers: closed forms where the models are linear, tasks that stay where the answers are, and its messages."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.energy.ledger import TRAINING, WITH_SERVER
from fewjoule.methods.answers import clipped, mixed, own_classes, projected, smooth
from fewjoule.randomness import key_for
from fewjoule.simulation.work import agent_flops, data_of, server_flops
from fewjoule.tasks.questions import Questions, questions_from_file, read_questions
from fewjoule.tasks.samples import Samples

LINEAR = fj.mlp([1, 1])
LINES = jnp.asarray([[2.0, 1.0], [-1.0, 0.5], [0.5, -3.0]])  # slope and intercept, as the model's flat vector has them


def lines(count: int) -> fj.Agents:
    x = np.linspace(-1, 1, 12)
    return fj.make_agents([(x, float(w) * x + float(b)) for w, b in LINES[:count]])


def closed_form(run: fj.Run, vectors: jnp.ndarray, bits: int) -> np.ndarray:
    """Least squares to the mean of the decoded answers, by NumPy."""
    x = np.linspace(-1, 1, 9)
    told = [fj.codec(f"uniform:{bits}").encode(np.float32(w * x + b)) for w, b in np.asarray(vectors, np.float64)]
    decoded = np.mean([fj.CODECS["uniform"](bits).decode(message, 9) for message in told], 0)
    return np.linalg.lstsq(np.stack([x, np.ones(9)], 1), decoded, rcond=None)[0]


@pytest.mark.parametrize("count", [1, 3])
def test_a_server_recovers_the_closed_form_of_linear_models(count: int) -> None:
    """Mixtures lie evenly around the agents' mean, on average two thirds as far from its level: Reptile ends at their
    least-squares fit, which has two thirds of the mean slope and all of the mean intercept."""
    asked = {"number": 9, "bits": 8, "between": None}
    method = fj.answers(**asked, learning_rate=0.3, episodes=3000, steps=20)
    run = fj.simulate(method, LINEAR, lines(count), LINES[:count], seed=1)
    slope, intercept = closed_form(run, LINES[:count], 8)
    np.testing.assert_allclose(run.meta, [slope * 2 / 3, intercept], atol=0.1)  # what is left of 3000 random episodes
    assert np.abs([slope, intercept] - np.asarray(LINES[:count]).mean(0)).max() < 0.02


def test_mixtures_stay_in_the_agents_range_and_absent_agents_count_nothing() -> None:
    told = 20 + jax.random.normal(jax.random.key(0), (4, 6, 2))
    present = jnp.asarray([1.0, 1.0, 0.0, 1.0])
    draw = jax.jit(jax.vmap(mixed(told, present)))
    y = np.asarray(draw(jax.random.split(jax.random.key(1), 500)))
    there = np.asarray(told)[[0, 1, 3]]
    assert (y >= there.min((0, 1)) - 1e-4).all()
    assert (y <= there.max((0, 1)) + 1e-4).all()
    assert (y.std(0) > 0.05).all()
    level = there.mean((0, 1))
    np.testing.assert_allclose(y.mean(0), level + (there.mean(0) - level) * 2 / 3, atol=0.2)
    other = told.at[2].set(1e6)
    same = np.asarray(jax.vmap(mixed(other, present))(jax.random.split(jax.random.key(1), 500)))
    np.testing.assert_allclose(same, y, rtol=1e-5)


def test_mixtures_vary_in_the_agents_directions_and_more() -> None:
    """Far from the ends of their range: the agents' mean, and N - 1 times their covariance, shrunk by a share."""
    told = 0.1 * jax.random.normal(jax.random.key(0), (5, 3, 1)) + jnp.asarray([-4.0, 4.0, 0.0])[:, None]
    told = jnp.concatenate([told, jnp.full((5, 1, 1), 50.0), jnp.full((5, 1, 1), -50.0)], 1)
    y = np.asarray(jax.vmap(mixed(told, jnp.ones(5)))(jax.random.split(jax.random.key(1), 40_000)))[..., 0]
    each = np.asarray(told)[..., 0]
    level = each.mean()
    shrunk = (y[:, 3:4] - level) / (50 - level)  # u, since all agents say the same there
    np.testing.assert_allclose(shrunk.mean(), 2 / 3, atol=0.02)
    whole = (level + (y[:, :3] - level) / shrunk)[shrunk[:, 0] > 0.05]
    np.testing.assert_allclose(whole.mean(0), each[:, :3].mean(0), atol=0.01)
    np.testing.assert_allclose(np.cov(whole.T), 4 * np.cov(each[:, :3].T), atol=4e-3)


def test_new_classes_are_probabilities_of_those_present() -> None:
    told = 5 * jax.random.normal(jax.random.key(0), (3, 40, 4))
    present = jnp.asarray([1.0, 0.0, 1.0])
    keys = jax.random.split(jax.random.key(1), 50)
    y = np.asarray(jax.vmap(projected(told, present, 6))(keys))
    np.testing.assert_allclose(y.sum(-1), 1, rtol=1e-5)
    assert (y.mean((0, 1)) > 0.08).all()  # no class is rare
    same = jax.vmap(projected(told.at[1].set(9.0), present, 6))(keys)
    np.testing.assert_allclose(same, y, rtol=1e-5)


def test_invented_functions_are_smooth_and_of_the_scale() -> None:
    x = jnp.linspace(-5, 5, 101)[:, None]
    y = np.asarray(jax.vmap(smooth(x, 1, 10.0))(jax.random.split(jax.random.key(0), 200)))[..., 0]
    assert np.abs(y).max() <= 10.0
    assert np.abs(y).max(1).mean() == pytest.approx(5, abs=1)
    assert np.abs(np.diff(y)).max() < 0.35 * np.abs(y).max()  # over a hundredth of the range


def test_a_classifier_sends_the_logits_of_its_own_classes_without_the_largest_few() -> None:
    logits = jax.random.normal(jax.random.key(0), (50, 6)).at[0, 5].set(1000.0)
    samples = Samples(jnp.zeros((5, 1)), jnp.asarray([5, 2, 2, 5, 0]), jnp.asarray([1.0, 1.0, 1.0, 1.0, 0.0]))
    np.testing.assert_array_equal(own_classes(logits, samples, 2), logits[:, jnp.asarray([2, 5])])
    sent = np.asarray(clipped(logits))
    assert np.abs(sent).max() < 10
    unclipped = np.asarray(logits - logits.mean(-1, keepdims=True))
    np.testing.assert_allclose(sent[5:20], unclipped[5:20], rtol=1e-5)  # the shape of all others is kept


@pytest.mark.slow
def test_the_message_is_as_short_as_it_says_for_any_model() -> None:
    """20 answers of 6 bits: 25 bytes with frame, range and CRC (26 far from 0), for 2 weights and for 10 401."""
    agents = fj.sinusoid.agents(samples=10, validation=0)
    for model, middle in ((LINEAR, 0.0), (fj.mlp([1, 100, 100, 1]), 50.0)):
        local = jnp.stack([model.init(key_for(i, "local")) for i in range(3)]).at[:, -1].set(middle)
        run = fj.simulate(fj.answers(questions="range:-5:5", episodes=1, steps=1), model, agents, local)
        x = np.linspace(-5, 5, 20, dtype=np.float32)[:, None]
        sent = [len(fj.codec("uniform:6").encode(np.asarray(model.apply(v, x)).ravel())) for v in local]
        assert run.uplink_bits.tolist() == [[0, 0, 0], [8 * length for length in sent]]
        assert set(sent) == ({26} if middle else {25})
        assert run.downlink_bits.sum() == 0


@pytest.mark.slow
def test_models_of_any_architecture_take_part_and_equal_ones_give_the_same() -> None:
    agents, model = lines(3), fj.mlp([1, 5, 1])
    method = fj.answers(number=5, episodes=2, steps=2)
    vectors = jnp.stack([model.init(key_for(i, "local")) for i in range(3)])
    alike = fj.simulate(method, model, agents, vectors, seed=1)
    one_by_one = fj.simulate(method, model, agents, [fj.OwnModel(model, v) for v in vectors], seed=1)
    np.testing.assert_allclose(one_by_one.meta, alike.meta, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(one_by_one.uplink_bits, alike.uplink_bits)
    nets = (LINEAR, fj.mlp([1, 3, 3, 1]), model)
    own = [fj.OwnModel(net, net.init(key_for(i, "local"))) for i, net in enumerate(nets)]
    assert np.isfinite(fj.simulate(method, model, agents, own).meta).all()
    with pytest.raises(fj.InputError, match="needs models of one architecture"):
        fj.simulate(fj.average(), model, agents, own)
    wide = fj.mlp([1, 2])
    with pytest.raises(fj.InputError, match="has 2 outputs"):
        fj.simulate(method, model, agents, [*own[:2], fj.OwnModel(wide, jnp.zeros(wide.size))])


def test_the_servers_work_is_a_phase_of_its_own() -> None:
    agents = lines(3)
    asked = {"number": 5, "steps": 3}
    run = fj.simulate(fj.answers(**asked, episodes=7), LINEAR, agents, LINES)
    ledger = run.energy(server="apple-m4")
    (served,) = ledger.select(phase="server")
    assert served.agent == "server"
    assert served.flops == server_flops(run.method, LINEAR, 3)
    assert served.joules == pytest.approx(served.flops * 39.6 / 299.93e9)
    without, whole = (ledger.total(mix_kinds=True, phase=phases) for phases in (TRAINING, WITH_SERVER))
    assert whole == pytest.approx(without + served.joules)
    longer, longest = (server_flops(fj.answers(**asked, episodes=n), LINEAR, 3) for n in (14, 21))
    assert longest - longer == pytest.approx(longer - served.flops)  # the same work in every episode
    plain = server_flops(fj.answers(**asked, episodes=7, between=None), LINEAR, 3)
    assert served.flops - plain > 16 * 5 * 6 * 11 / 6  # filling in between is charged too: 16 factors of 5 x 5 alone
    assert 0 < agent_flops(run.method, LINEAR, data_of(agents)) < 1000


def test_questions_are_even_seeded_and_of_the_models_shape(tmp_path) -> None:
    key, other = jax.random.key(0), jax.random.key(1)
    grid = read_questions("range:-5:5", 11)
    np.testing.assert_allclose(grid.draw(key, (1,))[:, 0], np.linspace(-5, 5, 11), rtol=1e-6)
    box = np.asarray(grid.draw(key, (3,)))
    assert box.shape == (11, 3)
    for column in box.T:  # one in every eleventh of the range
        np.testing.assert_array_equal(np.sort(((column + 5) / 10 * 11).astype(int)), np.arange(11))
    noise = read_questions("noise:8x9", 4)
    images = np.asarray(noise.draw(key, (72,)))
    np.testing.assert_array_equal(images, noise.draw(key, (8, 9, 1)).reshape(4, 72))
    assert (images >= 0).all()
    assert (images <= 1).all()
    assert np.abs(images - np.asarray(noise.draw(other, (72,)))).max() > 0.1
    strokes = np.asarray(read_questions("strokes:28x28", 30).draw(key, (784,))).reshape(30, 28, 28)
    assert strokes[:, 0].max() < 0.1  # the edge is dark
    assert 0.08 < strokes.mean() < 0.2
    np.savez(tmp_path / "mine.npz", x=np.arange(6.0).reshape(3, 2))
    method = fj.method("answers", questions=str(tmp_path / "mine.npz"))
    described = method.describe()
    assert fj.method(described.pop("method"), **described) is method
    np.testing.assert_array_equal(
        Questions(3, given=questions_from_file(tmp_path / "mine.npz")).draw(key, (2,)), np.arange(6.0).reshape(3, 2)
    )


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"questions": "range:5:-5"}, "range:LOW:HIGH"), ({"questions": "noise:28"}, "noise:28x28"),
        ({"questions": "noise:0x3"}, "noise"), ({"questions": "nowhere.csv"}, "does not exist"),
        ({"questions": [[1.0], [1.0, 2.0]]}, "ragged"), ({"questions": []}, "at least one"),
        ({"questions": [[float("nan")]]}, "finite"), ({"bits": 9}, "from 1 to 8"), ({"number": 0}, "at least 1"),
        ({"codec": "quantise:3"}, "set bits"), ({"questions": [[0.0] * 60_000]}, "50000 numbers"),
    ],
)  # fmt: skip
def test_wrong_settings_are_explained(settings, match) -> None:
    with pytest.raises(fj.InputError, match=match):
        fj.method("answers", **settings)


def test_questions_that_the_model_does_not_take_are_refused() -> None:
    with pytest.raises(fj.InputError, match="questions have 784 numbers each, but the model takes 1"):
        fj.simulate(fj.answers(questions="noise:28x28"), LINEAR, lines(3), LINES)
