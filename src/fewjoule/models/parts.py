"""Body and head of a model: its last layers, and all that stands before them.

A layer is the tensors whose names differ after the last dot only (`2.weight`, `2.bias`; `Dense_1.kernel`, ...). Layers
stand in the order of the vector; a dictionary's, which JAX sorts by name, with numbers in the order of numbers.
"""

import math
import re
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.errors import InputError
from fewjoule.models.model import Model
from fewjoule.tasks.samples import Samples

NO_CLASS = -1e9
"""The head's bias of a class that nothing is known of, so that it is never chosen."""


class Parts(NamedTuple):
    """How the weights of a model stand where those of the body come first and those of the head last."""

    body: int  # number of weights
    order: np.ndarray[Any, Any] | None  # [d] where each is in the model's vector; None where that is so already

    def body_first(self, vector: Any) -> Any:
        """[..., d] from the model's order; [..., :body] is the body, [..., body:] the head."""
        return vector if self.order is None else vector[..., self.order]

    def as_model(self, vector: Any) -> Any:
        """[..., d] in the model's order again."""
        return vector if self.order is None else vector[..., np.argsort(self.order)]


@lru_cache
def parts_of(model: Model, head: int) -> Parts:
    """The parts of a model whose last `head` layers are its head; with 0 all of it is body."""
    layers = _layers(model)
    if not head:
        return Parts(model.size, None)
    if (last := layers[-1]) and _outputs(model) not in (None, *(n for i in last for n in model.tensor_shapes()[i])):
        name = model.tensor_names()[last[0]]
        raise InputError(
            f"the last layer of {model} by its names is that of {name!r}, which does not give its outputs; name or "
            "define the output layer last."
        )
    sizes = [math.prod(shape) for shape in model.tensor_shapes()]
    ends = np.cumsum(sizes)
    tensors = [i for layer in layers for i in layer]
    order = np.concatenate([np.arange(ends[i] - sizes[i], ends[i]) for i in tensors])
    body = sum(sizes[i] for layer in layers[: max(0, len(layers) - head)] for i in layer)
    return Parts(body, None if (order == np.arange(model.size)).all() else order)


def _layers(model: Model) -> list[list[int]]:
    """The positions of the tensors of every layer, in order."""
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(model.tensor_names()):
        groups.setdefault(name.rpartition(".")[0], []).append(i)
    if model.names_are_keys:  # Dense_10 after Dense_2
        groups = {name: groups[name] for name in sorted(groups, key=_natural)}
    return list(groups.values())


def _natural(name: str) -> list[Any]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


class LastLayer(NamedTuple):
    """The dense layer that a model ends with: outputs = features W + bias."""

    weight: int  # position among the tensors
    bias: int
    features: int
    outputs: int
    turned: bool  # the weight is [outputs, features], as PyTorch has it
    fixed: bool = False  # the module checks the shapes of its weights, as Flax's linen does


def features(model: Model, vector: Array, x: Array) -> Array:
    """What the last layer gets for a batch x, [n, features]: the outputs with an identity in its place."""
    return _features(model, last_layer(model), vector, x)


def _features(model: Model, last: LastLayer, vector: Array, x: Array) -> Array:
    tensors = jax.tree.leaves(model.unflatten(vector))
    if last.fixed:
        return _slopes(model, last, tensors, x)
    tensors[last.weight] = jnp.eye(last.features, dtype=vector.dtype)
    tensors[last.bias] = jnp.zeros(last.features, vector.dtype)
    return model.apply_tensors(tensors, x)


def _slopes(model: Model, last: LastLayer, tensors: list[Array], x: Array) -> Array:
    """The features where no identity fits: those of a sample are the slopes of its first output in the weights."""

    def first_output(weight: Array, one: Array) -> Array:
        changed = [weight if i == last.weight else tensor for i, tensor in enumerate(tensors)]
        return model.apply_tensors(changed, one[None])[0, 0]

    slopes = jax.vmap(jax.grad(first_output), (None, 0))(tensors[last.weight], x)
    return slopes[:, 0] if last.turned else slopes[:, :, 0]


def with_prototypes(model: Model, vector: Array, support: Samples) -> Array:
    """The model whose head is the class means c_k of the samples' features: softmax of -||f - c_k||², which is that of
    2 c_k'f - ||c_k||², since ||f||² is the same for all classes."""
    last = last_layer(model)
    found = _features(model, last, vector, support.x)
    belongs = (support.y[:, None] == jnp.arange(last.outputs)) * support.mask[:, None]
    count = belongs.sum(0)
    means = belongs.T @ found / jnp.maximum(count, 1)[:, None]
    tensors = jax.tree.leaves(model.unflatten(vector))
    tensors[last.weight] = 2 * (means if last.turned else means.T)
    tensors[last.bias] = jnp.where(count > 0, -(means**2).sum(-1), jnp.asarray(NO_CLASS, vector.dtype))
    return jnp.concatenate([tensor.ravel() for tensor in tensors])


@lru_cache
def last_layer(model: Model) -> LastLayer:
    """The last layer of a classifier, found by its names and tried on numbers."""
    if model.loss_name != "cross_entropy":
        raise InputError(f"class means are for classes, and the loss of {model} is {model.loss_name}.")
    if model.input_shape is None:
        raise InputError(f"the shape of the inputs of {model} is not known; give Model(..., input_shape=(28, 28)).")
    shapes, layer = model.tensor_shapes(), _layers(model)[-1]
    weights, biases = ([i for i in layer if len(shapes[i]) == n] for n in (2, 1))
    rng, outputs = np.random.default_rng(0), _outputs(model)
    if len(layer) == 2 and weights and biases and shapes[biases[0]] == (outputs,):
        vector, x = rng.normal(size=model.size), rng.normal(size=(2, *model.input_shape))
        for fixed, turned in ((False, False), (False, True), (True, False), (True, True)):
            width, out = shapes[weights[0]][:: -1 if turned else 1]
            last = LastLayer(weights[0], biases[0], width, out, turned, fixed)
            if out == outputs and _ends_with(model, last, vector.astype(np.float32), x.astype(np.float32)):
                return last
    raise InputError(f"{model} does not end with a dense layer that can be replaced by class means; use mlp or conv4.")


def _ends_with(model: Model, last: LastLayer, vector: Any, x: Any) -> bool:
    with jax.ensure_compile_time_eval():
        tensors = jax.tree.leaves(model.unflatten(jnp.asarray(vector)))
        weight = tensors[last.weight].T if last.turned else tensors[last.weight]
        try:
            due = _features(model, last, jnp.asarray(vector), jnp.asarray(x)) @ weight + tensors[last.bias]
        except Exception:  # a module that checks the shapes of its weights
            return False
        return bool(jnp.allclose(due, model.apply(jnp.asarray(vector), jnp.asarray(x)), rtol=1e-3, atol=1e-3))


def _outputs(model: Model) -> int | None:
    """The number of outputs; None where the shape of the inputs is not known."""
    if model.input_shape is None:
        return None
    x = np.zeros((1, *model.input_shape), np.float32)
    return int(jax.eval_shape(model.apply, np.zeros(model.size, np.float32), x).shape[-1])
