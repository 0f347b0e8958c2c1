"""What one equation of a jaxpr costs: the table behind `fewjoule.energy.counts`.

Equations outside the table (gathers, sorts, pooling, special functions) are priced by XLA's own count for that one
equation. Where XLA cannot see inside either (LAPACK calls, callbacks), the count is refused rather than taken as 0.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Literal

from fewjoule.errors import InputError

Price = dict[str, int]

# Moved or renamed, not computed.
_FREE = frozenset({
    "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "iota", "copy", "copy_p", "stop_gradient", "split",
    "bitcast_convert_type", "device_put", "random_wrap", "random_unwrap", "optimization_barrier", "empty",
})  # fmt: skip
_MOVES = frozenset({"transpose", "slice", "concatenate", "stack", "pad", "rev", "dynamic_slice"})
_WINDOWS = frozenset({"dynamic_slice", "gather"})  # read only what they return
_UPDATES = frozenset({"dynamic_update_slice", "scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"})
_ARITHMETIC = frozenset({
    "add", "sub", "mul", "div", "rem", "max", "min", "neg", "abs", "sign", "floor", "ceil", "round", "add_any",
    "square", "select_n", "clamp", "and", "or", "xor", "not", "eq", "ne", "lt", "le", "gt", "ge", "is_finite",
    "shift_left", "shift_right_logical", "shift_right_arithmetic", "population_count", "clz",
})  # fmt: skip
_TRANSCENDENTAL = frozenset({
    "exp", "exp2", "expm1", "log", "log1p", "tanh", "sin", "cos", "tan", "sqrt", "rsqrt", "cbrt", "pow", "atan2", "erf",
})  # fmt: skip
_REDUCTIONS = frozenset({
    "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor",
})  # fmt: skip
_CUMULATIVE = frozenset({"cumsum", "cumprod", "cummax", "cummin"})

# Threefry-2x32 (Salmon et al. 2011) makes two words from 20 rounds of add, rotate (two shifts and an or) and xor, six
# key injections of two adds, five of them with a counter, and a key schedule of two xors.
_THREEFRY_BLOCK = 20 * 5 + 6 * 2 + 5 + 2
_RANDOM = frozenset({"random_bits", "random_split", "random_fold_in", "random_seed", "threefry2x32"})


def price(equation: JaxprEqn) -> Price:
    """Operations and bytes of one equation that calls no other program."""
    if equation.primitive.name in _FREE:
        return {}
    return {**_work(equation), "bytes": _bytes(equation)}


def _work(equation: JaxprEqn) -> Price:
    name, unit, parameters = equation.primitive.name, _unit(equation), equation.params
    out = sum(_size(v) for v in equation.outvars)
    if name in _MOVES:
        return {}
    if name in _ARITHMETIC:
        return {unit: out}
    if name in _TRANSCENDENTAL:
        return {"flops": out, "transcendentals": out}
    if name == "logistic":  # 1 / (1 + exp(-x))
        return {"flops": 4 * out, "transcendentals": out}
    if name == "convert_element_type":
        same = _aval(equation.invars[0]).dtype == _aval(equation.outvars[0]).dtype
        return {} if same else {unit: out}
    if name == "integer_pow":
        return {unit: out * _multiplications(parameters["y"])}
    if name in _REDUCTIONS:
        return {unit: _size(equation.invars[0]) - out}
    if name in _CUMULATIVE:  # XLA counts length² here before it optimises
        length = _aval(equation.invars[0]).shape[parameters["axis"]]
        return {unit: out // length * (length - 1) if length else 0}
    if name == "dot_general":
        (contracted, _), _ = parameters["dimension_numbers"]
        shape = _aval(equation.invars[0]).shape
        return {unit: 2 * out * math.prod(shape[d] for d in contracted)}
    if name == "conv_general_dilated":
        return {unit: _convolution(equation)}
    if name == "top_k":  # a sort, as XLA counts it; XLA itself counts nothing here
        size, last = _size(equation.invars[0]), _aval(equation.invars[0]).shape[-1]
        return {unit: size * max(last - 1, 0).bit_length()}
    if name in _RANDOM:
        return {"integers": _random(equation)}
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
    name = equation.primitive.name
    if name in _WINDOWS:
        return 2 * results + sum(operands[1:])
    if name in _UPDATES:  # the untouched part of the target stays where it is
        update = 1 if name == "dynamic_update_slice" else 2
        return 2 * operands[update] + sum(operands[1:]) - operands[update]
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


def _random(equation: JaxprEqn) -> int:
    name, out = equation.primitive.name, sum(_size(v) for v in equation.outvars)
    if name == "random_bits":
        words = out * equation.params["bit_width"] / 32
    elif name == "threefry2x32":
        words = out
    else:  # a new key is one block of two words
        words = 2 * out
    return math.ceil(words / 2) * _THREEFRY_BLOCK


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
