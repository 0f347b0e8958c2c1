"""What tracing found out, kept on disk: the same code, settings and shapes would give the same again.

From a value's fingerprint to a file under the cache folder, whose name is the hash of all that its content follows
from. Only what this package's own code makes is kept: of other code nobody could tell whether it has changed.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import lru_cache, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import jax

from fewjoule.errors import InputError
from fewjoule.files import traced_folder, write_atomically

Number = TypeVar("Number", int, tuple[int, ...])
MOST_FILES = 4000
"""About 100 MB. Beyond it the tenth that was not used for longest is deleted."""
LARGEST_BYTES = 64 << 20
FLAGS = (
    "jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion", "jax_numpy_rank_promotion", "jax_debug_nans", "jax_debug_infs", "jax_disable_jit",
)  # fmt: skip
"""JAX's settings that change what is traced."""


class UnknownOriginError(Exception):
    """It cannot be told from a value what it will do."""


def fingerprint(value: Any) -> str:
    """A text that is the same for two values only if they act alike in a program; `UnknownOriginError` where that
    cannot be told, as of a user's function. A model or a method says by its `origin` what it was made from."""
    kind = type(value)
    if value is None or isinstance(value, bool | int | float | str):
        return f"{kind.__name__} {value!r}"
    if isinstance(value, jax.ShapeDtypeStruct):
        return f"{value.shape} {value.dtype} {value.weak_type}"
    origin = getattr(value, "origin", None)
    if isinstance(origin, str):
        return f"{kind.__module__}.{kind.__qualname__} {origin}"
    if kind is not tuple and not kind.__module__.startswith("fewjoule."):
        raise UnknownOriginError(f"{kind.__module__}.{kind.__qualname__}")
    if isinstance(value, tuple):
        parts = list(value)
    elif is_dataclass(value):
        parts = [getattr(value, field.name) for field in fields(value)]
    else:
        raise UnknownOriginError(f"{kind.__module__}.{kind.__qualname__}")
    return f"{kind.__module__}.{kind.__qualname__}({', '.join(map(fingerprint, parts))})"


def name_for(what: str, *parts: Any) -> str | None:
    """The name under which `what` of these parts is kept; None where nothing is, or nobody can tell what it is."""
    if traced_folder() is None:
        return None
    try:
        told = [what, *map(fingerprint, parts), *_surroundings()]
    except UnknownOriginError:
        return None
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


def read(name: str) -> bytes | None:
    """What is kept under a name."""
    folder = traced_folder()
    if folder is None:
        return None
    try:
        if (folder / name).stat().st_size > LARGEST_BYTES:
            return None
        os.utime(folder / name)
        return (folder / name).read_bytes()
    except OSError:
        return None


def keep(name: str, content: bytes) -> None:
    """Keep it, where the disk has room."""
    folder = traced_folder()
    if folder is None or len(content) > LARGEST_BYTES:
        return
    with contextlib.suppress(InputError, OSError):
        write_atomically(folder / name, content, force=True)
        kept = list(folder.iterdir())
        if len(kept) > MOST_FILES:
            for file in sorted(kept, key=lambda file: file.stat().st_mtime)[: MOST_FILES // 10]:
                file.unlink()


def remembered(count: Callable[..., Number]) -> Callable[..., Number]:
    """A function that counts something of hashable arguments, from memory or from disk where it was counted before."""

    @lru_cache
    @wraps(count)
    def found(*arguments: Any) -> Number:
        name = name_for(f"{count.__module__}.{count.__qualname__}", *arguments)
        kept = None if name is None else _number(read(name))
        if kept is not None:
            return kept  # type: ignore[return-value]
        counted = count(*arguments)
        if name is not None:
            keep(name, json.dumps(counted).encode())
        return counted

    return found


def _number(content: bytes | None) -> int | tuple[int, ...] | None:
    try:
        value = json.loads(content or b"")
    except ValueError:  # cut short, or somebody else's
        return None
    numbers = value if isinstance(value, list) else [value]
    if not all(type(number) is int for number in numbers):
        return None
    return tuple(value) if isinstance(value, list) else value


def _surroundings() -> list[str]:
    """What else decides how a program is traced."""
    return [_code(), f"{jax.default_backend()} {jax.local_device_count()}", *flags()]


def flags() -> list[str]:
    """What JAX is told now of how to trace."""
    return [f"{name} {getattr(jax.config, name)}" for name in FLAGS]


@lru_cache
def _code() -> str:
    """The hash of this package's source and the versions of what it calls while it traces."""
    digest, root = hashlib.sha256(), Path(__file__).parents[1]
    sources = sorted(root.rglob("*.py"))
    if not sources:  # compiled files alone, say
        raise UnknownOriginError("fewjoule")
    for path in sources:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(content)}\n".encode() + content)
    versions = " ".join(f"{name} {version(name)}" for name in ("jax", "jaxlib", "numpy", "optax"))
    return f"{digest.hexdigest()} {versions}"
