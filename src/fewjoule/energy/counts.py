"""Operation counts of a JAX function, from its jaxpr: exact, without running it.

A `scan` (and a `fori_loop` with fixed bounds) counts its body times its length, a `cond` its larger branch, a call
what it calls. XLA's own `cost_analysis()` counts a loop's body once, whatever its length; where there is no loop the
two agree (`docs/energy.md` states how far). A `while` whose length depends on data has no count and is refused.

What a FLOP is: one for every element of the result of a floating-point operation (arithmetic, comparison, selection,
conversion; a transcendental function too), 2 m n k for a matrix product, the number of combinations for a reduction.
Operations on integers and booleans (random numbers, indices) are counted apart. Dead code is not counted.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.interpreters import partial_eval

from fewjoule.energy.prices import price
from fewjoule.errors import InputError


class Counts(NamedTuple):
    """Work of a program.

    `flops` are floating-point operations, of which `transcendentals` are functions such as exp; `integers` are
    operations on whole numbers and booleans. `bytes` is the memory traffic if every operation read its operands and
    wrote its result: an upper bound, since a compiler fuses operations.
    """

    flops: int = 0
    bytes: int = 0
    transcendentals: int = 0
    integers: int = 0

    def plus(self, other: "Counts") -> "Counts":
        return Counts(*(a + b for a, b in zip(self, other, strict=True)))

    def times(self, repeats: int) -> "Counts":
        return Counts(*(repeats * a for a in self))


def count(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Counts:
    """Count one call of a function of arrays; the arguments may be arrays or `jax.ShapeDtypeStruct`s."""
    return _walk(without_dead_code(jax.make_jaxpr(function)(*args, **kwargs).jaxpr))


def count_once(function: Callable[..., Any], *args: Any) -> Counts:
    """As `count`, but the body of every loop once: how large the pieces are that a processor is handed."""
    return _walk(without_dead_code(jax.make_jaxpr(function)(*args).jaxpr), repeats=False)


def without_dead_code(jaxpr: Jaxpr) -> Jaxpr:
    """The program without what its results do not need, inside loops too; this is what JAX compiles."""
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)[0]


# The parameter that holds the called program, for each primitive that runs it exactly once.
_CALLS = {
    "jit": "jaxpr", "pjit": "jaxpr", "checkpoint": "jaxpr", "remat2": "jaxpr", "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
}  # fmt: skip


def _walk(jaxpr: Jaxpr, repeats: bool = True) -> Counts:
    total = Counts()
    for equation in jaxpr.eqns:
        total = total.plus(_equation(equation, repeats))
    return total


def _equation(equation: JaxprEqn, repeats: bool) -> Counts:
    name = equation.primitive.name
    if name == "scan":
        return _walk(_open(equation.params["jaxpr"]), repeats).times(equation.params["length"] if repeats else 1)
    if name == "cond":
        branches = [_walk(_open(branch), repeats) for branch in equation.params["branches"]]
        return max(branches, key=lambda counts: (counts.flops + counts.integers, counts.bytes))
    if name == "while":
        raise InputError(
            "this program has a while loop whose length depends on data, so its operations cannot be counted; use "
            "lax.scan, or lax.fori_loop with fixed bounds."
        )
    if name in _CALLS:
        return _walk(_open(equation.params[_CALLS[name]]), repeats)
    return Counts(**price(equation))


def _open(program: Any) -> Jaxpr:
    return program.jaxpr if isinstance(program, ClosedJaxpr) else program
