"""A jitted program with its arguments: compiled when asked, and run with a meter around its execution alone.

Compiling is not part of what a device spends.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from fewjoule.energy.counts import count
from fewjoule.energy.metering import Around

COMPILER_OPTIONS = {
    name: value
    for name, value in {
        "xla_backend_optimization_level": 1,
        "xla_cpu_parallel_codegen_split_count": os.cpu_count() or 1,
    }.items()
    if name not in os.environ.get("XLA_FLAGS", "")
}
"""A third less compile time than XLA's default level 3, at the same speed: the work is in matrix products. And a tenth
less where a program is cut into as many parts as there are cores, not 32. What XLA_FLAGS says goes before."""


class Program:
    """`jitted(*static, *arrays)`, still to be called. Once it is compiled, `arrays` lie on the devices that run it."""

    def __init__(self, jitted: Any, static: tuple[Any, ...], arrays: tuple[Any, ...]) -> None:
        self._jitted, self._static, self.arrays = jitted, static, arrays
        self._compiled: Any = None

    def compile(self) -> None:
        """Compile without running; several programs may compile at once in threads."""
        if self._compiled is None:
            self._compiled = self._jitted.lower(*self._static, *self.arrays).compile()
            self.arrays = jax.tree.map(_placed, self.arrays, self._compiled.input_shardings[0])

    def __call__(self, *arrays: Any) -> Any:
        """Run it on other arrays of the same shapes."""
        return self._jitted(*self._static, *arrays) if self._compiled is None else self._compiled(*arrays)

    def flops(self) -> int:
        """Floating-point operations of one run."""
        return count(partial(self._jitted.__wrapped__, *self._static), *self.arrays).flops

    def run(self, around: Around | None = None, work: Callable[[], Any] | None = None) -> Any:
        """Run once, or do `work`, which runs it as often as it must; with `around`, compile first and hand it that."""
        if around is None:
            return self(*self.arrays) if work is None else work()
        self.compile()
        once = work or (lambda: jax.block_until_ready(self(*self.arrays)))  # type: ignore[no-untyped-call]
        return around(once)


def _placed(array: Any, where: Any) -> Any:
    """The array on these devices; cut by NumPy, since JAX would compile a program for every shape that it cuts."""
    return array if isinstance(array, jax.ShapeDtypeStruct) else jax.device_put(np.asarray(array), where)
