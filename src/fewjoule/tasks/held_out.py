"""What every agent keeps to be tested on itself: a share of its samples, taken away before anything is learnt."""

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fewjoule.errors import InputError
from fewjoule.randomness import agent_id, seeds_of
from fewjoule.tasks.samples import Agents, Samples, rows_of


def hold_out(agents: Agents, share: float, seed: int | Sequence[int]) -> tuple[Agents, Samples]:
    """The agents without a random share of their training samples, and these: [agents, n, ...].

    A sequence of seeds gives both a leading axis; each seed holds out others. At least one sample is held out and at
    least one is left. Which ones depends on the seed, the agent's name and how many samples it has.
    """
    if not 0 < share < 1:
        raise InputError(f"the share held out must be above 0 and below 1, got {share}.")
    if np.ndim(seed) == 0:
        return _of_one_seed(agents, share, seeds_of(seed)[0])
    each = []
    for i, one in enumerate(seeds_of(seed)):
        own = agents if agents.seeds is None else _at(agents, i)
        each.append(_of_one_seed(own, share, one))
    data, tests = ([part[k] for part in [(a.data, t) for a, t in each]] for k in (0, 1))
    stacked, held = (jax.device_put(jax.tree.map(lambda *a: np.stack(a), *parts)) for parts in (data, tests))
    return replace(agents, data=stacked, seeds=seeds_of(seed)), held


def evenly(samples: Samples, most: int) -> Samples:
    """At most so many samples of one agent [n, ...], evenly spaced among the real ones."""
    if len(samples.mask) <= most:
        return samples
    real = jnp.maximum((samples.mask > 0).sum(), 1)
    at = jnp.arange(most)
    rows = jnp.where(real > most, (at * (real / most)).astype(int), at)
    x, y, weight = rows_of(samples, rows, "clip")
    return Samples(x, y, samples.mask[rows], samples.allowed, weight)


def _at(agents: Agents, i: int) -> Agents:
    return replace(agents, data=jax.tree.map(lambda a: a[i], agents.data), seeds=None)


def _of_one_seed(agents: Agents, share: float, seed: int) -> tuple[Agents, Samples]:
    kept, held = [], []
    for name, size in zip(agents.names, agents.sizes, strict=True):
        count = max(1, round(share * size))
        if count >= size:
            raise InputError(f"agent {name!r} has {size} samples, too few to hold out {share:g} of them.")
        order = np.random.default_rng([seed, agent_id(name), size]).permutation(size)
        held.append(order[:count])
        kept.append(order[count:])
    train = agents.data.train
    data = agents.data._replace(train=_rows(train, kept))
    return replace(agents, data=data), _rows(train, held)


def _rows(samples: Samples, rows: list[np.ndarray]) -> Samples:
    """These rows of each agent, padded by its first one."""
    longest = max(map(len, rows))
    at = np.stack([np.concatenate([own, np.repeat(own[:1], longest - len(own))]) for own in rows])
    mask = jnp.asarray(np.arange(longest) < np.array([[len(own)] for own in rows]), samples.mask.dtype)
    who = np.arange(len(rows))[:, None]
    weight = None
    if samples.weight is not None:  # 1 on average over what is left
        weight = samples.weight[who, at]
        weight = weight * mask.sum(1, keepdims=True) / (weight * mask).sum(1, keepdims=True)
    return Samples(samples.x[who, at], samples.y[who, at], mask, samples.allowed, weight)
