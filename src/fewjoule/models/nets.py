"""The built-in nets, by their sizes or by a spec such as `mlp:784-8-8-10`, and what a spec says about the layers."""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fewjoule.errors import InputError, unknown
from fewjoule.models.model import Model


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


INITS = {"glorot": _glorot, "he": _he, "small_normal": _small_normal}


def mlp(sizes: Sequence[int], *, init: str = "glorot", loss: str = "mse") -> Model:
    """A ReLU network with these layer sizes; biases start at 0, weights Glorot-uniform, He-normal or N(0, 0.01²)."""
    sizes = tuple(sizes)
    if len(sizes) < 2 or any(not isinstance(n, int) or n < 1 for n in sizes):
        raise InputError(f"sizes must be two or more whole numbers of at least 1, got {list(sizes)}.")
    if init not in INITS:
        raise unknown("init", init, INITS)
    return _mlp(sizes, init, loss)


def logistic(features: int, classes: int, *, init: str = "glorot") -> Model:
    """Multinomial logistic regression: a softmax over one dense layer."""
    return mlp([features, classes], init=init, loss="cross_entropy")


@lru_cache  # equal settings give one object, so programs compiled for it are found again
def _mlp(sizes: tuple[int, ...], init: str, loss: str) -> Model:
    draw = INITS[init]

    def start(key: Array) -> tuple[Layer, ...]:
        keys = jax.random.split(key, len(sizes) - 1)
        return tuple(
            Layer(draw(k, (a, b), a, b), jnp.zeros(b)) for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
        )

    def apply(layers: tuple[Layer, ...], x: Array) -> Array:
        x = x.reshape(x.shape[0], -1)
        for layer in layers[:-1]:
            x = jax.nn.relu(x @ layer.weight + layer.bias)
        return x @ layers[-1].weight + layers[-1].bias

    return Model(start, apply, loss=loss, spec="mlp:" + "-".join(map(str, sizes)), input_shape=sizes[:1])


def conv4(
    image: Sequence[int],
    classes: int,
    *,
    filters: int = 64,
    init: str = "glorot",
    loss: str = "cross_entropy",
) -> Model:
    """The four-block convolution net of few-shot learning (Vinyals et al. 2016), for images (height, width, channels).

    Each block is a 3 x 3 convolution, a normalisation, ReLU and 2 x 2 max-pooling (left out where a side is already
    1). The normalisation is over each sample's own channels and pixels, not over the batch as in the original:
    statistics of a batch would mix padding, and other samples, into a sample's outputs.
    """
    image = tuple(image)
    if len(image) != 3 or any(not isinstance(n, int) or n < 1 for n in image):
        raise InputError(f"image must be (height, width, channels), whole numbers of at least 1, got {image}.")
    if classes < 1 or filters < 1:
        raise InputError(f"classes and filters must be at least 1, got {classes} and {filters}.")
    if init not in INITS:
        raise unknown("init", init, INITS)
    return _conv4(image, classes, filters, init, loss)


@lru_cache
def _conv4(image: tuple[int, int, int], classes: int, filters: int, init: str, loss: str) -> Model:
    draw = INITS[init]
    height, width, channels = image
    pooled = []
    for _ in range(4):
        pooled.append((2 if height > 1 else 1, 2 if width > 1 else 1))
        height, width = height // pooled[-1][0], width // pooled[-1][1]
    features = height * width * filters

    def start(key: Array) -> tuple[Any, ...]:
        keys = jax.random.split(key, 5)
        blocks = []
        for i in range(4):
            inputs = channels if i == 0 else filters
            weight = draw(keys[i], (3, 3, inputs, filters), 9 * inputs, 9 * filters)
            blocks.append(Block(Layer(weight, jnp.zeros(filters)), Norm(jnp.ones(filters), jnp.zeros(filters))))
        return (*blocks, Layer(draw(keys[4], (features, classes), features, classes), jnp.zeros(classes)))

    def apply(weights: tuple[Any, ...], x: Array) -> Array:
        x = x.reshape(x.shape[0], *image)
        for block, pool in zip(weights[:4], pooled, strict=True):
            x = jax.lax.conv_general_dilated(
                x, block.conv.weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = x + block.conv.bias
            mean = x.mean((1, 2, 3), keepdims=True)
            variance = ((x - mean) ** 2).mean((1, 2, 3), keepdims=True)
            x = (x - mean) * jax.lax.rsqrt(variance + 1e-5) * block.norm.gain + block.norm.bias
            window = (1, *pool, 1)
            x = jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, window, window, "VALID")
        last: Layer = weights[4]
        return x.reshape(x.shape[0], -1) @ last.weight + last.bias

    spec = f"conv4:{'x'.join(map(str, image))}-{classes}-{filters}"
    return Model(start, apply, loss=loss, spec=spec, input_shape=image)


def model_from_spec(spec: str, *, init: str = "glorot", loss: str = "mse") -> Model:
    """The built-in model that a spec names: `mlp:784-8-8-10` or `conv4:28x28x1-5-64` (image, classes, filters)."""
    kind, _, rest = spec.partition(":")
    try:
        if kind == "mlp":
            return mlp([int(n) for n in rest.split("-")], init=init, loss=loss)
        if kind == "conv4":
            sides, classes, *filters = rest.split("-")
            image = [int(n) for n in sides.split("x")]
            return conv4(image, int(classes), filters=int(filters[0]) if filters else 64, init=init, loss=loss)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"model {spec!r} cannot be read; write mlp:784-8-8-10 or conv4:28x28x1-5-64.") from error
    raise unknown("model", kind, ("mlp", "conv4"))


class Mlp(NamedTuple):
    """Dense layers with ReLU between them."""

    sizes: tuple[int, ...]


class Conv4(NamedTuple):
    """Four blocks of convolution, normalisation, ReLU and max-pooling, then one dense layer."""

    image: tuple[int, int, int]  # height, width, channels
    classes: int
    filters: int
    pools: tuple[tuple[int, int], ...]  # window of each block's pooling
    sides: tuple[int, int]  # height and width that the dense layer sees


def architecture(model: Model) -> Mlp | Conv4:
    """The layers of a built-in model; a user's own pair of functions has none that are known."""
    kind, _, rest = model.spec.partition(":")
    if kind == "mlp":
        return Mlp(tuple(int(n) for n in rest.split("-")))
    if kind == "conv4":
        image, classes, filters = rest.split("-")
        height, width, channels = (int(n) for n in image.split("x"))
        pools, sides = [], (height, width)
        for _ in range(4):
            pools.append((2 if sides[0] > 1 else 1, 2 if sides[1] > 1 else 1))
            sides = (sides[0] // pools[-1][0], sides[1] // pools[-1][1])
        return Conv4((height, width, channels), int(classes), int(filters), tuple(pools), sides)
    raise InputError(
        f"the layers of a {kind or 'custom'} model are not known; this works for the built-in mlp and conv4 models."
    )
