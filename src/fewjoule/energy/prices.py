"""What one equation of a jaxpr costs: the rules behind `fewjoule.energy.counts`; `primitives.toml` says whose they are.

Equations outside the table (gathers, sorts, pooling, special functions) are priced by XLA's own count for that one
equation. Where XLA cannot see inside either (other LAPACK calls, callbacks), it is refused rather than taken as 0.
"""

import math
import tomllib
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Literal

from fewjoule.errors import InputError
from fewjoule.models.product import summed_axes

Price = dict[str, int]

_TABLE = tomllib.loads(resources.files(__package__).joinpath("primitives.toml").read_text(encoding="utf-8"))
_WORK, _BYTES = ({name: rule for rule in _TABLE[of] for name in _TABLE[of][rule]} for of in ("work", "bytes"))

# Threefry-2x32 (Salmon et al. 2011) makes two words from 20 rounds of add, rotate (two shifts and an or) and xor, six
# key injections of two adds, five of them with a counter, and a key schedule of two xors.
_THREEFRY_BLOCK = 20 * 5 + 6 * 2 + 5 + 2


def price(equation: JaxprEqn) -> Price:
    """Operations and bytes of one equation that calls no other program."""
    if _WORK.get(equation.primitive.name) == "free":
        return {}
    return {**_work(equation), "bytes": _bytes(equation)}


def _work(equation: JaxprEqn) -> Price:
    unit, parameters = _unit(equation), equation.params
    out = sum(_size(v) for v in equation.outvars)
    match _WORK.get(equation.primitive.name, equation.primitive.name):
        case "moved":
            return {}
        case "arithmetic":
            return {unit: out}
        case "transcendental":
            return {"flops": out, "transcendentals": out}
        case "logistic":  # 1 / (1 + exp(-x))
            return {"flops": 4 * out, "transcendentals": out}
        case "convert_element_type":
            same = _aval(equation.invars[0]).dtype == _aval(equation.outvars[0]).dtype
            return {} if same else {unit: out}
        case "integer_pow":
            return {unit: out * _multiplications(parameters["y"])}
        case "reduction":
            return {unit: _size(equation.invars[0]) - out}
        case "cumulative":  # XLA counts length² here before it optimises
            length = _aval(equation.invars[0]).shape[parameters["axis"]]
            return {unit: out // length * (length - 1) if length else 0}
        case "dot_general":
            (contracted, _), _ = parameters["dimension_numbers"]
            shape = _aval(equation.invars[0]).shape
            return {unit: 2 * out * math.prod(shape[d] for d in contracted)}
        case "dense_product":  # fewjoule.models.product
            return {unit: 2 * out * _aval(equation.invars[0]).shape[summed_axes(parameters["form"])[0]]}
        case "conv_general_dilated":
            return {unit: _convolution(equation)}
        case "top_k":  # a sort, as XLA counts it; XLA itself counts nothing here
            size, last = _size(equation.invars[0]), _aval(equation.invars[0]).shape[-1]
            return {unit: size * max(last - 1, 0).bit_length()}
        case "cholesky":  # n (n + 1) (2 n + 1) / 6 of n x n: products, sums, n (n - 1) / 2 divisions, n roots
            n = _aval(equation.invars[0]).shape[-1]
            return {unit: out * (n + 1) * (2 * n + 1) // (6 * n) if n else 0}
        case "triangular_solve":  # n of n x n for every number of the result
            return {unit: out * _aval(equation.invars[0]).shape[-1]}
        case "random":  # a new key is one block of two words
            words = {"random_bits": parameters.get("bit_width", 0) / 32, "threefry2x32": 1.0}
            blocks = math.ceil(out * words.get(equation.primitive.name, 2.0) / 2)
            return {"integers": blocks * _THREEFRY_BLOCK}
    return _by_xla(equation)


def _aval(variable: Any) -> Any:
    return variable.aval


def _size(variable: Any) -> int:
    return math.prod(variable.aval.shape)


def _unit(equation: JaxprEqn) -> str:
    types = [_aval(v).dtype for v in (*equation.invars, *equation.outvars)]
    return "flops" if any(jnp.issubdtype(t, jnp.inexact) for t in types) else "integers"


def _bytes(equation: JaxprEqn) -> int:
    def size(variable: Any) -> int:
        if isinstance(variable, Literal):
            return 0
        return _size(variable) * int(getattr(variable.aval.dtype, "itemsize", 8))

    operands, results = [size(v) for v in equation.invars], sum(map(size, equation.outvars))
    match _BYTES.get(equation.primitive.name):
        case "window":
            return 2 * results + sum(operands[1:])
        case "update":  # the untouched part of the target stays where it is
            update = 1 if equation.primitive.name == "dynamic_update_slice" else 2
            return operands[update] + sum(operands[1:])
    return results + sum(operands)


def _multiplications(exponent: int) -> int:
    """Multiplications of a power by repeated squaring, and one division for a negative exponent."""
    n = abs(exponent)
    if n == 0:
        return 0
    return n.bit_length() - 1 + n.bit_count() - 1 + (1 if exponent < 0 else 0)


def _convolution(equation: JaxprEqn) -> int:
    """Two per product of an input that exists with a weight; products with padding are not counted."""
    p, (left, right) = equation.params, (_aval(v).shape for v in equation.invars)
    dims = p["dimension_numbers"]
    outputs = _aval(equation.outvars[0]).shape
    products = left[dims.lhs_spec[0]] // p["batch_group_count"] * right[dims.rhs_spec[0]] * right[dims.rhs_spec[1]]
    for i, (low, _) in enumerate(p["padding"]):
        side, taps, steps = left[dims.lhs_spec[2 + i]], right[dims.rhs_spec[2 + i]], outputs[dims.out_spec[2 + i]]
        at = np.arange(steps)[:, None] * p["window_strides"][i] + np.arange(taps) * p["rhs_dilation"][i] - low
        spread = p["lhs_dilation"][i]
        products *= int(((at >= 0) & (at % spread == 0) & (at // spread < side)).sum())
    return 2 * products


_LOOP_WORD = "stablehlo.while"
_by_xla_cache: dict[Any, Price] = {}


def _by_xla(equation: JaxprEqn) -> Price:
    key = (equation.primitive, str(equation.params), tuple(str(v.aval) for v in equation.invars))
    if key not in _by_xla_cache:
        _by_xla_cache[key] = _ask_xla(equation)
    return _by_xla_cache[key]


def _ask_xla(equation: JaxprEqn) -> Price:
    bind: Any = equation.primitive.bind

    def alone(*operands: Any) -> Any:
        return bind(*operands, **equation.params)

    struct: Any = jax.ShapeDtypeStruct
    shapes = [struct(_aval(v).shape, _aval(v).dtype) for v in equation.invars]
    refusal = InputError(
        f"the operations of JAX's {equation.primitive.name!r} cannot be counted; write the function without it."
    )
    try:
        lowered = jax.jit(alone).lower(*shapes)
        cost = lowered.cost_analysis() or {}
        text = lowered.as_text()
    except Exception as error:  # whatever XLA says, there is no count
        raise refusal from error
    if "custom_call" in text or _LOOP_WORD in text or cost.get("flops", 0) < 0:
        raise refusal
    plain, special = int(cost.get("flops", 0)), int(cost.get("transcendentals", 0))
    if plain + special == 0 and "chlo." in text:  # kept whole until compiled, so not looked into
        raise refusal
    if _unit(equation) == "integers":
        return {"integers": plain + special}
    return {"flops": plain + special, "transcendentals": special}
