"""The built-in nets, by their sizes or by a spec such as `mlp:784-8-8-10`: how they start and what they compute."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fewjoule.errors import InputError, unknown
from fewjoule.models.architecture import Architecture, LayerShape, conv4_architecture, mlp_architecture, read_spec
from fewjoule.models.code import is_code, trusted
from fewjoule.models.model import Model
from fewjoule.models.product import product, turned_product


def standardising_itself(model: Model, vector: Array, mean: Sequence[float], scale: Sequence[float]) -> Array:
    """The weights of the same net that takes its inputs as they are: (x - mean) / scale is linear, as its first layer.

    ((x - mean) / scale) W + b  =  x (W / scale) + (b - (mean / scale) W)
    """
    first = model.architecture.layers[0]
    if first.kind != "dense" or first.inputs != len(mean):
        raise InputError(
            f"{model} cannot standardise {len(mean)} inputs in its first layer; standardise them as its card says "
            "(fewjoule show), and export it without that."
        )
    weights = model.unflatten(vector)
    layer: Layer = weights[0]
    weight = layer.weight / jnp.asarray(scale, jnp.float32)[:, None]
    bias = layer.bias - jnp.asarray(mean, jnp.float32) @ weight
    return model.flatten([Layer(weight, bias), *weights[1:]])


class Layer(NamedTuple):
    """One dense layer or convolution: weight [in, out] or [height, width, in, out]."""

    weight: Array
    bias: Array


class Norm(NamedTuple):
    gain: Array
    bias: Array


class Block(NamedTuple):
    conv: Layer
    norm: Norm


def _glorot(key: Array, shape: tuple[int, ...], fan_in: int, fan_out: int) -> Array:
    bound = math.sqrt(6 / (fan_in + fan_out))
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)


def _he(key: Array, shape: tuple[int, ...], fan_in: int, fan_out: int) -> Array:
    return jax.random.normal(key, shape, jnp.float32) * math.sqrt(2 / fan_in)


def _small_normal(key: Array, shape: tuple[int, ...], fan_in: int, fan_out: int) -> Array:
    return jax.random.normal(key, shape, jnp.float32) * 0.01


Draw = Callable[[Array, tuple[int, ...], int, int], Array]
Functions = tuple[Callable[[Array], Any], Callable[[Any, Array], Array]]  # `init` and `apply` of a Model
INITS: dict[str, Draw] = {"glorot": _glorot, "he": _he, "small_normal": _small_normal}


FEW_OUTPUTS, TALL = 16, 4
"""A layer with so few outputs, and so many times as many inputs, is computed with its weights turned. XLA would compute
their gradient as x' d, whose rows are few numbers long; d' x has rows of many, and is up to three times as fast. The
barrier is there because XLA would turn the one into the other."""


IN_CACHE = 8
"""Images that a convolution net goes over at once, at most: those whose inner values stay in a core's own cache. They
are computed again for the gradient rather than kept. 120 images took a sixth to a third less time so: bench/conv.py."""


def mlp(sizes: Sequence[int], *, init: str = "glorot", loss: str = "mse") -> Model:
    """A ReLU network with these layer sizes; biases start at 0, weights Glorot-uniform, He-normal or N(0, 0.01²)."""
    return _built(mlp_architecture(tuple(sizes)), init, loss)


def logistic(features: int, classes: int, *, init: str = "glorot") -> Model:
    """Multinomial logistic regression: a softmax over one dense layer."""
    return mlp([features, classes], init=init, loss="cross_entropy")


def conv4(
    image: Sequence[int], classes: int, *, filters: int = 64, init: str = "glorot", loss: str = "cross_entropy"
) -> Model:
    """The four-block convolution net of few-shot learning (Vinyals et al. 2016), for images (height, width, channels).

    Each block is a 3 x 3 convolution, a normalisation, ReLU and 2 x 2 max-pooling (left out where a side is already
    1). The normalisation is over each sample's own channels and pixels, not over the batch as in the original:
    statistics of a batch would mix padding, and other samples, into a sample's outputs.
    """
    return _built(conv4_architecture(tuple(image), classes, filters), init, loss)


def model_from_spec(spec: str, *, init: str = "glorot", loss: str = "mse") -> Model:
    """The model that a spec names: `mlp:784-8-8-10`, `conv4:28x28x1-5-64` (image, classes, filters), or code that is
    trusted already, such as `torch:net.py:Net`: see `code`."""
    return trusted(spec, loss) if is_code(spec) else _built(read_spec(spec), init, loss)


@lru_cache  # equal settings give one object, so programs compiled for it are found again
def _built(architecture: Architecture, init: str, loss: str) -> Model:
    if init not in INITS:
        raise unknown("init", init, INITS)
    start, apply = {"mlp": _mlp, "conv4": _conv4}[architecture.kind](architecture, INITS[init])
    model = Model(start, apply, loss=loss, architecture=architecture)
    if isinstance(loss, str):
        model.origin = f"{architecture.spec} {init} {loss}"
    return model


def _mlp(net: Architecture, draw: Draw) -> Functions:
    def start(key: Array) -> tuple[Layer, ...]:
        keys = jax.random.split(key, len(net.layers))
        return tuple(_layer(layer, draw, k) for layer, k in zip(net.layers, keys, strict=True))

    def apply(layers: tuple[Layer, ...], x: Array) -> Array:
        x = x.reshape(x.shape[0], -1)
        for layer in layers[:-1]:
            x = jax.nn.relu(_dense(x, layer))
        return _dense(x, layers[-1])

    return start, apply


def convolution(x: Array, weight: Array) -> Array:
    """A 3 x 3 convolution of [n, h, w, in] with zeros around, as one product of [n, h, w, 9 in] and [9 in, out].

    XLA's own is slow on CPUs where agents have weights of their own, and most of all inside a loop: bench/conv.py.
    """
    height, width = x.shape[1:3]
    around = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [around[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return jnp.concatenate(shifted, -1) @ weight.reshape(-1, weight.shape[-1])


def normalised(x: Array) -> Array:
    """Each sample of [n, h, w, channels] with mean 0 and variance 1. The means are products with a constant vector: XLA
    adds up a long row number by number, a product's kernels add many at a time."""
    share = jnp.full(math.prod(x.shape[1:]), 1 / math.prod(x.shape[1:]), x.dtype)

    def mean(values: Array) -> Array:
        return (values.reshape(len(values), -1) @ share).reshape(-1, 1, 1, 1)

    x = x - mean(x)
    return x * jax.lax.rsqrt(mean(x**2) + 1e-5)


def pooled(x: Array, window: tuple[int, ...]) -> Array:
    """The largest of every window of [n, h, w, channels]; what is left over at the ends of a side is left out.

    The gradient of XLA's own reduce_window takes ten times as long on CPUs, longer than the convolution: bench/conv.py.
    """
    high, wide = window
    height, width = x.shape[1] // high, x.shape[2] // wide
    cut = x[:, : height * high, : width * wide].reshape(-1, height, high, width, wide, x.shape[-1])
    return reduce(jnp.maximum, [cut[:, :, i, :, j] for i in range(high) for j in range(wide)])


def _conv4(net: Architecture, draw: Draw) -> Functions:
    def start(key: Array) -> tuple[Any, ...]:
        *convs, last = (layer for layer in net.layers if layer.kind != "norm")
        *keys, last_key = jax.random.split(key, 5)
        norm = Norm(jnp.ones(convs[0].outputs), jnp.zeros(convs[0].outputs))
        blocks = [Block(_layer(conv, draw, k), norm) for conv, k in zip(convs, keys, strict=True)]
        return (*blocks, _layer(last, draw, last_key))

    def features(blocks: tuple[Block, ...], x: Array) -> Array:
        for block, pool in zip(blocks, net.pools, strict=True):
            x = convolution(x, block.conv.weight) + block.conv.bias
            x = jax.nn.relu(pooled(normalised(x) * block.norm.gain + block.norm.bias, pool))
        return x

    def apply(weights: tuple[Any, ...], x: Array) -> Array:
        blocks, count = weights[:4], len(x)
        x = x.reshape(count, *net.input_shape)
        size = max(n for n in range(1, IN_CACHE + 1) if count % n == 0)
        if 1 < size < count:
            groups = x.reshape(count // size, size, *x.shape[1:])
            x = jax.lax.map(jax.checkpoint(lambda group: features(blocks, group)), groups)
        else:
            x = features(blocks, x)
        return _dense(x.reshape(count, -1), weights[4])

    return start, apply


def _dense(x: Array, layer: Layer) -> Array:
    """A dense layer's outputs for rows x."""
    inputs, outputs = layer.weight.shape
    if not (1 < outputs <= FEW_OUTPUTS and inputs >= TALL * outputs):
        return (product(x, layer.weight) if min(inputs, outputs) > 1 else x @ layer.weight) + layer.bias
    across = jax.lax.optimization_barrier(layer.weight.T)  # type: ignore[no-untyped-call]
    return turned_product(x, across) + layer.bias


def _layer(layer: LayerShape, draw: Draw, key: Array) -> Layer:
    window = math.prod(layer.sides) if layer.kind == "conv" else 1
    fan_in = math.prod(layer.shape[:-1])
    return Layer(draw(key, layer.shape, fan_in, window * layer.outputs), jnp.zeros(layer.outputs))
