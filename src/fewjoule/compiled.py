"""Run a jitted program with a meter around its execution alone: compiling is not part of what a device spends."""

from collections.abc import Callable
from typing import Any

import jax

Execute = Callable[[], Any]
Around = Callable[[Execute], Any]
"""Takes a function that runs the compiled program and waits for its result; gives back that result."""


def run_compiled(program: Any, static: tuple[Any, ...], arrays: tuple[Any, ...], around: Around | None) -> Any:
    """Call `program(*static, *arrays)`; with `around`, compile first and hand it the execution."""
    if around is None:
        return program(*static, *arrays)
    compiled = program.lower(*static, *arrays).compile()
    return around(lambda: jax.block_until_ready(compiled(*arrays)))
