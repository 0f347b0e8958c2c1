"""Whose order of axes a file of weights has: fewjoule's own, PyTorch's or Flax's. Told by name and shape, not guessed.

                 dense                      convolution                         norm
    fewjoule     weight [in, out], bias     weight [height, width, in, out]     gain, bias
    pytorch      weight [out, in], bias     weight [out, in, height, width]     weight, bias
    flax         kernel [in, out], bias     kernel [height, width, in, out]     scale, bias

PyTorch's dense layer after a convolution counts its inputs channels first; the others count channels last.
"""

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fewjoule.errors import InputError
from fewjoule.models.model import Model
from fewjoule.models.nets import Mlp, architecture

LAYOUTS = ("fewjoule", "pytorch", "flax")
Shapes = Mapping[str, tuple[int, ...]]
Convert = Callable[[np.ndarray], np.ndarray]
_MAIN = {"weight": ("fewjoule", "pytorch"), "kernel": ("flax",), "gain": ("fewjoule",), "scale": ("flax",)}
_KINDS = {1: "norm", 2: "dense", 4: "conv"}


class _Layer(NamedTuple):
    prefix: str
    main: str  # full name of the weight, kernel, gain or scale
    bias: str
    shape: tuple[int, ...]
    outputs: int  # length of the bias


def fit_tensors(
    file: str, shapes: Shapes, metadata: Mapping[str, str], model: Model, layout: str | None
) -> tuple[list[str], list[Convert], str]:
    """The file's name for each tensor of the model in flat order, how to turn it to this layout, and whose it was."""
    own = dict(zip(model.tensor_names(), model.tensor_shapes(), strict=True))
    if layout == "fewjoule" or not model.spec:
        _check_names(file, shapes, own)
        _check_shapes(file, shapes, list(own), list(own.values()))
        return list(own), [_same] * len(own), "fewjoule"
    layers = _layers(file, shapes)
    layout = _layout_of(file, layers, metadata, layout)
    if layout == "fewjoule":
        return fit_tensors(file, shapes, metadata, model, layout)
    names: list[str] = []
    for convs, norms, dense in _by_position(file, layers, model, layout):
        for layer in (*convs, *norms, *dense):
            names += [layer.main, layer.bias]
    blank = {name: np.broadcast_to(np.float32(0), shape) for name, shape in own.items()}
    wanted = [tensor.shape for tensor in to_layout(model, blank, layout).values()]
    _check_shapes(file, shapes, names, wanted)
    return names, _converters(model, layout), layout


def infer_spec(file: str, shapes: Shapes, metadata: Mapping[str, str], layout: str | None) -> str:
    """The spec of a dense net from its shapes alone; a convolution net's image size is not in its weights."""
    layers = _layers(file, shapes)
    if any(kind in layers for kind in ("conv", "norm")):
        raise InputError(
            f"{file} holds a convolution net, whose image size its weights do not tell; give --model conv4:…"
        )
    layout = _layout_of(file, layers, metadata, layout)
    ordered = _ordered(file, layers["dense"], layout)
    for one, two in itertools.pairwise(ordered):
        if one.outputs != _inputs(two, layout):
            raise InputError(
                f"{file}: layer {two.prefix!r} takes {_inputs(two, layout)} inputs but {one.prefix!r} before it gives "
                f"{one.outputs}; check the layers' order or give --model."
            )
    return "mlp:" + "-".join(str(n) for n in (_inputs(ordered[0], layout), *(layer.outputs for layer in ordered)))


def to_layout(model: Model, tensors: Mapping[str, np.ndarray], layout: str) -> dict[str, np.ndarray]:
    """The tensors of a model under the names and axes of PyTorch's nn.Sequential, or of Flax's compact modules."""
    if layout not in LAYOUTS:
        raise InputError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}.")
    if layout == "fewjoule":
        return dict(tensors)
    shape = architecture(model)
    values = iter(tensors.values())
    out: dict[str, np.ndarray] = {}
    if isinstance(shape, Mlp):
        for i in range(len(shape.sizes) - 1):
            weight, bias = next(values), next(values)
            if layout == "pytorch":
                out |= {f"{2 * i}.weight": weight.T, f"{2 * i}.bias": bias}
            else:
                out |= {f"Dense_{i}.kernel": weight, f"Dense_{i}.bias": bias}
        return out
    for i in range(4):
        weight, bias, gain, shift = (next(values) for _ in range(4))
        if layout == "pytorch":
            out |= {f"{4 * i}.weight": weight.transpose(3, 2, 0, 1), f"{4 * i}.bias": bias}
            out |= {f"{4 * i + 1}.weight": gain, f"{4 * i + 1}.bias": shift}
        else:
            out |= {f"Conv_{i}.kernel": weight, f"Conv_{i}.bias": bias}
            out |= {f"GroupNorm_{i}.scale": gain, f"GroupNorm_{i}.bias": shift}
    weight, bias = next(values), next(values)
    if layout == "flax":
        return out | {"Dense_0.kernel": weight, "Dense_0.bias": bias}
    channels_last = weight.reshape(*shape.sides, shape.filters, shape.classes)
    return out | {"17.weight": channels_last.transpose(3, 2, 0, 1).reshape(shape.classes, -1), "17.bias": bias}


def _layers(file: str, shapes: Shapes) -> dict[str, list[_Layer]]:
    """The file's layers by kind; a name that belongs to none is an error."""
    parts: dict[str, dict[str, str]] = {}
    for name in shapes:
        prefix, leaf = re.fullmatch(r"(?:(.*)[./])?([^./]*)", name).groups()  # type: ignore[union-attr]
        if leaf in ("running_mean", "running_var", "num_batches_tracked"):
            raise InputError(
                f"{file}: tensor {name!r} belongs to a batch normalisation, which fewjoule's nets do not have; use a "
                "normalisation of each sample, torch.nn.GroupNorm(1, channels)."
            )
        if leaf != "bias" and leaf not in _MAIN:
            raise InputError(f"{file}: unknown tensor name {name!r}; names must end in weight, kernel, scale or bias.")
        parts.setdefault(prefix or "", {})[leaf] = name
    layers: dict[str, list[_Layer]] = {}
    for prefix, leaves in parts.items():
        mains = [leaf for leaf in leaves if leaf != "bias"]
        if len(mains) != 1 or "bias" not in leaves:
            raise InputError(
                f"{file}: layer {prefix!r} must have one weight and one bias, got {', '.join(leaves.values())}; for a "
                "layer without a bias write zeros."
            )
        shape, bias = shapes[leaves[mains[0]]], shapes[leaves["bias"]]
        if len(shape) not in _KINDS or len(bias) != 1:
            raise InputError(
                f"{file}: {leaves[mains[0]]!r} with shape {shape} and a bias of shape {bias} is no dense layer, "
                "convolution or normalisation; only nets of these are read."
            )
        layer = _Layer(prefix, leaves[mains[0]], leaves["bias"], shape, bias[0])
        layers.setdefault(_KINDS[len(shape)], []).append(layer)
    if "dense" not in layers:
        raise InputError(f"{file} has no dense layer; only mlp and conv4 nets are read.")
    return layers


def _layout_of(file: str, layers: Mapping[str, list[_Layer]], metadata: Mapping[str, str], asked: str | None) -> str:
    possible = set(LAYOUTS)
    for kind, group in layers.items():
        for layer in group:
            leaf = re.split(r"[./]", layer.main)[-1]
            fits = set(_MAIN[leaf])
            if layer.shape[0] != layer.outputs:
                fits -= {"pytorch"}
            if layer.shape[-1] != layer.outputs:
                fits -= {"fewjoule", "flax"}
            if kind == "norm" and leaf == "weight":
                fits -= {"fewjoule"}
            if not fits:
                raise InputError(
                    f"{file}: {layer.main!r} with shape {layer.shape} does not fit its bias of {layer.outputs}; check "
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
        f"{file}: every layer is square, so its layout may be {' or '.join(sorted(possible))}; say which by --layout."
    )


def _inputs(layer: _Layer, layout: str) -> int:
    return layer.shape[1] if layout == "pytorch" else layer.shape[-2]


def _ordered(file: str, layers: Sequence[_Layer], layout: str) -> list[_Layer]:
    """Layers from input to output: by the numbers in their names, else by the one order in which the shapes chain."""
    if len(layers) == 1 or len({re.sub(r"\d+", "#", layer.prefix) for layer in layers}) == 1:
        return sorted(layers, key=lambda layer: [int(n) for n in re.findall(r"\d+", layer.prefix)])
    chains: list[Any] = []
    if len(layers) <= 7:
        chains = [
            order
            for order in itertools.permutations(layers)
            if all(one.outputs == _inputs(two, layout) for one, two in itertools.pairwise(order))
        ]
    if len(chains) != 1:
        listed = ", ".join(layer.prefix for layer in layers)
        raise InputError(
            f"{file}: the order of the layers {listed} is not clear; number their names (0.weight, 1.weight, …)."
        )
    return list(chains[0])


def _by_position(
    file: str, layers: Mapping[str, list[_Layer]], model: Model, layout: str
) -> list[tuple[list[_Layer], list[_Layer], list[_Layer]]]:
    """The file's layers in the model's order, one entry per block: convolutions, norms, dense layers."""
    shape = architecture(model)
    wanted = {"dense": len(shape.sizes) - 1} if isinstance(shape, Mlp) else {"conv": 4, "norm": 4, "dense": 1}
    found = {kind: len(group) for kind, group in layers.items()}
    if wanted != found:
        listed = [", ".join(f"{n} {kind}" for kind, n in counts.items()) for counts in (wanted, found)]
        raise InputError(
            f"{file}: {model.spec} has {listed[0]} layers, the file {listed[1]}; give the model that was trained."
        )
    ordered = {kind: _ordered(file, group, layout) for kind, group in layers.items()}
    if isinstance(shape, Mlp):
        return [([], [], [layer]) for layer in ordered["dense"]]
    return [
        *(([c], [n], []) for c, n in zip(ordered["conv"], ordered["norm"], strict=True)),
        ([], [], ordered["dense"]),
    ]


def _converters(model: Model, layout: str) -> list[Convert]:
    count = len(model.tensor_names())
    if layout == "flax":
        return [_same] * count
    shape = architecture(model)
    if isinstance(shape, Mlp):
        return [np.transpose, _same] * (count // 2)

    def channels_last(weight: np.ndarray) -> np.ndarray:
        split = weight.reshape(len(weight), -1, *shape.sides)
        return split.transpose(2, 3, 1, 0).reshape(-1, len(weight))

    return [*([_conv_to_own, _same, _same, _same] * 4), channels_last, _same]


def _conv_to_own(weight: np.ndarray) -> np.ndarray:
    return weight.transpose(2, 3, 1, 0)


def _same(tensor: np.ndarray) -> np.ndarray:
    return tensor


def _check_names(file: str, shapes: Shapes, own: Shapes) -> None:
    if extra := sorted(set(shapes) - set(own)):
        raise InputError(f"{file}: unknown tensor name {extra[0]!r}; the model has {', '.join(own)}.")
    if missing := [name for name in own if name not in shapes]:
        raise InputError(f"{file}: tensor {missing[0]!r} is missing; write the whole model.")


def _check_shapes(file: str, shapes: Shapes, names: Sequence[str], needed: Sequence[tuple[int, ...]]) -> None:
    for name, wanted in zip(names, needed, strict=True):
        if shapes[name] != wanted:
            raise InputError(
                f"{file}: tensor {name!r} has shape {shapes[name]}, the model needs {wanted}; give the model that was "
                "trained."
            )
