"""Models as pairs of functions over flat vectors."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fewjoule as fj
from fewjoule.models.architecture import conv4_architecture, mlp_architecture
from fewjoule.models.weights import save_tensors
from fewjoule.tasks.samples import Samples


def samples(x, y, mask=None, allowed=None):
    mask = np.ones(len(x)) if mask is None else mask
    return Samples(jnp.asarray(x, jnp.float32), jnp.asarray(y), jnp.asarray(mask, jnp.float32), allowed)


def test_sizes_are_the_papers():
    assert fj.mlp([1, 40, 40, 1]).size == 1761
    assert fj.mlp([784, 8, 8, 10], loss="cross_entropy").size == 6442
    assert fj.logistic(784, 10).size == 7850


def test_mlp_is_dense_layers_with_relu_between():
    model = fj.mlp([2, 3, 1])
    vector, x = np.arange(model.size, dtype=np.float32) / 7 - 0.8, np.array([[0.5, -1.0], [2.0, 0.3]], np.float32)
    (w1, b1), (w2, b2) = model.unflatten(jnp.asarray(vector))
    np.testing.assert_array_equal(np.concatenate([np.ravel(a) for a in (w1, b1, w2, b2)]), vector)
    by_hand = np.maximum(x @ w1 + b1, 0) @ w2 + b2
    np.testing.assert_allclose(model.apply(jnp.asarray(vector), x), by_hand, rtol=1e-5)
    np.testing.assert_array_equal(model.flatten(model.unflatten(jnp.asarray(vector))), vector)
    assert model.tensor_names() == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert model.tensor_shapes() == [(2, 3), (3,), (3, 1), (1,)]


@pytest.mark.parametrize(
    ("init", "spread"), [("glorot", np.sqrt(2 / 400)), ("he", np.sqrt(2 / 200)), ("small_normal", 0.01)]
)
def test_starts_have_their_spread(init, spread):
    model = fj.mlp([200, 200, 1], init=init)
    weight, bias = model.unflatten(model.init(jax.random.key(0)))[0]
    np.testing.assert_allclose(np.std(weight), spread, rtol=0.02)
    assert not np.any(bias)
    if init == "glorot":
        assert np.abs(weight).max() <= np.sqrt(6 / 400)


def test_equal_settings_are_one_model():
    assert fj.mlp([1, 4, 1]) is fj.mlp((1, 4, 1))
    assert fj.model_from_spec("conv4:28x28x1-5-8", loss="cross_entropy") is fj.conv4([28, 28, 1], 5, filters=8)


def test_losses_match_optax_and_leave_padding_out():
    rng = np.random.default_rng(0)
    model = fj.logistic(4, 3)
    vector = model.init(jax.random.key(1))
    x, y = rng.normal(size=(6, 4)), rng.integers(0, 3, 6).astype(np.int32)
    mask = np.array([1, 1, 1, 1, 0, 0])
    logits = model.apply(vector, jnp.asarray(x[:4], jnp.float32))
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, y[:4]).mean()
    np.testing.assert_allclose(model.loss(vector, samples(x, y, mask)), expected, rtol=1e-6)
    right = (np.asarray(logits).argmax(-1) == y[:4]).mean()
    np.testing.assert_allclose(model.accuracy(vector, samples(x, y, mask)), right)
    net = fj.mlp([4, 2])
    start = net.init(jax.random.key(0))
    targets = rng.normal(size=(6, 2)).astype(np.float32)
    error = np.asarray(net.apply(start, jnp.asarray(x[:4], jnp.float32))) - targets[:4]
    np.testing.assert_allclose(net.loss(start, samples(x, targets, mask)), (error**2).mean(), rtol=1e-5)
    assert np.isnan(net.accuracy(start, samples(x, targets)))


def test_allowed_classes_are_a_softmax_over_those_alone():
    model = fj.logistic(4, 5)
    vector = model.init(jax.random.key(1))
    x = np.random.default_rng(1).normal(size=(8, 4))
    y = np.array([1, 3, 1, 3, 3, 1, 1, 3], np.int32)
    allowed = jnp.asarray([False, True, False, True, False])
    logits = model.apply(vector, jnp.asarray(x, jnp.float32))[:, jnp.asarray([1, 3])]
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, (y == 3).astype(int)).mean()
    np.testing.assert_allclose(model.loss(vector, samples(x, y, allowed=allowed)), expected, rtol=1e-6)
    right = (np.asarray(logits).argmax(-1) == (y == 3)).mean()
    np.testing.assert_allclose(model.accuracy(vector, samples(x, y, allowed=allowed)), right)


def test_conv4_gives_each_sample_its_own_outputs():
    """Neither padding nor other samples in the batch change a sample's outputs."""
    model = fj.conv4([8, 8, 1], 3, filters=4)
    vector = model.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (5, 8, 8, 1))
    apply = jax.jit(model.apply)
    together = apply(vector, x)
    mixed = apply(vector, x.at[2:].set(0.0))
    np.testing.assert_allclose(mixed[:2], together[:2], rtol=1e-5, atol=1e-6)
    assert together.shape == (5, 3)
    assert np.ptp(np.asarray(together), 0).min() > 0


@pytest.mark.slow
def test_conv4_goes_over_many_images_as_over_each_alone():
    model = fj.conv4([8, 8, 1], 3, filters=4)
    vector = model.init(jax.random.key(0))
    x = np.asarray(jax.random.normal(jax.random.key(1), (16, 8, 8, 1)))  # two groups
    y = (np.arange(16) % 3).astype(np.int32)
    alone = jax.jit(lambda v, x, y: jax.grad(model.loss)(v, samples(x, y)))
    each = np.mean([alone(vector, x[i : i + 1], y[i : i + 1]) for i in range(16)], 0)
    np.testing.assert_allclose(alone(vector, x, y), each, rtol=1e-4, atol=1e-6)


def test_conv4_has_the_size_of_its_layers():
    """Four 3 x 3 convolutions with a gain and a bias each, and one dense layer; 28 pools to 1."""
    assert fj.conv4([28, 28, 1], 5).size == (9 * 64 + 3 * 64) + 3 * (9 * 64 * 64 + 3 * 64) + (64 * 5 + 5)


def test_any_pair_of_functions_is_a_model(agents):
    """A user's own model, with named weights, through training, a method and adaptation."""

    def init(key):
        return {"slope": jax.random.normal(key, (1, 1)), "offset": jnp.zeros(1)}

    model = fj.Model(init, lambda w, x: x @ w["slope"] + w["offset"])
    assert model.size == 2
    assert model.tensor_names() == ["offset", "slope"]
    local = fj.train_locally(model, agents, learning_rate=0.05, batch=None, max_steps=300, check_every=300)
    for i in range(3):
        n = agents.sizes[i]
        x, y = np.asarray(agents.data.train.x[i, :n, 0]), np.asarray(agents.data.train.y[i, :n, 0])
        slope, offset = np.polyfit(x, y, 1)  # least squares, the minimum that descent must reach
        np.testing.assert_allclose(local.models[i], [offset, slope], atol=2e-3)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: fj.mlp([1]), "two or more whole numbers"),
        (lambda: fj.mlp([1, 0, 1]), "at least 1"),
        (lambda: fj.mlp([1, 2], init="glorott"), "did you mean 'glorot'"),
        (lambda: fj.mlp([1, 2], loss="msee"), "did you mean 'mse'"),
        (lambda: fj.conv4([28, 28], 5), "height, width, channels"),
        (lambda: fj.conv4([28, 28, 1], 0), "at least 1"),
        (lambda: fj.model_from_spec("mpl:1-2"), "did you mean 'mlp'"),
        (lambda: fj.model_from_spec("mlp:1-x"), "cannot be read"),
        (lambda: fj.model_from_spec("mlp:28x28x1-5"), "cannot be read"),
        (lambda: fj.model_from_spec("conv4:28x28x1-5-64-2"), "cannot be read"),
        (lambda: fj.conv4([28, 28, 1], 2.5), "at least 1"),
        (lambda: fj.Model(lambda k: jnp.zeros(3, jnp.int32), lambda w, x: x), "floating point"),
    ],
)
def test_wrong_models_are_refused(make, match):
    with pytest.raises(fj.InputError, match=match):
        make()


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        ("mlp:" + "-".join(["1"] * 20_001), "model 'mlp:1-1-1.*' has 40005 characters"),
        ("mlp:" + "-".join(["1"] * 102), "at most 100 layers, got 101"),
        ("mlp:1000000000000-1000000000000", "at most 268435456 are built"),
        ("mlp:268435456-1", "mlp:268435456-1 has 268435457 weights"),
        ("conv4:28x28x1-5-1000000000000", "at most 268435456"),
        ("conv4:1000000000x1000000000x3-5-1", "at most 268435456"),
        ("mlp:" + "9" * 1900, "sizes must be two or more"),
        ("x" * 10**6, "1000000 characters"),
    ],
    ids=lambda text: text[:40],
)
def test_absurd_specs_are_refused_in_one_line_before_memory_is_taken(spec, match, tmp_path):
    with pytest.raises(fj.InputError, match=match) as caught:
        fj.model_from_spec(spec)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 5000
    save_tensors(tmp_path / "m", {"0.weight": np.zeros((1, 1))}, {"fewjoule": json.dumps({"model": spec})})
    with pytest.raises(fj.InputError, match=match):
        fj.read_model(tmp_path / "m")


def test_the_largest_models_are_described_without_taking_memory():
    assert mlp_architecture([2**28 - 1, 1]).layers[0].shape == (2**28 - 1, 1)
    assert len(mlp_architecture([1] * 101).layers) == 100


@pytest.mark.parametrize("sides", [(1, 1), (2, 3), (15, 16), (17, 31), (32, 33), (84, 100)])
def test_conv4_halves_each_side_until_it_is_one(sides):
    net = conv4_architecture([*sides, 3], 2)
    height, width = sides
    for pool in net.pools:
        assert pool == (2 if height > 1 else 1, 2 if width > 1 else 1)
        height, width = height // pool[0], width // pool[1]
    assert net.layers[-1].sides == (height, width)


def test_trial_29_a_function_for_a_loss_is_taken_and_anything_else_is_one_clear_line():
    own = fj.Model(lambda key: jnp.zeros(1), lambda w, x: x + w, loss=lambda outputs, y: 3 * (outputs - y) ** 2)
    agents = fj.make_agents([(np.ones((2, 1)), np.zeros((2, 1)))])
    samples = jax.tree.map(lambda a: jnp.asarray(a)[0], agents.data.train)
    assert float(own.loss(jnp.zeros(1), samples)) == 3.0
    with pytest.raises(fj.InputError, match=r"loss must be one of mse, cross_entropy, or a function of .*, got None"):
        fj.Model(lambda key: jnp.zeros(1), lambda w, x: x, loss=None)
    with pytest.raises(fj.InputError, match="unknown loss 'mae'"):
        fj.Model(lambda key: jnp.zeros(1), lambda w, x: x, loss="mae")
