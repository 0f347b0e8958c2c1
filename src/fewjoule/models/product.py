"""x @ W, as a dense layer needs it: its gradients are products that CPUs do fast.

Plain autodiff gives the gradient of W as a product that runs down the columns of both operands (x' d). XLA leaves that
one out of its fast small products; of a transposed copy of x it takes it: 1.3 to 3 times as fast for layers of 8 to 64
units, copy included, and no slower for large ones (bench/products.py). XLA would undo a plain transposition, hence the
barrier. A derivative of any order is made of three forms, each of which is bilinear:

    "nn"  a b        derivative in a: "nt" of (g, b)      in b: "tn" of (a, g)
    "nt"  a b'                        "nn" of (g, b)            "tn" of (g, a)
    "tn"  a' b                        "nt" of (b, g)            "nn" of (a, g)
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

product_p = Primitive("dense_product")


def product(x: Array, weight: Array) -> Array:
    """x [rows, in] @ weight [in, out]."""
    kind = jnp.promote_types(x.dtype, weight.dtype)
    return _bind(x.astype(kind), weight.astype(kind), "nn")


def turned_product(x: Array, across: Array) -> Array:
    """x [rows, in] @ across' for weights [out, in]."""
    kind = jnp.promote_types(x.dtype, across.dtype)
    return _bind(x.astype(kind), across.astype(kind), "nt")


def _bind(a: Array, b: Array, form: str) -> Array:
    out: Array = product_p.bind(a, b, form=form)  # type: ignore[no-untyped-call]
    return out


def summed_axes(form: str) -> tuple[int, int]:
    """Which of the last two axes of a and of b are summed over."""
    return -2 if form[0] == "t" else -1, -1 if form[1] == "t" else -2


def _computed(a: Array, b: Array, *, form: str) -> Array:
    """With any equal leading axes."""
    if form == "tn":
        a, form = jax.lax.optimization_barrier(jnp.swapaxes(a, -1, -2)), "nn"  # type: ignore[no-untyped-call]
    lead, (over_a, over_b) = tuple(range(a.ndim - 2)), summed_axes(form)
    return jax.lax.dot_general(a, b, (((over_a % a.ndim,), (over_b % b.ndim,)), (lead, lead)))


def _shape(a: Any, b: Any, *, form: str) -> Any:
    over_a, over_b = summed_axes(form)
    if a.shape[over_a] != b.shape[over_b] or a.shape[:-2] != b.shape[:-2]:
        raise TypeError(f"a product ({form}) of {a.shape} and {b.shape} has no meaning: sizes differ")
    free_a, free_b = a.shape[-3 - over_a], b.shape[-3 - over_b]
    return jax.core.ShapedArray((*a.shape[:-2], free_a, free_b), a.dtype)


def _of_a(g: Array, a: Any, b: Array, *, form: str) -> Array:
    return _bind(b, g, "nt") if form == "tn" else _bind(g, b, {"nn": "nt", "nt": "nn"}[form])


def _of_b(g: Array, a: Array, b: Any, *, form: str) -> Array:
    return _bind(g, a, "tn") if form == "nt" else _bind(a, g, {"nn": "tn", "tn": "nn"}[form])


def _batched(operands: Any, axes: Any, *, form: str) -> tuple[Array, int]:
    """Both have the new axis: it leads. One has it: JAX's own product, in which it is one more free axis."""
    a, b = (x if at is None else jnp.moveaxis(x, at, 0) for x, at in zip(operands, axes, strict=True))
    if None not in axes:
        return _bind(a, b, form), 0
    lead, (over_a, over_b) = min(a.ndim, b.ndim) - 2, summed_axes(form)
    lead_a, lead_b = (tuple(range(x.ndim - 2 - lead, x.ndim - 2)) for x in (a, b))
    out = jax.lax.dot_general(a, b, (((over_a % a.ndim,), (over_b % b.ndim,)), (lead_a, lead_b)))
    return out, lead if axes[1] is None else lead + 1


product_p.def_impl(jax.jit(_computed, static_argnames="form"))  # type: ignore[no-untyped-call]
product_p.def_abstract_eval(_shape)  # type: ignore[no-untyped-call]
ad.defbilinear(product_p, _of_a, _of_b)  # type: ignore[no-untyped-call]
batching.primitive_batchers[product_p] = _batched
mlir.register_lowering(product_p, mlir.lower_fun(_computed, multiple_results=False))
