"""Every random number derives from (seed, purpose, round, agent), so one process or many draw the same bytes."""

import zlib

import jax
import jax.numpy as jnp
from jax import Array

PURPOSES = ("data", "start", "local", "probe", "round", "participation", "tasks", "codec")


def key_for(seed: int | Array, purpose: str) -> Array:
    """The root key of one purpose under one seed."""
    return jax.random.fold_in(jax.random.key(seed), PURPOSES.index(purpose))


def agent_id(name: str) -> int:
    """An agent's number in key derivation: a hash of its name, so that the order of agents does not matter."""
    return zlib.crc32(name.encode())


def agent_ids(names: tuple[str, ...]) -> Array:
    return jnp.asarray([agent_id(name) for name in names], jnp.uint32)


def round_key(root: Array, round_index: int | Array, agent: int | Array) -> Array:
    """The key of one agent in one round, from the root key of purpose "round"."""
    return jax.random.fold_in(jax.random.fold_in(root, round_index), agent)
