"""Models as pairs of pure functions, seen by everything else as one flat float32 vector.

`Model(init, apply)` takes any pair: `init(key)` gives the weights as a pytree, `apply(weights, x)` the outputs for a
batch x. The flat order of the weights is the order of the pytree's leaves.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from fewjoule.errors import InputError, unknown
from fewjoule.tasks.samples import Samples

LOSSES = ("mse", "cross_entropy")


class Model:
    """A model with its loss, over flat vectors of `size` weights.

    `spec` describes a built-in architecture (`"mlp:1-40-40-1"`), so that a file of weights can name it; it is empty
    for a user's own pair of functions.
    """

    def __init__(
        self,
        init: Callable[[Array], Any],
        apply: Callable[[Any, Array], Array],
        *,
        loss: str = "mse",
        spec: str = "",
    ) -> None:
        if loss not in LOSSES:
            raise unknown("loss", loss, LOSSES)
        self.loss_name, self.spec = loss, spec
        self._init, self._apply = init, apply
        shapes = jax.eval_shape(init, jax.random.key(0))
        leaves, self._treedef = jax.tree.flatten(shapes)
        for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise InputError(f"weights must be floating point, got {leaf.dtype} at {jax.tree_util.keystr(path)}.")
        self._shapes = [leaf.shape for leaf in leaves]
        self.size: int = sum(math.prod(shape) for shape in self._shapes)

    def __repr__(self) -> str:
        return f"Model({self.spec or 'custom'}, {self.size} weights, {self.loss_name})"

    def init(self, key: Array) -> Array:
        """A random start: one flat float32 vector."""
        return self.flatten(self._init(key))

    def flatten(self, weights: Any) -> Array:
        return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(weights)])

    def unflatten(self, vector: Array) -> Any:
        """The weights as the pytree that `init` gave, in the vector's own precision."""
        leaves, at = [], 0
        for shape in self._shapes:
            size = math.prod(shape)
            leaves.append(vector[at : at + size].reshape(shape))
            at += size
        return jax.tree.unflatten(self._treedef, leaves)

    def tensor_names(self) -> list[str]:
        """A name for every tensor of the weights, in flat order: `0.weight`, `0.bias`, ..."""
        numbered = jax.tree.unflatten(self._treedef, range(len(self._shapes)))
        paths = jax.tree_util.tree_leaves_with_path(numbered)
        return [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]

    def tensor_shapes(self) -> list[tuple[int, ...]]:
        return list(self._shapes)

    def apply(self, vector: Array, x: Array) -> Array:
        """Outputs for a batch x."""
        return self._apply(self.unflatten(vector), x)

    def loss(self, vector: Array, samples: Samples) -> Array:
        """Mean loss over the real samples: squared error (mean over outputs) or cross entropy in nats."""
        outputs = self.apply(vector, samples.x)
        if self.loss_name == "mse":
            each = ((outputs - samples.y) ** 2).mean(-1)
        else:
            log_p = jax.nn.log_softmax(_permit(outputs, samples.allowed))
            each = -jnp.take_along_axis(log_p, samples.y[..., None], -1)[..., 0]
        return _masked_mean(each, samples.mask)

    def accuracy(self, vector: Array, samples: Samples) -> Array:
        """Share of the real samples whose class is right; NaN for regression."""
        if self.loss_name == "mse":
            return jnp.full((), jnp.nan)
        outputs = _permit(self.apply(vector, samples.x), samples.allowed)
        return _masked_mean((outputs.argmax(-1) == samples.y).astype(jnp.float32), samples.mask)


def _permit(logits: Array, allowed: Array | None) -> Array:
    return logits if allowed is None else jnp.where(allowed, logits, jnp.asarray(-1e9, logits.dtype))


def _masked_mean(each: Array, mask: Array) -> Array:
    mask = mask.astype(each.dtype)
    return (each * mask).sum() / jnp.maximum(mask.sum(), 1)


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

    return Model(start, apply, loss=loss, spec="mlp:" + "-".join(map(str, sizes)))


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
    return Model(start, apply, loss=loss, spec=spec)


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
