"""A traced program as bytes, and back: StableHLO by `jax.export`, with the structure of its results.

From a jitted function, its settings and the shapes of its arrays to what XLA compiles; tracing, which takes longer than
reading compiled code, is skipped where `store` has the bytes.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.export
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as Spec

from fewjoule.training import store
from fewjoule.training.mesh import mesh_of

Structure = Any
"""Of results, as JSON: null, a leaf's position, {"dict": ...}, or [the name of a tuple's class, its parts]."""


class NoTextError(Exception):
    """A structure that has no such text."""


def flat_program(jitted: Any, static: tuple[Any, ...], tree: Any, shapes: tuple[Any, ...]) -> Any:
    """The function of the arrays' leaves, traced or read, and a function that puts its results in place; None where it
    is not one to keep."""
    name = store.name_for(f"{jitted.__module__}.{jitted.__qualname__}", static, str(tree), shapes)
    if name is None:
        return None
    return _read(store.read(name)) or _made(name, jitted, static, tree, shapes)


def _made(name: str, jitted: Any, static: tuple[Any, ...], tree: Any, shapes: tuple[Any, ...]) -> Any:
    results = None

    def flat(*leaves: Any) -> list[Any]:
        nonlocal results
        given, results = jax.tree.flatten(jitted.__wrapped__(*static, *jax.tree.unflatten(tree, leaves)))
        return given

    try:
        exported = jax.export.export(jax.jit(flat))(*shapes)
        structure = structure_of(jax.tree.unflatten(results, range(len(exported.out_avals))))
    except (NoTextError, NotImplementedError, ValueError):  # jax.export cannot say it: some custom calls, callbacks
        return None
    store.keep(name, json.dumps(structure).encode() + b"\n" + exported.serialize())
    return _callable(exported), lambda leaves: jax.tree.unflatten(results, leaves)


def _read(content: bytes | None) -> Any:
    if not content:
        return None
    text, _, program = content.partition(b"\n")
    try:
        structure = json.loads(text)
        exported = jax.export.deserialize(bytearray(program))
        placed_in(structure, range(len(exported.out_avals)))
    except Exception:  # whatever a damaged file makes the reader say; it is written anew
        return None
    return _callable(exported), lambda leaves: placed_in(structure, leaves)


def _callable(exported: Any) -> Callable[..., Any]:
    """What runs it on as many devices as it was traced for; XLA chooses how its arguments lie on them."""
    if exported.nr_devices == 1:
        return exported.call
    mesh = mesh_of(exported.nr_devices)

    def on_devices(first: Any, *rest: Any) -> Any:
        anyhow = NamedSharding(mesh, Spec(*[Spec.UNCONSTRAINED] * first.ndim))  # type: ignore[no-untyped-call]
        first = jax.lax.with_sharding_constraint(first, anyhow)  # type: ignore[no-untyped-call]
        return exported.call(first, *rest)

    return on_devices


def structure_of(value: Any) -> Structure:
    """The text of nested dicts, tuples and named tuples whose leaves are numbers."""
    kind = type(value)
    if value is None or kind is int:
        return value
    if kind is dict and all(type(key) is str for key in value):
        return {"dict": {key: structure_of(part) for key, part in value.items()}}
    name = "list" if kind is list else "tuple"
    if kind not in (list, tuple):
        name = f"{kind.__module__}:{kind.__qualname__}"
        if _class(name) is not kind:
            raise NoTextError(name)
    return [name, [structure_of(part) for part in value]]


def placed_in(structure: Structure, leaves: Any) -> Any:
    """The value of such a text, with these leaves."""
    if structure is None:
        return None
    if isinstance(structure, int):
        return leaves[structure]
    if isinstance(structure, dict):
        return {key: placed_in(part, leaves) for key, part in structure["dict"].items()}
    name, parts = structure
    placed = [placed_in(part, leaves) for part in parts]
    if name == "list":
        return placed
    return tuple(placed) if name == "tuple" else _class(name)(*placed)


def _class(name: str) -> Any:
    """A named tuple that has been imported already: nothing is imported, and nothing else is called, for a text."""
    module, _, path = name.partition(":")
    kind = getattr(sys.modules.get(module), path, None)
    ours = module.split(".")[0] in ("fewjoule", "optax")
    if not (ours and isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")):
        raise NoTextError(name)
    return kind
