"""A jitted program with its arguments: compiled when asked, and run with a meter around its execution alone.

Compiling is not part of what a device spends.
"""

import contextlib
import gc
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from fewjoule.energy.counts import count
from fewjoule.energy.metering import Around
from fewjoule.files import traced_folder
from fewjoule.training.mesh import lone_device
from fewjoule.training.store import flags
from fewjoule.training.traced import flat_program


def _unless_told(options: dict[str, Any]) -> dict[str, Any]:
    """Those of which XLA_FLAGS, which goes before, says nothing."""
    return {name: value for name, value in options.items() if name not in os.environ.get("XLA_FLAGS", "")}


COMPILER_OPTIONS = _unless_told(
    {"xla_backend_optimization_level": 1, "xla_cpu_parallel_codegen_split_count": os.cpu_count() or 1}
)
"""A third less compile time than XLA's default level 3, at the same speed: the work is in matrix products. And a tenth
less where a program is cut into as many parts as there are cores, not 32."""
BRIEF_OPTIONS = COMPILER_OPTIONS | _unless_told({"xla_cpu_use_fusion_emitters": False})
"""For what runs for a moment and is never metered: half the compile time, of code that is up to a third slower (it does
not vectorise what is done in place)."""
ONE_THREAD: dict[str, str | bool] = {"xla_cpu_multi_thread_eigen": False}
"""For a lone device: no kernel is cut into parts for several threads."""


class Program:
    """`jitted(*static, *arrays)`, still to be called. Once it is compiled, `arrays` lie on the devices that run it.

    A `small` one, of one device, keeps to one thread where JAX lets it: its kernels are not worth handing over. A
    `brief` one is jitted with `BRIEF_OPTIONS`.
    """

    def __init__(
        self, jitted: Any, static: tuple[Any, ...], arrays: tuple[Any, ...], small: bool = False, brief: bool = False
    ) -> None:
        self._jitted, self._static, self.arrays, self._brief = jitted, static, arrays, brief
        self._compiled: Callable[..., Any] | None = None
        self._device = lone_device() if small and not jax.config.jax_disable_jit else None  # type: ignore[attr-defined]

    def compile(self) -> None:
        """Compile without running; several programs may compile at once in threads."""
        if self._compiled is None:
            leaves, tree = jax.tree.flatten(self.arrays)
            shapes = tuple(map(_shape, leaves))
            self._compiled, where = _compiled(
                self._jitted, self._static, tree, shapes, self._device, self._brief, tuple(flags())
            )
            self.arrays = jax.tree.unflatten(tree, [_placed(*both) for both in zip(leaves, where, strict=True)])

    def __call__(self, *arrays: Any) -> Any:
        """Run it on other arrays of the same shapes."""
        return self._jitted(*self._static, *arrays) if self._compiled is None else self._compiled(*arrays)

    def flops(self) -> int:
        """Floating-point operations of one run."""
        return count(partial(self._jitted.__wrapped__, *self._static), *self.arrays).flops

    def run(self, around: Around | None = None, work: Callable[[], Any] | None = None) -> Any:
        """Run once, or do `work`, which runs it as often as it must; with `around`, compile first and hand it that.

        Where traced programs are kept, it is compiled from them.
        """
        if around is not None or traced_folder() is not None or self._device is not None:
            self.compile()  # and put the arrays in place, once
        if around is None:
            return self(*self.arrays) if work is None else work()
        once = work or (lambda: jax.block_until_ready(self(*self.arrays)))  # type: ignore[no-untyped-call]
        return around(once)


@lru_cache(maxsize=64)
def _compiled(
    jitted: Any, static: tuple[Any, ...], tree: Any, shapes: tuple[Any, ...], device: Any, brief: bool,
    flags: tuple[str, ...],
) -> tuple[Any, list[Any]]:  # fmt: skip
    """The compiled function, and where its arrays belong, leaf by leaf; one for all programs that are alike."""
    kept = flat_program(jitted, static, tree, shapes)
    options = None
    if device is not None:
        here = jax.sharding.SingleDeviceSharding(device)
        shapes = tuple(jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=here) for s in shapes)  # type: ignore[no-untyped-call]
        options = ONE_THREAD
    if kept is None:
        whole = jitted.lower(*static, *jax.tree.unflatten(tree, shapes)).compile(options)
        return whole, tree.flatten_up_to(whole.input_shardings[0])  # None of what is not used
    function, placed_in = kept
    program = (
        jax.jit(function, keep_unused=True, compiler_options=BRIEF_OPTIONS if brief else COMPILER_OPTIONS)
        .lower(*shapes)
        .compile(options)
    )
    return lambda *arrays: placed_in(program(*jax.tree.leaves(arrays))), list(program.input_shardings[0])


def _shape(array: Any) -> Any:
    return jax.ShapeDtypeStruct(np.shape(array), jax.dtypes.canonicalize_dtype(array.dtype))  # type: ignore[no-untyped-call]


def _placed(array: Any, where: Any) -> Any:
    """The array on these devices; cut by NumPy, since JAX would compile a program for every shape that it cuts."""
    return array if isinstance(array, jax.ShapeDtypeStruct) else jax.device_put(np.asarray(array), where)


def compile_all(jobs: Iterable[Callable[[], Any]], told: Callable[[], None] = lambda: None) -> None:
    """Do what compiles programs, on all cores at once; after each, `told`."""
    with _uncollected(), ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting = [pool.submit(job) for job in jobs]
        try:
            for done in as_completed(waiting):
                done.result()
                told()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's garbage collector, which has nothing to find in a trace, and took a second of a study's."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
