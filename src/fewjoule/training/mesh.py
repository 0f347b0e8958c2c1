"""Rows of independent work (seeds, agents, new tasks) over all devices of this process: no device waits for another."""

import contextlib
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as Spec

AXIS = "devices"
SPLIT_FLOPS = 20_000_000
"""Of one device. Where there is so much work for several, it is split over them: about a millisecond of a core, beside
the tenths that devices take to meet."""


def use_all_cores() -> None:
    """Give JAX one device for each core that this process may use, unless it computes already or somebody has said how
    many: `JAX_NUM_CPU_DEVICES=1` in the environment keeps everything on one."""
    flags = os.environ.get("XLA_FLAGS", "")
    if jax.config.values["jax_num_cpu_devices"] != -1 or "host_platform_device_count" in flags:
        return
    with contextlib.suppress(RuntimeError):  # JAX computes already
        jax.config.update("jax_num_cpu_devices", _cores())  # type: ignore[no-untyped-call]


def _cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@lru_cache
def lone_device() -> Any:
    """A device whose programs keep to one thread, for rounds too small to share; None where JAX has no such device.

    XLA hands the kernels of a program to the threads of all cores, and small kernels cost less than handing them over:
    MAML of 25 agents with 10 samples took 1.4 times as long and 1.7 times the CPU seconds (bench/threads.py). XLA has
    no setting for it. A second client, with one thread, has nobody to hand kernels to.
    """
    if jax.default_backend() != "cpu" or _cores() == 1:
        return None
    before = os.environ.get("PJRT_NPROC")
    os.environ["PJRT_NPROC"] = "1"  # read when the client is made
    try:
        from jaxlib.xla_client import make_cpu_client

        client: Any = make_cpu_client(num_devices=1)
        return client.local_devices()[0]
    except (ImportError, TypeError, RuntimeError):  # another jaxlib, whose programs run as they would without it
        return None
    finally:
        os.environ.pop("PJRT_NPROC")
        if before is not None:
            os.environ["PJRT_NPROC"] = before


def over_devices(
    function: Callable[..., Any], rows: int, split: Sequence[bool], most: int | None = None
) -> Callable[..., Any]:
    """The function, on as many devices as there are rows of work for, `most` at most.

    Arguments that are `split` have a leading axis of so many `rows`, the others go to every device whole. All that the
    function gives has a leading axis of rows. Where devices do not divide them, the last row is computed again.
    """
    devices = jax.local_devices()[: rows if most is None else min(rows, most)]
    if len(devices) == 1:
        return function
    mesh, rowwise, whole = mesh_of(len(devices)), Spec(AXIS), Spec()  # type: ignore[no-untyped-call]
    specs = tuple(rowwise if each else whole for each in split)
    sharded = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=rowwise, check_vma=False)
    more = -rows % len(devices)

    def run(*arguments: Any) -> Any:
        given = [with_fillers(a, more) if each else a for a, each in zip(arguments, split, strict=True)]
        return jax.tree.map(lambda array: array[:rows], sharded(*given))

    return run


def with_fillers(tree: Any, more: int) -> Any:
    """Arrays of rows with the last row `more` times again, so that devices divide them."""
    if not more:
        return tree
    return jax.tree.map(lambda array: jnp.concatenate([array, jnp.repeat(array[-1:], more, 0)]), tree)


def split_rows(function: Callable[..., Any], devices: int, out: Sequence[bool]) -> Callable[..., Any]:
    """The function of (rows, whole) on several devices at once, each with its part of the rows and all of the whole.

    The devices must divide the rows. `out` says of each result whether it is rowwise. The others must be the same on
    every device: they come from `total`, which is where devices meet.
    """
    rowwise, whole = Spec(AXIS), Spec()  # type: ignore[no-untyped-call]
    outs = tuple(rowwise if each else whole for each in out)
    return jax.shard_map(function, mesh=mesh_of(devices), in_specs=(rowwise, whole), out_specs=outs, check_vma=False)


def total(tree: Any) -> Any:
    """Inside `split_rows`: sums over the devices, of all arrays in one message: a meeting costs more than its bytes."""
    flat, unravel = jax.flatten_util.ravel_pytree(tree)
    return unravel(jax.lax.psum(flat, AXIS))  # type: ignore[no-untyped-call]


def busy_devices(flops: int) -> int:
    """How many devices so much work is worth."""
    return max(1, min(jax.local_device_count(), flops // SPLIT_FLOPS))


def is_small(flops: int) -> bool:
    """Whether so much work is worth no more than one device, however many there are; nor more than one thread."""
    return flops < 2 * SPLIT_FLOPS


def in_groups(function: Callable[..., Any], size: int, *arrays: Any) -> Any:
    """A function of rows, group by group. The last group is as long as the others: it may begin among rows of the one
    before it, which come out the same again."""
    count = len(jax.tree.leaves(arrays)[0])
    if count <= size:
        return function(*arrays)

    def group(number: Array, out: Any) -> Any:
        start = jnp.minimum(number * size, count - size)
        part = function(*jax.tree.map(lambda a: jax.lax.dynamic_slice_in_dim(a, start, size), arrays))
        return jax.tree.map(lambda a, b: jax.lax.dynamic_update_slice_in_dim(a, b, start, 0), out, part)

    nothing = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(function, *arrays))
    return jax.lax.fori_loop(0, -(-count // size), group, nothing)


def spread(tree: Any, devices: int) -> Any:
    """Inside a program: arrays whose rows lie on so many devices, so that they are not sent anew in every round."""
    return tree if devices == 1 else _lying(tree, devices, Spec(AXIS))  # type: ignore[no-untyped-call]


def everywhere(tree: Any, devices: int) -> Any:
    """Inside a program: arrays that each of so many devices has whole."""
    return tree if devices == 1 else _lying(tree, devices, Spec())  # type: ignore[no-untyped-call]


def _lying(tree: Any, devices: int, how: Spec) -> Any:
    where = NamedSharding(mesh_of(devices), how)
    return jax.lax.with_sharding_constraint(tree, jax.tree.map(lambda _: where, tree))  # type: ignore[no-untyped-call]


def mesh_of(devices: int) -> Mesh:
    """The first so many devices of this process, in a row."""
    return jax.make_mesh((devices,), (AXIS,), devices=jax.local_devices()[:devices], axis_types=(AxisType.Auto,))


def gathered(tree: Any) -> Any:
    """Arrays of all devices on the default one, as if it had computed them."""
    if len(jax.local_devices()) == 1:
        return tree
    return jax.device_put(jax.tree.map(np.asarray, tree))
