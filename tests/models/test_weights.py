"""Weights on disk: round trips, the layouts of other packages, and every kind of file that must be refused."""

import os
import pickle
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fewjoule.errors import InputError
from fewjoule.models.layouts import to_layout
from fewjoule.models.model import Model
from fewjoule.models.nets import conv4, mlp, model_from_spec
from fewjoule.models.weights import CARD_KEY, read_header, read_model, save_tensors, write_model

FIXTURES = Path(__file__).parent / "fixtures"
RNG = np.random.default_rng(0)
MODELS = [
    mlp([3, 5, 4, 2]),
    mlp([4, 3], loss="cross_entropy"),
    conv4([12, 9, 2], 3, filters=4),
    conv4([28, 28, 1], 5, filters=3),
]


def some_weights(model: Model) -> np.ndarray:
    return RNG.normal(size=model.size).astype(np.float32)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.spec)
def test_what_is_written_is_read_back(model: Model, tmp_path: Path) -> None:
    vector = some_weights(model)
    write_model(
        tmp_path / "m.safetensors",
        model,
        vector,
        {"method": {"method": "average"}, "energy": [{"joules": np.float32(2)}]},
    )
    loaded = read_model(tmp_path / "m.safetensors")
    assert loaded.model is model
    np.testing.assert_array_equal(loaded.vector, vector)
    assert loaded.card["method"] == {"method": "average"}
    assert loaded.card["energy"] == [{"joules": 2.0}]
    assert set(loaded.card["versions"]) == {"fewjoule", "jax", "numpy", "python"}


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    vector = some_weights(MODELS[0])
    for name in "ab":
        write_model(tmp_path / name, MODELS[0], vector, {"z": 1, "a": [1, 2]})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_users_own_model_is_read_with_its_functions(tmp_path: Path) -> None:
    own = Model(lambda key: {"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}, lambda w, x: x @ w["w"] + w["b"])
    write_model(tmp_path / "m", own, np.arange(9.0))
    np.testing.assert_array_equal(read_model(tmp_path / "m", model=own).vector, np.arange(9.0))
    with pytest.raises(InputError, match=r"give them as model=Model"):
        read_model(tmp_path / "m")


@pytest.mark.parametrize("layout", ["pytorch", "flax"])
@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.spec)
def test_another_layout_is_recognised(model: Model, layout: str, tmp_path: Path) -> None:
    vector = some_weights(model)
    save_file(
        {k: np.ascontiguousarray(v) for k, v in to_layout(model, model.tensors(vector), layout).items()},
        tmp_path / "m",
    )
    loaded = read_model(tmp_path / "m", model=model)
    assert loaded.layout == layout
    np.testing.assert_array_equal(loaded.vector, vector)
    if model.spec.startswith("mlp"):
        assert read_model(tmp_path / "m", loss=model.loss_name).model is model


@pytest.mark.parametrize("package", ["torch", "flax"])
@pytest.mark.parametrize("spec", ["mlp:4-6-6-3", "conv4:34x18x2-3-4"])
def test_weights_of_another_package_give_the_outputs_it_gave(package: str, spec: str) -> None:
    name = f"{package}_{spec.partition(':')[0]}"
    expected = np.load(FIXTURES / "outputs.npz")
    loaded = read_model(FIXTURES / f"{name}.safetensors", model=model_from_spec(spec))
    assert loaded.layout == {"torch": "pytorch", "flax": "flax"}[package]
    x = expected["images" if "conv4" in spec else "x"]
    np.testing.assert_allclose(loaded.model.apply(loaded.vector, jnp.asarray(x)), expected[name], atol=1e-5)


def test_pytorch_mlp_gives_the_outputs_of_its_formula(tmp_path: Path) -> None:
    # the fixture was saved as torch does: Linear weights [out, in], ReLU modules take the odd numbers of the Sequential
    net = {
        f"{2 * i}.weight": RNG.normal(size=(b, a)).astype(np.float32)
        for i, (a, b) in enumerate([(3, 7), (7, 5), (5, 2)])
    }
    net |= {f"{2 * i}.bias": RNG.normal(size=b).astype(np.float32) for i, b in enumerate([7, 5, 2])}
    save_file(net, tmp_path / "torch.safetensors", metadata={"format": "pt"})
    x = RNG.normal(size=(6, 3)).astype(np.float32)
    h = x
    for i in (0, 2):
        h = np.maximum(h @ net[f"{i}.weight"].T + net[f"{i}.bias"], 0)
    expected = h @ net["4.weight"].T + net["4.bias"]
    loaded = read_model(tmp_path / "torch.safetensors", loss="mse")
    np.testing.assert_allclose(loaded.model.apply(loaded.vector, jnp.asarray(x)), expected, atol=1e-5)


def test_layers_with_names_are_put_in_the_one_order_that_fits(tmp_path: Path) -> None:
    tensors = {
        "hidden.kernel": np.zeros((3, 8)),
        "a_output.kernel": np.ones((8, 2)),
        "hidden.bias": np.zeros(8),
        "a_output.bias": np.ones(2),
    }
    save_file(tensors, tmp_path / "m")
    assert read_model(tmp_path / "m", loss="mse").model.spec == "mlp:3-8-2"
    square = {"a.kernel": np.zeros((3, 3)), "b.kernel": np.ones((3, 3)), "a.bias": np.zeros(3), "b.bias": np.ones(3)}
    save_file(square, tmp_path / "n")
    with pytest.raises(InputError, match="order of the layers a, b is not clear"):
        read_model(tmp_path / "n", loss="mse")


def test_norms_without_numbers_have_no_clear_order(tmp_path: Path) -> None:
    model = MODELS[2]
    tensors = to_layout(model, model.tensors(some_weights(model)), "pytorch")
    for number, name in (("1", "one"), ("5", "two"), ("9", "three"), ("13", "four")):
        tensors |= {f"{name}.{leaf}": tensors.pop(f"{number}.{leaf}") for leaf in ("weight", "bias")}
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, tmp_path / "m")
    with pytest.raises(InputError, match=r"order of the layers .*three.* is not clear; number their names"):
        read_model(tmp_path / "m", model=model)


def test_a_square_net_needs_its_layout_said(tmp_path: Path) -> None:
    weight = RNG.normal(size=(3, 3)).astype(np.float32)
    save_file({"weight": weight, "bias": np.zeros(3, np.float32)}, tmp_path / "m")
    with pytest.raises(InputError, match="may be fewjoule or pytorch; say which by layout"):
        read_model(tmp_path / "m", loss="mse")
    loaded = read_model(tmp_path / "m", loss="mse", layout="pytorch")
    np.testing.assert_array_equal(loaded.vector[:9].reshape(3, 3), weight.T)
    save_file({"weight": weight, "bias": np.zeros(3, np.float32)}, tmp_path / "pt", metadata={"format": "pt"})
    assert read_model(tmp_path / "pt", loss="mse").layout == "pytorch"


def foreign(tmp_path: Path, **tensors: np.ndarray) -> Path:
    path = tmp_path / "m.safetensors"
    save_file({name.replace("_", "."): tensor for name, tensor in tensors.items()}, path)
    return path


F = np.float32
REFUSED = [
    (
        {"0_weight": np.zeros((4, 3), F), "0_bias": np.zeros(4, F), "0_running": np.zeros(4, F)},
        "unknown tensor name '0.running'",
    ),
    ({"0_weight": np.zeros((4, 3), F)}, "must have one weight and one bias"),
    ({"0_weight": np.zeros((4, 3), F), "0_bias": np.zeros(5, F)}, "does not fit its bias of 5"),
    ({"0_weight": np.zeros((4, 3), np.int64), "0_bias": np.zeros(4, F)}, "must be floating point"),
    ({"0_weight": np.full((4, 3), np.nan, F), "0_bias": np.zeros(4, F)}, "must be finite"),
    (
        {
            "0_weight": np.zeros((4, 3), F),
            "0_bias": np.zeros(4, F),
            "1_weight": np.zeros((2, 9), F),
            "1_bias": np.zeros(2, F),
        },
        "takes 9 inputs",
    ),
    (
        {
            "0_weight": np.zeros((4, 3), F),
            "0_bias": np.zeros(4, F),
            "1_kernel": np.zeros((4, 2), F),
            "1_bias": np.zeros(2, F),
        },
        "mixes layouts",
    ),
    (
        {
            "0_weight": np.zeros((4, 3, 3, 3), F),
            "0_bias": np.zeros(4, F),
            "1_weight": np.zeros((2, 9), F),
            "1_bias": np.zeros(2, F),
        },
        "image size",
    ),
]


@pytest.mark.parametrize(("tensors", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_tensors_that_cannot_be_placed_are_refused(
    tensors: dict[str, np.ndarray], message: str, tmp_path: Path
) -> None:
    path = foreign(tmp_path, **tensors)
    with pytest.raises(InputError, match=message) as caught:
        read_model(path, loss="mse")
    assert str(path) in str(caught.value)


def test_batch_normalisation_is_refused_with_its_cure(tmp_path: Path) -> None:
    save_file({"1.running_mean": np.zeros(4, F)}, tmp_path / "m")
    with pytest.raises(InputError, match="GroupNorm"):
        read_model(tmp_path / "m", loss="mse")


def test_weights_that_do_not_fit_the_model_are_refused(tmp_path: Path) -> None:
    path = foreign(tmp_path, **{"0_weight": np.zeros((4, 3), F), "0_bias": np.zeros(4, F)})
    with pytest.raises(InputError, match=r"has shape \(4, 3\), the model needs \(4, 5\)"):
        read_model(path, model=mlp([5, 4]))
    with pytest.raises(InputError, match="mlp:3-4-4 has 2 dense layers, the file 1 dense"):
        read_model(path, model=mlp([3, 4, 4]))
    write_model(tmp_path / "own", mlp([3, 4]), np.zeros(16))
    with pytest.raises(InputError, match="the model is mlp:3-5, the file holds mlp:3-4"):
        read_model(tmp_path / "own", model=mlp([3, 5]))
    with pytest.raises(InputError, match="trained with mse"):
        read_model(tmp_path / "own", loss="cross_entropy")
    with pytest.raises(InputError, match=r"give loss \(--loss\): mse"):
        read_model(path)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    write_model(whole, MODELS[0], some_weights(MODELS[0]))
    content = whole.read_bytes()
    bad = tmp_path / "bad.safetensors"
    for length in (0, 5, 8, 9, 50, len(content) - 1):
        bad.write_bytes(content[:length])
        with pytest.raises(InputError, match="truncated") as caught:
            read_model(bad)
        assert str(bad) in str(caught.value)
    with pytest.raises(InputError, match="does not exist"):
        read_model(tmp_path / "none")


def test_pickles_are_named_and_never_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "sprung"),)

    bad = tmp_path / "bad.safetensors"
    for protocol in (2, 4, 5):
        bad.write_bytes(pickle.dumps(Trap(), protocol))
        with pytest.raises(InputError, match=r"pickle .* never loaded"):
            read_model(bad)
    np.savez(tmp_path / "zip.npz", np.zeros(3))  # torch.save writes zip archives too
    with pytest.raises(InputError, match="zip archive"):
        read_model(tmp_path / "zip.npz")
    assert not (tmp_path / "sprung").exists()


def test_a_huge_header_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    bad = tmp_path / "bad.safetensors"
    with bad.open("wb") as file:  # sparse: 3 GB on paper, nothing on disk
        file.write((3 * 10**9).to_bytes(8, "little") + b"{")
        file.truncate(3 * 10**9 + 8)
    with pytest.raises(InputError, match="header claims 3000000000 bytes"):
        read_header(bad)


def test_a_card_that_is_not_json_is_refused(tmp_path: Path) -> None:
    save_tensors(tmp_path / "m", {"0.weight": np.zeros((2, 1), F)}, {"fewjoule": "{"})
    with pytest.raises(InputError, match="card is not readable"):
        read_model(tmp_path / "m")


def test_existing_files_stay_and_nothing_partial_is_left(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_text("mine")
    with pytest.raises(InputError, match="exists and is not overwritten"):
        write_model(path, MODELS[0], some_weights(MODELS[0]))
    assert path.read_text() == "mine"
    write_model(path, MODELS[0], some_weights(MODELS[0]), force=True)
    assert read_model(path).model is MODELS[0]
    with pytest.raises(InputError, match="one vector of"):
        write_model(tmp_path / "n", MODELS[0], np.zeros(3))
    with pytest.raises(TypeError):
        write_model(tmp_path / "n", MODELS[0], some_weights(MODELS[0]), {"x": object()})
    with pytest.raises(InputError, match="does not exist; create it"):
        write_model(tmp_path / "no" / "n", MODELS[0], some_weights(MODELS[0]))
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def test_half_precision_is_widened(tmp_path: Path) -> None:
    half = jnp.asarray(RNG.normal(size=(4, 3)), jnp.bfloat16)
    save_file({"0.weight": np.asarray(half), "0.bias": np.zeros(4, np.float16)}, tmp_path / "m")
    vector = read_model(tmp_path / "m", loss="mse").vector
    assert vector.dtype == jnp.float32
    np.testing.assert_array_equal(vector[:12].reshape(3, 4), half.astype(jnp.float32).T)


def test_the_header_tells_the_card_without_the_weights(tmp_path: Path) -> None:
    write_model(tmp_path / "m", MODELS[0], jnp.zeros(MODELS[0].size), {"classes": [0, 1]})
    card = read_header(tmp_path / "m").card
    assert card is not None
    assert card["classes"] == [0, 1]
    assert set(read_header(tmp_path / "m").kinds.values()) == {"F32"}


def test_trial_20_a_card_nested_without_end_is_one_line(tmp_path: Path) -> None:
    for card in ("[" * 200_000 + "]" * 200_000, '{"a":' * 200_000 + "1" + "}" * 200_000):
        save_tensors(tmp_path / "m", {"0.weight": np.zeros((2, 1), F)}, {"fewjoule": card}, force=True)
        with pytest.raises(InputError, match=r"m: its model card is not readable") as caught:
            read_header(tmp_path / "m")
        assert "\n" not in str(caught.value)


def renamed(model: Model, vector: np.ndarray, names: dict[str, str]) -> dict[str, np.ndarray]:
    """PyTorch's tensors of a model with other names for its layers."""
    tensors = to_layout(model, model.tensors(vector), "pytorch")
    parts = {name: name.rsplit(".", 1) for name in tensors}
    return {f"{names.get(layer, layer)}.{leaf}": np.ascontiguousarray(tensors[n]) for n, (layer, leaf) in parts.items()}


@pytest.mark.parametrize(
    ("sizes", "names"),
    [
        ([1, 40, 40, 1], {"0": "inp", "2": "hidden", "4": "out"}),
        ([1, 40, 40, 1], {"0": "encoder.0", "2": "encoder.2", "4": "head"}),
        ([1, 8, 8, 8, 1], {"0": "inp", "2": "hidden1", "4": "hidden2", "6": "out"}),
        ([1, *[8] * 11, 1], {"0": "inp", **{str(2 * i): f"hidden.{i}" for i in range(1, 11)}, "22": "a"}),
    ],
    ids=["words", "encoder and head", "numbers among words", "ten hidden"],
)
def test_trial_31_layers_with_names_are_placed_by_the_given_model(
    sizes: list[int], names: dict[str, str], tmp_path: Path
) -> None:
    model = mlp(sizes)
    vector = some_weights(model)
    save_file(renamed(model, vector, names), tmp_path / "m")
    np.testing.assert_array_equal(read_model(tmp_path / "m", model=model).vector, vector)
    with pytest.raises(InputError, match=r"is not clear; number their names .*, or give the model \(--model\)"):
        read_model(tmp_path / "m", loss="mse")
    with pytest.raises(InputError, match=r"needs one more dense layer with a weight of shape \(40, 7\)|dense layers"):
        read_model(tmp_path / "m", model=mlp([7, *sizes[1:]]) if sizes[1] == 40 else mlp([1, 8, 1]))


def test_trial_31_layers_of_one_shape_still_need_numbers(tmp_path: Path) -> None:
    model = mlp([1, 8, 8, 8, 1])
    names = {"0": "inp", "2": "first", "4": "second", "6": "out"}
    save_file(renamed(model, some_weights(model), names), tmp_path / "m")
    with pytest.raises(InputError, match="order of the layers first, second is not clear; number their names"):
        read_model(tmp_path / "m", model=model)


def test_trial_31_batch_normalisation_is_refused_in_the_documents_words(tmp_path: Path) -> None:
    """As PyTorch writes it, with a counter of whole numbers that once was the complaint."""
    one = {
        "weight": np.ones(4, F),
        "bias": np.zeros(4, F),
        "running_mean": np.zeros(4, F),
        "running_var": np.ones(4, F),
    }
    norm = {f"1.{leaf}": tensor for leaf, tensor in one.items()} | {"1.num_batches_tracked": np.array(3)}
    dense = {"0.weight": np.zeros((4, 3), F), "0.bias": np.zeros(4, F)}
    save_file(dense | norm, tmp_path / "m")
    documented = "its statistics would mix the samples of a batch"
    assert documented in " ".join((Path(__file__).parents[2] / "docs" / "own-models.md").read_text().split())
    for settings in ({"loss": "mse"}, {"model": mlp([3, 4])}):
        with pytest.raises(InputError, match=f"batch normalisation, which is refused: {documented}; use .*GroupNorm"):
            read_model(tmp_path / "m", **settings)  # type: ignore[arg-type]


def test_trial_31_a_dense_net_with_a_layer_norm_is_not_called_a_convolution(tmp_path: Path) -> None:
    dense = {
        f"{i}.{leaf}": np.zeros((4, 4) if leaf == "weight" else 4, F) for i in (0, 3) for leaf in ("weight", "bias")
    }
    save_file(dense | {"1.weight": np.ones(4, F), "1.bias": np.zeros(4, F)}, tmp_path / "m")
    with pytest.raises(InputError, match=r"layer '1' is a normalisation, which an mlp .* does not have; .*Model\(init"):
        read_model(tmp_path / "m", loss="mse")


def test_learned_rates_travel_with_the_weights(tmp_path):
    model, rng = mlp([2, 3, 1]), np.random.default_rng(0)
    vector, rates = (rng.normal(size=model.size).astype(np.float32) for _ in range(2))
    path = tmp_path / "rated.safetensors"
    write_model(path, model, vector, rates=rates)
    found = read_model(path)
    np.testing.assert_array_equal(found.vector, vector)
    np.testing.assert_array_equal(found.rates, rates)
    tensors = load_file(path)
    missing = {name: t for name, t in tensors.items() if name != "learning_rates.0.bias"}
    for wrong in (missing, {**missing, "learning_rates.0.bias": np.zeros(4, np.float32)}):
        save_file(wrong, path, metadata={CARD_KEY: '{"model": "mlp:2-3-1", "loss": "mse"}'})
        with pytest.raises(InputError, match="learning rates are not those of its weights"):
            read_model(path)
    with pytest.raises(InputError, match=f"one vector of {model.size} numbers"):
        write_model(path, model, vector, rates=rates[1:], force=True)
