"""Whose order of axes a file of weights has: fewjoule's own, PyTorch's or Flax's. Told by name and shape, not guessed.

                 dense                      convolution                         norm
    fewjoule     weight [in, out], bias     weight [height, width, in, out]     gain, bias
    pytorch      weight [out, in], bias     weight [out, in, height, width]     weight, bias
    flax         kernel [in, out], bias     kernel [height, width, in, out]     scale, bias

PyTorch's dense layer after a convolution counts its inputs channels first; the others count channels last.
"""

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fewjoule.errors import InputError
from fewjoule.models.architecture import LayerShape
from fewjoule.models.model import Model

WEIGHT_NAMES = {  # what the weight of a layer is called; a bias is a bias everywhere
    "fewjoule": {"dense": "weight", "conv": "weight", "norm": "gain"},
    "pytorch": {"dense": "weight", "conv": "weight", "norm": "weight"},
    "flax": {"dense": "kernel", "conv": "kernel", "norm": "scale"},
}
LAYOUTS = tuple(WEIGHT_NAMES)
FLAX_MODULES = {"dense": "Dense", "conv": "Conv", "norm": "GroupNorm"}
KINDS = {1: "norm", 2: "dense", 4: "conv"}  # by the number of axes of the weight
Shapes = Mapping[str, tuple[int, ...]]


class _FileLayer(NamedTuple):
    prefix: str
    leaf: str  # weight, kernel, gain or scale
    weight: str  # its full name
    bias: str
    shape: tuple[int, ...]
    outputs: int  # length of the bias

    @property
    def kind(self) -> str:
        return KINDS[len(self.shape)]

    def inputs(self, layout: str) -> int:
        if self.kind == "norm":
            return self.outputs
        return self.shape[1] if layout == "pytorch" else self.shape[-2]


def check_layout(layout: str) -> None:
    if layout not in LAYOUTS:
        raise InputError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}.")


def to_layout(model: Model, tensors: Mapping[str, np.ndarray], layout: str) -> dict[str, np.ndarray]:
    """The tensors of a model under the names and axes of PyTorch's nn.Sequential, or of Flax's compact modules."""
    check_layout(layout)
    if layout == "fewjoule":
        return dict(tensors)
    numbers = {kind: itertools.count() for kind in FLAX_MODULES}
    values = iter(tensors.values())
    out: dict[str, np.ndarray] = {}
    for layer in model.architecture.layers:
        weight, bias = next(values), next(values)
        if layout == "pytorch":
            prefix, weight = str(layer.place), _to_pytorch(layer, weight)
        else:
            prefix = f"{FLAX_MODULES[layer.kind]}_{next(numbers[layer.kind])}"
        out |= {f"{prefix}.{WEIGHT_NAMES[layout][layer.kind]}": weight, f"{prefix}.bias": bias}
    return out


def from_layout(model: Model, tensors: Sequence[np.ndarray], layout: str) -> list[np.ndarray]:
    """Tensors in the model's flat order, with the axes of another layout, as this package has them."""
    if layout != "pytorch":
        return list(tensors)
    pairs = zip(model.architecture.layers, tensors[::2], tensors[1::2], strict=True)
    return [tensor for layer, weight, bias in pairs for tensor in (_from_pytorch(layer, weight), bias)]


def _to_pytorch(layer: LayerShape, weight: np.ndarray) -> np.ndarray:
    if layer.kind == "norm":
        return weight
    turned = weight.reshape(*layer.sides, layer.inputs, layer.outputs).transpose(3, 2, 0, 1)
    return turned if layer.kind == "conv" else turned.reshape(layer.outputs, -1)


def _from_pytorch(layer: LayerShape, weight: np.ndarray) -> np.ndarray:
    if layer.kind == "norm":
        return weight
    turned = weight.reshape(layer.outputs, layer.inputs, *layer.sides)
    return turned.transpose(2, 3, 1, 0).reshape(layer.shape)


def fit_tensors(
    file: str, shapes: Shapes, metadata: Mapping[str, str], model: Model, layout: str | None
) -> tuple[list[str], str]:
    """The file's name for each tensor of the model in flat order, and whose layout they have."""
    own = dict(zip(model.tensor_names(), model.tensor_shapes(), strict=True))
    if not model.knows_layers:  # a user's own code: the names must be theirs
        layout = "fewjoule"
    elif layout != "fewjoule":
        found = _layers(file, shapes)
        layout = _layout_of(file, found, metadata, layout)
    if layout == "fewjoule":
        if extra := sorted(set(shapes) - set(own)):
            raise InputError(f"{file}: unknown tensor name {extra[0]!r}; the model has {', '.join(own)}.")
        if missing := [name for name in own if name not in shapes]:
            raise InputError(f"{file}: tensor {missing[0]!r} is missing; write the whole model.")
        names = list(own)
    blank = {name: np.broadcast_to(np.float32(0), shape) for name, shape in own.items()}  # takes no memory
    due = [tensor.shape for tensor in to_layout(model, blank, layout).values()]
    if layout != "fewjoule":
        names = [n for layer in _in_order(file, found, model, due[::2]) for n in (layer.weight, layer.bias)]
    for name, shape in zip(names, due, strict=True):
        if shapes[name] != shape:
            raise InputError(
                f"{file}: tensor {name!r} has shape {shapes[name]}, the model needs {shape}; give the model that was "
                "trained."
            )
    return names, layout


def dense_sizes(file: str, shapes: Shapes, metadata: Mapping[str, str], layout: str | None) -> list[int]:
    """The sizes of a dense net from its shapes alone; a convolution net's image size is not in its weights."""
    layers = _layers(file, shapes)
    kinds = {layer.kind: layer.prefix for layer in layers}
    if "conv" in kinds:
        raise InputError(
            f"{file} holds a convolution net, whose image size its weights do not tell; give the model (--model "
            "conv4:…)."
        )
    if "norm" in kinds:
        raise InputError(
            f"{file}: layer {kinds['norm']!r} is a normalisation, which an mlp of fewjoule does not have; train a net "
            "without it, or give the net as your own functions, Model(init, apply)."
        )
    layout = _layout_of(file, layers, metadata, layout)
    ordered = _ordered(file, layers, layout)
    for one, two in itertools.pairwise(ordered):
        if one.outputs != two.inputs(layout):
            raise InputError(
                f"{file}: layer {two.prefix!r} takes {two.inputs(layout)} inputs but {one.prefix!r} before it gives "
                f"{one.outputs}; check the layers' order or give the model (--model)."
            )
    return [ordered[0].inputs(layout), *(layer.outputs for layer in ordered)]


def _layers(file: str, shapes: Shapes) -> list[_FileLayer]:
    """The file's layers; a name that belongs to none is an error."""
    known = {"bias"}.union(*(names.values() for names in WEIGHT_NAMES.values()))
    parts: dict[str, dict[str, str]] = {}
    for name in shapes:
        prefix, _, leaf = name.replace("/", ".").rpartition(".")
        if leaf in ("running_mean", "running_var", "num_batches_tracked"):
            raise InputError(
                f"{file}: tensor {name!r} belongs to a batch normalisation, which is refused: its statistics would mix "
                "the samples of a batch; use a normalisation of each sample, torch.nn.GroupNorm(1, channels)."
            )
        if leaf not in known:
            raise InputError(f"{file}: unknown tensor name {name!r}; names must end in weight, kernel, scale or bias.")
        parts.setdefault(prefix, {})[leaf] = name
    layers = []
    for prefix, leaves in parts.items():
        if len(leaves) != 2 or "bias" not in leaves:
            raise InputError(
                f"{file}: layer {prefix!r} must have one weight and one bias, got {', '.join(leaves.values())}; for a "
                "layer without a bias write zeros."
            )
        bias = leaves.pop("bias")
        leaf, weight = leaves.popitem()
        if len(shapes[weight]) not in KINDS or len(shapes[bias]) != 1:
            raise InputError(
                f"{file}: {weight!r} with shape {shapes[weight]} and a bias of shape {shapes[bias]} is no dense layer, "
                "convolution or normalisation; only nets of these are read."
            )
        layers.append(_FileLayer(prefix, leaf, weight, bias, shapes[weight], shapes[bias][0]))
    if not any(layer.kind == "dense" for layer in layers):
        raise InputError(f"{file} has no dense layer; only mlp and conv4 nets are read.")
    return layers


def _layout_of(file: str, layers: Sequence[_FileLayer], metadata: Mapping[str, str], asked: str | None) -> str:
    possible = set(LAYOUTS)
    for layer in layers:
        fits = {
            layout
            for layout, names in WEIGHT_NAMES.items()
            if names[layer.kind] == layer.leaf and layer.shape[0 if layout == "pytorch" else -1] == layer.outputs
        }
        if not fits:
            raise InputError(
                f"{file}: {layer.weight!r} with shape {layer.shape} does not fit its bias of {layer.outputs}; check "
                "the file."
            )
        possible &= fits
    if asked is not None:
        if asked in possible:
            return asked
        raise InputError(f"{file} does not have the {asked} layout; it fits {' or '.join(sorted(possible)) or 'none'}.")
    if len(possible) > 1 and metadata.get("format") == "pt":
        possible &= {"pytorch"}
    if len(possible) == 1:
        return possible.pop()
    if not possible:
        raise InputError(
            f"{file} mixes layouts: some tensors are PyTorch's, some Flax's or fewjoule's; write it again."
        )
    raise InputError(
        f"{file}: every layer is square, so its layout may be {' or '.join(sorted(possible))}; say "
        "which by layout (--layout)."
    )


def _ordered(file: str, layers: Sequence[_FileLayer], layout: str) -> list[_FileLayer]:
    """Layers from input to output: by the numbers in their names, else by the one order in which the shapes chain."""
    if (numbered := _by_number(layers)) is not None:
        return numbered
    chains: list[Any] = []
    if len(layers) <= 7:
        chains = [
            order
            for order in itertools.permutations(layers)
            if all(one.outputs == two.inputs(layout) for one, two in itertools.pairwise(order))
        ]
    if len(chains) != 1:
        raise _unclear(file, layers, ", or give the model (--model)")
    return list(chains[0])


def _by_number(layers: Sequence[_FileLayer]) -> list[_FileLayer] | None:
    """Layers by the numbers in their names; None where the names differ in more than these."""
    if len(layers) > 1 and len({re.sub(r"\d+", "#", layer.prefix) for layer in layers}) > 1:
        return None
    return sorted(layers, key=lambda layer: [int(n) for n in re.findall(r"\d+", layer.prefix)])


def _unclear(file: str, layers: Sequence[_FileLayer], cure: str = "") -> InputError:
    listed = ", ".join(layer.prefix for layer in layers)
    return InputError(
        f"{file}: the order of the layers {listed} is not clear; number their names (0.weight, 1.weight, …){cure}."
    )


def _in_order(
    file: str, layers: Sequence[_FileLayer], model: Model, due: Sequence[tuple[int, ...]]
) -> list[_FileLayer]:
    """The file's layers in the order of the model's: by number, else by the shapes that are due of their weights."""
    wanted, found = (Counter(layer.kind for layer in given) for given in (model.architecture.layers, layers))
    if wanted != found:
        listed = [", ".join(f"{n} {kind}" for kind, n in counts.items()) for counts in (wanted, found)]
        raise InputError(
            f"{file}: {model.spec} has {listed[0]} layers, the file {listed[1]}; give the model that was trained."
        )
    unnumbered = {k for k in wanted if _by_number([layer for layer in layers if layer.kind == k]) is None}
    groups: dict[Any, list[_FileLayer]] = defaultdict(list)  # of one kind; where numbers do not order it, of one shape
    for layer in layers:
        groups[layer.kind, layer.shape if layer.kind in unnumbered else None].append(layer)
    in_order = {}
    for group, alike in groups.items():
        if (numbered := _by_number(alike)) is None:
            raise _unclear(file, alike)
        in_order[group] = iter(numbered)
    ordered = []
    for wanted_layer, shape in zip(model.architecture.layers, due, strict=True):
        group = wanted_layer.kind, shape if wanted_layer.kind in unnumbered else None
        if (next_one := next(in_order.get(group, iter(())), None)) is None:
            raise InputError(
                f"{file}: {model.spec} needs one more {wanted_layer.kind} layer with a weight of shape {shape}; give "
                "the model that was trained."
            )
        ordered.append(next_one)
    return ordered
