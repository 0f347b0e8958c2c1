"""Exported graphs against the JAX model in onnxruntime; exported tensors against the reader."""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest

from fewjoule.errors import InputError
from fewjoule.models.model import Model
from fewjoule.models.nets import conv4, mlp
from fewjoule.models.onnx import onnx_graph
from fewjoule.models.weights import export, read_model

CASES = [
    (mlp([3, 8, 5, 2]), (3,)),
    (mlp([4, 3], loss="cross_entropy"), (4,)),
    (conv4([35, 18, 3], 4, filters=5), (35, 18, 3)),
    (conv4([4, 1, 2], 3, filters=3), (4, 1, 2)),
]


def drawn(model: Model) -> jax.Array:
    return model.init(jax.random.key(1)) + 0.2 * jax.random.normal(jax.random.key(2), (model.size,))


@pytest.mark.parametrize(("model", "shape"), CASES, ids=[m.spec for m, _ in CASES])
def test_onnxruntime_gives_the_outputs_of_the_model(model: Model, shape: tuple[int, ...], tmp_path: Path) -> None:
    vector = drawn(model)
    export(tmp_path / "m.onnx", model, vector, {"model": model.spec, "classes": ["a", "b"]})
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    for batch in (1, 7):
        x = np.random.default_rng(batch).normal(size=(batch, *shape)).astype(np.float32)
        (outputs,) = session.run(None, {"x": x})
        np.testing.assert_allclose(outputs, jax.jit(model.apply)(vector, x), atol=1e-5)
    assert json.loads(session.get_modelmeta().custom_metadata_map["fewjoule"])["classes"] == ["a", "b"]
    assert onnx.load(tmp_path / "m.onnx").ir_version == 9


@pytest.mark.parametrize("layout", ["pytorch", "flax"])
def test_other_layouts_are_read_back(layout: str, tmp_path: Path) -> None:
    model = CASES[2][0]
    export(tmp_path / "m", model, drawn(model), to=layout)
    loaded = read_model(tmp_path / "m", model=model)
    assert loaded.layout == layout
    np.testing.assert_array_equal(loaded.vector, drawn(model))


def test_what_cannot_be_exported_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = CASES[0][0]
    with pytest.raises(InputError, match="exported to onnx, pytorch, flax, c, not 'tflite'"):
        export(tmp_path / "m", model, drawn(model), to="tflite")
    own = Model(lambda key: jnp.zeros((1, 1)), lambda w, x: x @ w)
    with pytest.raises(InputError, match="custom model are not known"):
        onnx_graph(own, np.zeros(1))
    (tmp_path / "m").write_text("mine")
    with pytest.raises(InputError, match="exists and is not overwritten"):
        export(tmp_path / "m", model, drawn(model))
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match=r"pip install 'fewjoule\[onnx\]'"):
        onnx_graph(model, drawn(model))
