"""A model as an ONNX graph, for devices that run onnxruntime or a compiler for it. Needs the extra `onnx`.

The graph takes inputs as the model does, `x` [batch, features] or [batch, height, width, channels], and gives `outputs`
[batch, outputs]: the values of a regression, or one score (logit) per class. The size of the batch is free. The model
card goes along in the graph's metadata, under `fewjoule`.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fewjoule._version import __version__
from fewjoule.errors import InputError
from fewjoule.files import check_writable, write_atomically
from fewjoule.models.layouts import to_layout
from fewjoule.models.model import Model
from fewjoule.models.nets import Conv4, Mlp, architecture
from fewjoule.models.weights import CARD_KEY, named_tensors, save_tensors

TARGETS = ("onnx", "pytorch", "flax")
OPSET = 18
IR_VERSION = 9  # of ONNX 1.14 (2023): newer ones are refused by runtimes that devices still have


def export(
    path: str | Path,
    model: Model,
    vector: Any,
    card: Mapping[str, Any] | None = None,
    *,
    to: str = "onnx",
    force: bool = False,
) -> None:
    """Write the model for another runtime: an ONNX graph, or safetensors in PyTorch's or Flax's names and axes."""
    if to not in TARGETS:
        raise InputError(f"models are exported to {', '.join(TARGETS)}, not {to!r}.")
    check_writable(path, force=force)
    if to == "onnx":
        write_atomically(path, onnx_graph(model, vector, card), force=force)
        return
    # the only key is PyTorch's own mark: a fewjoule card would say that the axes are in this package's order
    metadata = {"format": "pt" if to == "pytorch" else "flax"}
    save_tensors(path, to_layout(model, named_tensors(model, vector), to), metadata, force=force)


def onnx_graph(model: Model, vector: Any, card: Mapping[str, Any] | None = None) -> bytes:
    """The model as a serialised ONNX graph."""
    shape = architecture(model)
    try:
        import onnx
        from onnx import TensorProto, helper
    except ImportError as error:
        raise InputError("writing ONNX needs the onnx package; pip install 'fewjoule[onnx]'.") from error
    builder = _Graph(helper, onnx.numpy_helper)
    tensors = list(named_tensors(model, vector).values())
    if isinstance(shape, Mlp):
        inputs: list[Any] = ["batch", shape.sizes[0]]
        outputs = shape.sizes[-1]
        _add_mlp(builder, tensors)
    else:
        inputs, outputs = ["batch", *shape.image], shape.classes
        _add_conv4(builder, shape, tensors)
    graph = helper.make_graph(
        builder.nodes,
        "fewjoule",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, inputs)],
        [helper.make_tensor_value_info("outputs", TensorProto.FLOAT, ["batch", outputs])],
        builder.constants,
    )
    made = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="fewjoule",
        producer_version=__version__,
    )
    helper.set_model_props(made, {CARD_KEY: json.dumps(dict(card or {"model": model.spec, "loss": model.loss_name}))})
    onnx.checker.check_model(made, full_check=True)
    return bytes(made.SerializeToString())


class _Graph:
    """Nodes in a row: each takes what the last one gave."""

    def __init__(self, helper: Any, numpy_helper: Any) -> None:
        self._helper, self._numpy = helper, numpy_helper
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.at = "x"

    def constant(self, value: np.ndarray[Any, Any]) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(self._numpy.from_array(np.ascontiguousarray(value), name))
        return name

    def add(self, kind: str, *more: str, first: str | None = None, output: str | None = None, **settings: Any) -> str:
        """One node on the current value (or on `first`) and `more`; its output is the current value from now on."""
        name = output or f"{kind.lower()}{len(self.nodes)}"
        inputs = [self.at if first is None else first, *more]
        self.nodes.append(self._helper.make_node(kind, inputs, [name], name=name, **settings))
        self.at = name
        return name


def _add_mlp(graph: _Graph, tensors: list[np.ndarray[Any, Any]]) -> None:
    pairs = list(zip(tensors[::2], tensors[1::2], strict=True))
    for weight, bias in pairs[:-1]:
        graph.add("Gemm", graph.constant(weight), graph.constant(bias))
        graph.add("Relu")
    graph.add("Gemm", *map(graph.constant, pairs[-1]), output="outputs")


def _add_conv4(graph: _Graph, shape: Conv4, tensors: list[np.ndarray[Any, Any]]) -> None:
    axes = graph.constant(np.asarray([1, 2, 3], np.int64))
    epsilon = graph.constant(np.asarray(1e-5, np.float32))
    graph.add("Transpose", perm=[0, 3, 1, 2])
    for block in range(4):
        weight, bias, gain, shift = tensors[4 * block : 4 * block + 4]
        graph.add("Conv", graph.constant(weight.transpose(3, 2, 0, 1)), graph.constant(bias), pads=[1, 1, 1, 1])
        convolved = graph.at
        mean = graph.add("ReduceMean", axes)
        centred = graph.add("Sub", mean, first=convolved)
        graph.add("Mul", centred)
        graph.add("ReduceMean", axes)
        graph.add("Add", epsilon)
        deviation = graph.add("Sqrt")
        graph.add("Div", deviation, first=centred)
        graph.add("Mul", graph.constant(gain.reshape(-1, 1, 1)))
        graph.add("Add", graph.constant(shift.reshape(-1, 1, 1)))
        graph.add("Relu")
        pool = list(shape.pools[block])
        graph.add("MaxPool", kernel_shape=pool, strides=pool)
    graph.add("Transpose", perm=[0, 2, 3, 1])
    graph.add("Flatten")
    graph.add("Gemm", graph.constant(tensors[16]), graph.constant(tensors[17]), output="outputs")
