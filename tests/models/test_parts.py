"""Which weights are a model's head, for built-in nets and for modules of other frameworks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.models.parts import features, parts_of, with_prototypes
from fewjoule.tasks.samples import Samples


@pytest.mark.parametrize(
    ("model", "head"),
    [
        (fj.mlp([3, 4, 2]), 4 * 2 + 2),
        (fj.logistic(3, 2), 3 * 2 + 2),
        (fj.conv4([8, 8, 1], 3, filters=2), 2 * 3 + 3),
    ],
)
def test_the_head_of_a_built_in_net_is_its_last_layer(model, head):
    parts = parts_of(model, 1)
    assert (parts.body, parts.order) == (model.size - head, None)
    assert parts_of(model, 0).body == model.size
    assert parts_of(model, 99).body == 0


def layers(names, width=3, outputs=2):
    """A dense net over a dictionary, whose last name is its output layer."""

    def init(key):
        sides = [*[(width, width)] * (len(names) - 1), (width, outputs)]
        return {n: {"w": jax.random.normal(key, s), "b": jnp.zeros(s[1])} for n, s in zip(names, sides, strict=True)}

    def apply(weights, x):
        for name in names[:-1]:
            x = jnp.tanh(x @ weights[name]["w"] + weights[name]["b"])
        return x @ weights[names[-1]]["w"] + weights[names[-1]]["b"]

    return fj.Model(init, apply, loss="cross_entropy", input_shape=(width,))


def test_numbers_in_names_count_as_numbers_and_the_order_goes_back():
    model = layers([f"Dense_{i}" for i in range(11)])  # JAX sorts Dense_10 before Dense_2
    parts, vector = parts_of(model, 1), model.init(jax.random.key(0))
    first = parts.body_first(vector)
    head = model.tensors(vector)
    np.testing.assert_array_equal(first[parts.body :], np.concatenate([head["Dense_10.b"], head["Dense_10.w"].ravel()]))
    np.testing.assert_array_equal(parts.as_model(first), vector)


def test_a_layer_that_is_last_by_name_but_gives_no_outputs_is_refused():
    with pytest.raises(fj.InputError, match="define the output layer last"):
        parts_of(layers(["trunk", "head"]), 1)


@pytest.mark.slow
def test_a_federation_over_a_model_in_another_order_shares_the_body(agents):
    """Both orders of the same net end with the same weights."""
    settings = {"rounds": 2, "head_steps": 2, "body_steps": 2, "batch": 5, "start": "random"}
    rng = np.random.default_rng(0)
    data = fj.make_agents([(rng.normal(size=(6, 3)), rng.integers(0, 2, 6)) for _ in range(3)])
    runs = [fj.simulate(fj.fedrep(**settings), layers(names), data) for names in (["a", "b"], ["layer_2", "layer_10"])]
    np.testing.assert_allclose(runs[0].meta, runs[1].meta[parts_of(runs[1].model, 1).order], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(runs[0].uplink_bits, runs[1].uplink_bits)


def nearest_mean(f, y, query):
    """The classifier of the class means in NumPy: log-probabilities of -||f - c||²."""
    means = np.stack([f[y == k].mean(0) for k in range(2)])
    logits = -((query[:, None] - means) ** 2).sum(-1)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("model", [layers(["a", "b"]), fj.mlp([3, 4, 2], loss="cross_entropy")])
def test_prototypes_are_a_class_mean_classifier_on_the_features(model):
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(9, 3)).astype(np.float32), np.array([0, 1, 1, 0, 1, 0, 0, 1, 1], np.int32)
    vector = model.init(jax.random.key(3))
    support = Samples(jnp.asarray(x[:6]), jnp.asarray(y[:6]), jnp.asarray([1, 1, 1, 1, 1, 0.0]))
    made = with_prototypes(model, vector, support)
    f = np.asarray(features(model, vector, x), np.float64)
    due = nearest_mean(f[:5], y[:5], f[6:])
    np.testing.assert_allclose(jax.nn.log_softmax(model.apply(made, x[6:])), due, rtol=1e-4, atol=1e-5)


def test_a_class_without_samples_is_never_chosen():
    model = fj.mlp([3, 4, 3], loss="cross_entropy")
    support = Samples(jnp.ones((2, 3)), jnp.asarray([0, 2]), jnp.ones(2))
    made = with_prototypes(model, model.init(jax.random.key(3)), support)
    assert jax.nn.softmax(model.apply(made, jnp.ones((1, 3))))[0, 1] == 0


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (fj.mlp([3, 4, 2]), "class means are for classes"),
        (fj.Model(lambda key: {"w": jnp.ones((3, 2))}, lambda p, x: x @ p["w"], loss="cross_entropy"), "input_shape"),
        (
            fj.Model(
                lambda key: {"w": jnp.ones((3, 2)), "b": jnp.ones(2)},
                lambda p, x: jnp.tanh(x @ p["w"] + p["b"]),
                loss="cross_entropy",
                input_shape=(3,),
            ),
            "does not end with a dense layer",
        ),
    ],
)
def test_a_model_without_features_is_refused(model, told):
    with pytest.raises(fj.InputError, match=told):
        features(model, jnp.ones(model.size), jnp.ones((1, 3)))
