"""A model as an ONNX graph, for devices that run onnxruntime or a compiler for it. Needs the extra `onnx`.

The graph takes inputs as the model does, `x` [batch, features] or [batch, height, width, channels], and gives `outputs`
[batch, outputs]: the values of a regression, or one score (logit) per class. The size of the batch is free.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fewjoule._version import __version__
from fewjoule.errors import InputError
from fewjoule.models.model import Model

OPSET = 18
IR_VERSION = 9  # of ONNX 1.14 (2023): newer ones are refused by runtimes that devices still have


def onnx_graph(model: Model, vector: Any, metadata: Mapping[str, str] | None = None) -> bytes:
    """The model as a serialised ONNX graph."""
    net = model.architecture
    try:
        import onnx
        from onnx import TensorProto, helper
    except ImportError as error:
        raise InputError("writing ONNX needs the onnx package; pip install 'fewjoule[onnx]'.") from error
    builder = _Graph(helper, onnx.numpy_helper)
    tensors = list(model.tensors(vector).values())
    if net.kind == "conv4":
        _add_conv4(builder, net.pools, tensors)
    else:
        _add_mlp(builder, tensors)
    taken = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *net.input_shape])
    given = helper.make_tensor_value_info("outputs", TensorProto.FLOAT, ["batch", net.layers[-1].outputs])
    graph = helper.make_graph(builder.nodes, "fewjoule", [taken], [given], builder.constants)
    made = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="fewjoule",
        producer_version=__version__,
    )
    helper.set_model_props(made, dict(metadata or {}))
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


def _add_conv4(graph: _Graph, pools: Sequence[tuple[int, ...]], tensors: list[np.ndarray[Any, Any]]) -> None:
    axes = graph.constant(np.asarray([1, 2, 3], np.int64))
    epsilon = graph.constant(np.asarray(1e-5, np.float32))
    graph.add("Transpose", perm=[0, 3, 1, 2])
    for block, pool in enumerate(pools):
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
        graph.add("MaxPool", kernel_shape=pool, strides=pool)
    graph.add("Transpose", perm=[0, 2, 3, 1])
    graph.add("Flatten")
    graph.add("Gemm", graph.constant(tensors[16]), graph.constant(tensors[17]), output="outputs")
