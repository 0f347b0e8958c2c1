"""Episodes: a few classes of an agent's own, a few samples of each to learn from, and others to be judged by (Vinyals
et al. 2016, "Matching Networks for One Shot Learning")."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.randomness import uniform_each
from fewjoule.tasks.samples import Samples, rows_of

LAST = np.iinfo(np.int32).max  # a class that padding has, after all others


def episode(samples: Samples, key: Array, *, ways: int, shots: int, queries: int) -> tuple[Samples, Samples]:
    """`ways` classes that are drawn from those of the samples, numbered anew from 0 in the order of the draw; `shots`
    samples of each as support, at most half of them, and `queries` others to be judged by.

    Where there are fewer classes or samples, the rest is padding. It depends on the real samples only. Where an agent's
    softmax chooses among its own classes, that of an episode chooses among the first `ways`.
    """
    count, real = len(samples.mask), samples.mask > 0
    class_key, sample_key = jax.random.split(key)
    # real samples in a random order, those of one class together, padding last
    numbers = uniform_each(sample_key, jnp.arange(count, dtype=jnp.uint32))
    label = jnp.where(real, samples.y, LAST)
    order = jnp.lexsort((numbers, label))
    label = label[order]
    is_first = jnp.concatenate([jnp.ones(1, bool), label[1:] != label[:-1]]) & (real[order])
    # the classes, each by the place of its first sample, the lowest numbers of a draw by class
    drawn = uniform_each(class_key, label.astype(jnp.uint32))
    first = jnp.argsort(jnp.where(is_first, drawn, 2.0))[:ways]
    first = jnp.pad(first, (0, ways - len(first)))
    chosen = jnp.arange(ways) < is_first.sum()
    size = (label[:, None] == label[first][None, :]).sum(0) * chosen
    support = jnp.minimum(shots, jnp.maximum(1, size // 2))

    allowed = None if samples.allowed is None else jnp.arange(len(samples.allowed)) < ways

    def cut(begin: Array, end: Array, width: int) -> Samples:
        at = begin[:, None] + jnp.arange(width)
        mask = (at < jnp.minimum(end, size)[:, None]).astype(samples.mask.dtype).ravel()
        rows = jnp.where(mask > 0, (first[:, None] + at).ravel(), 0)
        x, _, weight = rows_of(samples, order[rows], "clip")
        y = jnp.repeat(jnp.arange(ways, dtype=samples.y.dtype), width)
        return Samples(x, y, mask, allowed, weight)

    return cut(jnp.zeros_like(support), support, shots), cut(support, support + queries, queries)
