"""What a built-in net is made of, without any weights: `mlp:784-8-8-10`, `conv4:28x28x1-5-64`.

A spec is read here and nowhere else. All sizes are checked before a model takes memory, since a spec may come from a
stranger's file or over a network.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from fewjoule.errors import InputError, is_whole, unknown

MOST_LAYERS = 100
MOST_WEIGHTS = 2**28
LONGEST_SPEC = 2000  # characters


class LayerShape(NamedTuple):
    """One layer: a weight (the gain, of a norm), and a bias with one number per output.

    `sides` is the window of a convolution; for a dense layer, height and width of the image that it sees flattened,
    channels last, or 1 x 1.
    """

    kind: str  # "dense", "conv" or "norm"
    place: int  # its number among the modules of PyTorch's nn.Sequential
    sides: tuple[int, int]
    inputs: int  # features, or channels
    outputs: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the weight."""
        if self.kind == "norm":
            return (self.outputs,)
        if self.kind == "conv":
            return (*self.sides, self.inputs, self.outputs)
        return (math.prod(self.sides) * self.inputs, self.outputs)


class Architecture(NamedTuple):
    """A net from input to output; the vector of its weights holds weight and bias of each layer in this order."""

    kind: str  # "mlp" or "conv4"
    spec: str
    input_shape: tuple[int, ...]  # of one sample
    layers: tuple[LayerShape, ...]
    pools: tuple[tuple[int, ...], ...] = ()  # window of the max-pooling that ends each block of conv4


def mlp_architecture(sizes: Sequence[int]) -> Architecture:
    """Dense layers with ReLU between them."""
    if len(sizes) - 1 > MOST_LAYERS:
        raise InputError(f"an mlp has at most {MOST_LAYERS} layers, got {len(sizes) - 1}; give fewer sizes.")
    if len(sizes) < 2 or not _are_sizes(*sizes):
        raise InputError(f"sizes must be two or more whole numbers of at least 1, got {list(sizes)}.")
    sizes = tuple(map(int, sizes))
    layers = tuple(LayerShape("dense", 2 * i, (1, 1), a, b) for i, (a, b) in enumerate(pairwise(sizes)))
    return _small_enough(Architecture("mlp", f"mlp:{'-'.join(map(str, sizes))}", sizes[:1], layers))


def conv4_architecture(image: Sequence[int], classes: int, filters: int = 64) -> Architecture:
    """Four blocks of convolution, normalisation, ReLU and max-pooling, then one dense layer."""
    if len(image) != 3 or not _are_sizes(*image):
        raise InputError(f"image must be (height, width, channels), whole numbers of at least 1, got {tuple(image)}.")
    if not _are_sizes(classes, filters):
        raise InputError(f"classes and filters must be at least 1, got {classes} and {filters}.")
    height, width, channels, classes, filters = map(int, (*image, classes, filters))
    layers = []
    for block in range(4):
        layers.append(LayerShape("conv", 4 * block, (3, 3), filters if block else channels, filters))
        layers.append(LayerShape("norm", 4 * block + 1, (1, 1), filters, filters))
    layers.append(LayerShape("dense", 17, (max(1, height >> 4), max(1, width >> 4)), filters, classes))
    # every pooling halves a side until that is 1
    pools = tuple(tuple(2 if side >> block > 1 else 1 for side in (height, width)) for block in range(4))
    spec = f"conv4:{height}x{width}x{channels}-{classes}-{filters}"
    return _small_enough(Architecture("conv4", spec, (height, width, channels), tuple(layers), pools))


def read_spec(spec: str) -> Architecture:
    """The architecture that a spec names."""
    if len(spec) > LONGEST_SPEC:
        raise InputError(f"model '{spec[:20]}…' has {len(spec)} characters, at most {LONGEST_SPEC} are read.")
    kind, _, rest = spec.partition(":")
    if kind not in ("mlp", "conv4"):
        raise unknown("model", kind, ("mlp", "conv4", "torch", "python"))
    first, *others = rest.split("-")
    try:
        image, sizes = [int(n) for n in first.split("x")], [int(n) for n in others]
    except ValueError:
        image, sizes = [], []
    if kind == "mlp" and len(image) == 1:
        return mlp_architecture([*image, *sizes])
    if kind == "conv4" and image and len(sizes) in (1, 2):
        return conv4_architecture(image, *sizes)
    raise InputError(f"model {spec!r} cannot be read; write mlp:784-8-8-10 or conv4:28x28x1-5-64.")


def _are_sizes(*values: Any) -> bool:
    return all(is_whole(n) and n >= 1 for n in values)


def _small_enough(net: Architecture) -> Architecture:
    weights = sum(math.prod(layer.shape) + layer.outputs for layer in net.layers)
    if weights > MOST_WEIGHTS:
        raise InputError(f"{net.spec} has {weights} weights, at most {MOST_WEIGHTS} are built; give smaller sizes.")
    return net
