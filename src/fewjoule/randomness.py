"""Every random number derives from (seed, purpose, round, agent), so one process or many draw the same bytes."""

import zlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.errors import InputError, is_whole

DRAWN_AT_ONCE = 100_000
"""Agents times rounds whose numbers are drawn at once: more would leave the cache, fewer would take Python's time."""
PURPOSES = ("data", "start", "local", "probe", "round", "participation", "tasks", "codec", "questions")


def seeds_of(seed: int | Sequence[int]) -> tuple[int, ...]:
    """One seed or several, checked, as plain whole numbers."""
    given = tuple(np.atleast_1d(np.asarray(seed, object)))
    if not given:
        raise InputError("seed must be a whole number or a list of at least one, got an empty list.")
    if not all(is_whole(s) and 0 <= s < 2**32 for s in given):
        raise InputError(f"a seed must be a whole number from 0 to 2**32 - 1, got {seed}.")
    if len(set(given)) < len(given):
        raise InputError(f"seeds must differ, got {list(given)}.")
    return tuple(int(s) for s in given)


def key_for(seed: int | Array, purpose: str) -> Array:
    """The root key of one purpose under one seed."""
    return jax.random.fold_in(jax.random.key(seed), PURPOSES.index(purpose))


def agent_id(name: str) -> int:
    """An agent's number in key derivation: a hash of its name, so that the order of agents does not matter."""
    return zlib.crc32(name.encode())


def agent_ids(names: tuple[str, ...]) -> Array:
    return jax.device_put(np.asarray([agent_id(name) for name in names], np.uint32))


@partial(jax.jit, static_argnums=1)
def uniform_rows(key: Array, size: int, count: Array) -> Array:
    """`size` whole numbers from 0 to count - 1, drawn with replacement; `count` up to 2**24.

    Threefry-2x32 (Salmon et al. 2011) written out, because `jax.random` rolls it into a loop on CPUs: written out it
    becomes one pass over the numbers, which halves the time of a round of small mini-batches.
    """
    bits = _drawn(jax.random.key_data(key), jnp.arange(size, dtype=jnp.uint32))[0]
    share = (bits >> 8).astype(jnp.float32) * 2.0**-24
    return jnp.minimum((share * count).astype(jnp.int32), count.astype(jnp.int32) - 1)


def uniform_each(root: Array, ids: Array) -> Array:
    """`jax.random.uniform` under the key of each of these agents, from the root key of a round: a number from 0 to 1.

    Written out as in `uniform_rows`, since every agent of a population draws one.
    """
    high, low = _drawn(_drawn(jax.random.key_data(root), ids), jnp.zeros_like(ids))
    mantissas = ((high ^ low) >> 9) | jnp.uint32(0x3F800000)
    return jax.lax.bitcast_convert_type(mantissas, jnp.float32) - 1


def shuffled(key: Array, mask: Array) -> Array:
    """Positions in random order, those with mask 1 first; their order does not depend on how many have mask 0."""
    bits = _drawn(jax.random.key_data(key), jnp.arange(len(mask), dtype=jnp.uint32))[0]
    return jnp.argsort(jnp.where(mask > 0, bits >> 1, jnp.uint32(0xFFFFFFFF)))


def _threefry(key: Any, counter: Any) -> tuple[Any, Any]:
    """Two words of 32 random bits for every counter, under a key of two words; arrays of JAX or of NumPy."""
    words = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    a, b = counter * np.uint32(0) + words[0], counter + words[1]
    for turn in range(5):
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[turn % 2]:
            a = a + b
            b = ((b << rotation) | (b >> (32 - rotation))) ^ a
        a, b = a + words[(turn + 1) % 3], b + words[(turn + 2) % 3] + np.uint32(turn + 1)
    return a, b


_drawn = jax.jit(_threefry)  # a hundred operations: every method's program would trace them again


def round_keys(seed: int, rounds: int, ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The data of `round_key` of agents [agents], or of those of each round [rounds, agents], in every round:
    [rounds, agents, 2]. Drawn by NumPy, since compiling it would take longer."""
    of_round = [word[:, None] for word in _folded(_root(seed, "round"), np.arange(rounds))]
    return np.stack(np.broadcast_arrays(*_folded(of_round, ids)), -1)


def cohorts_of(seed: int, rounds: int, present: int, ids: Any) -> np.ndarray[Any, Any]:
    """The positions of the agents that are drawn for each round [rounds, present], rising; by NumPy, as `round_keys`.

    Every agent draws the number of `uniform_each` and the lowest take part: the order of agents does not matter.
    """
    ids, at_once = np.asarray(ids), max(1, DRAWN_AT_ONCE // len(ids))
    cohorts = np.empty((rounds, present), np.int32)
    for first in range(0, rounds, at_once):
        here = np.arange(first, min(rounds, first + at_once))
        of_round = [word[:, None] for word in _folded(_root(seed, "participation"), here)]
        high, low = _folded(_folded(of_round, ids), 0)
        order = np.argsort((high ^ low) >> 9, kind="stable")
        cohorts[here] = np.sort(order[:, :present])
    return cohorts


def agent_keys(seed: int, purpose: str, ids: Any) -> np.ndarray[Any, Any]:
    """The data [agents, 2] of the keys of agents for one purpose; by NumPy, as `round_keys`."""
    return np.stack(_folded(_root(seed, purpose), ids), -1)


def _root(seed: int, purpose: str) -> tuple[Any, Any]:
    """The data of `key_for`."""
    return _folded(np.asarray([0, seed], np.uint32), PURPOSES.index(purpose))


def _folded(key: Any, numbers: Any) -> tuple[Any, Any]:
    """`jax.random.fold_in` of numbers, by NumPy."""
    with np.errstate(over="ignore"):  # whole numbers of 32 bits go round
        return _threefry(key, np.asarray(numbers, np.uint32))


def round_key(root: Array, round_index: int | Array, agent: int | Array) -> Array:
    """The key of one agent in one round, from the root key of purpose "round"."""
    return jax.random.fold_in(jax.random.fold_in(root, round_index), agent)
