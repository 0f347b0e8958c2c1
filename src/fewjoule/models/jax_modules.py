"""Flax and Equinox modules as models. Both are JAX already: only their weights have to be told from the rest.

From a module, or a function that makes one, to a `Model` over the flat vector of its weights.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fewjoule.errors import InputError
from fewjoule.models.model import Loss, Model

STATEFUL = "{} keeps more than weights ({}), as batch normalisation does; normalise each sample by itself, as {} does."


def from_flax(module: Any, sample: Any = None, *, loss: Loss = "mse") -> Model:
    """A Flax module as a model: it is called with a batch and gives [samples, ...].

    A linen module needs a `sample`: a batch of inputs, of which only the shape counts. An nnx module is given as a
    function of `nnx.Rngs` that makes it (its class, most often), so that every seed has a start of its own. Dropout
    must be off by default (linen: deterministic=True), or left out.
    """
    try:
        from flax import linen, nnx
    except ImportError as error:
        raise InputError("Flax modules need flax; pip install flax.") from error
    shape = None if sample is None else tuple(jnp.shape(sample)[1:])
    if isinstance(module, linen.Module):
        if shape is None:
            raise InputError(
                "a linen module needs a sample to know its weights' shapes; give from_flax(module, x[:1])."
            )
        return _from_linen(module, shape, loss)
    if isinstance(module, nnx.Module) or not callable(module):
        what = type(module).__name__
        raise InputError(
            f"from_flax takes a linen module, or a function of nnx.Rngs that makes an nnx module, got {what}; give "
            f"lambda rngs: {what}(..., rngs=rngs)."
        )
    return _from_nnx(nnx, module, shape, loss)


def from_equinox(module: Any, *, loss: Loss = "mse", input_shape: tuple[int, ...] | None = None) -> Model:
    """An Equinox module as a model. Equinox calls modules with one sample, so it is mapped over the batch here.

    `module` may be a function of a JAX key that makes the module, so that every seed has a start of its own; a module
    that is already made starts where it is, with every seed. It runs in inference mode: without dropout.
    """
    try:
        import equinox
    except ImportError as error:
        raise InputError("Equinox modules need equinox; pip install equinox.") from error
    make = (lambda key: module) if isinstance(module, equinox.Module) else module
    if not callable(make):
        raise InputError(f"from_equinox takes an Equinox module or a function that makes one, got {module!r}.")
    _, rest = equinox.partition(equinox.filter_eval_shape(make, jax.random.key(0)), _is_weight)
    if not isinstance(rest, equinox.Module):
        raise InputError(f"from_equinox takes an Equinox module or a function that makes one, got {rest!r}.")
    if kept := [leaf for leaf in jax.tree.leaves(rest) if isinstance(leaf, jax.ShapeDtypeStruct)]:
        raise InputError(STATEFUL.format(type(rest).__name__, f"{len(kept)} arrays that are no weights", "LayerNorm"))
    rest = equinox.nn.inference_mode(rest)

    def init(key: Array) -> Any:
        return equinox.partition(make(key), equinox.is_inexact_array)[0]

    def apply(weights: Any, x: Array) -> Array:
        return jax.vmap(equinox.combine(weights, rest))(x)

    return Model(init, apply, loss=loss, input_shape=input_shape)


def _is_weight(leaf: Any) -> bool:
    return isinstance(leaf, jax.ShapeDtypeStruct) and jnp.issubdtype(leaf.dtype, jnp.inexact)


def _from_linen(module: Any, shape: tuple[int, ...], loss: Loss) -> Model:
    x = jnp.zeros((1, *shape))
    if others := sorted(set(jax.eval_shape(module.init, jax.random.key(0), x)) - {"params"}):
        raise InputError(STATEFUL.format(type(module).__name__, ", ".join(others), "GroupNorm"))

    def init(key: Array) -> Any:
        return module.init(key, x)["params"]

    def apply(weights: Any, x: Array) -> Array:
        outputs: Array = module.apply({"params": weights}, x)
        return outputs

    return Model(init, apply, loss=loss, input_shape=shape)


def _from_nnx(nnx: Any, make: Callable[[Any], Any], shape: tuple[int, ...] | None, loss: Loss) -> Model:
    made = nnx.eval_shape(lambda: make(nnx.Rngs(0)))
    if not isinstance(made, nnx.Module):
        raise InputError(f"from_flax takes a function that makes an nnx module, got one that gives {made!r}.")
    made.eval()
    graph, shapes, others = nnx.split(made, nnx.Param, ...)  # others is what dropout would draw from
    if kept := [type(leaf).__name__ for _, leaf in nnx.to_flat_state(others) if not isinstance(leaf, nnx.RngState)]:
        raise InputError(STATEFUL.format(type(made).__name__, ", ".join(sorted(set(kept))), "LayerNorm"))

    def init(key: Array) -> Any:
        return nnx.to_pure_dict(nnx.state(make(nnx.Rngs(key)), nnx.Param))

    def apply(weights: Any, x: Array) -> Array:
        state = jax.tree.map(lambda leaf: leaf, shapes)
        nnx.replace_by_pure_dict(state, weights)
        outputs: Array = nnx.merge(graph, state, others)(x)
        return outputs

    return Model(init, apply, loss=loss, input_shape=shape)
