"""What an agent owns and what a new task is: samples, padded and masked so that agents may differ in size.

Data comes from a task family (`sinusoid`, `mnist`, files) as plain arrays, one pair (x, y) per agent or task;
it leaves as stacked arrays that `local`, `simulate` and `adapt` vectorise over.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.errors import InputError


class Samples(NamedTuple):
    """Samples of one agent or task (more leading axes when stacked). Padding stands at the end, with mask 0."""

    x: Array  # [n, ...features]
    y: Array  # [n, outputs] float for regression, [n] int class for classification
    mask: Array  # [n] float32, 1 where a sample is real
    allowed: Array | None = None  # [classes] bool: classes that the softmax may choose; None allows all


class AgentData(NamedTuple):
    """What one agent owns."""

    train: Samples
    validation: Samples


def draw(samples: Samples, key: Array, size: int | None) -> Samples:
    """A mini-batch of `size` real samples, drawn with replacement; all samples where size is None.

    The draw depends on the number of real samples only, so padding never changes it.
    """
    if size is None:
        return samples
    count = samples.mask.sum()
    rows = jnp.floor(jax.random.uniform(key, (size,)) * count).astype(jnp.int32)
    rows = jnp.minimum(rows, count.astype(jnp.int32) - 1)
    return Samples(samples.x[rows], samples.y[rows], jnp.ones(size, samples.mask.dtype), samples.allowed)


@dataclass(frozen=True)
class Agents:
    """The agents of a run. Arrays are [agents, n, ...]; with `seeds`, [seeds, agents, n, ...]."""

    data: AgentData
    names: tuple[str, ...]
    seeds: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def select(self, which: Sequence[int]) -> "Agents":
        """The agents at these positions, in this order."""
        axis = 0 if self.seeds is None else 1
        data = jax.tree.map(lambda a: jnp.take(a, jnp.asarray(which), axis), self.data)
        return replace(self, data=data, names=tuple(self.names[i] for i in which))

    @property
    def sizes(self) -> list[int]:
        """Number of training samples per agent."""
        counts = np.asarray(self.data.train.mask).sum(-1)
        return [int(c) for c in (counts if self.seeds is None else counts[0])]


class Tasks(NamedTuple):
    """New tasks: arrays are [tasks, n, ...]. A device adapts on `support` and is judged on `query`."""

    support: Samples
    query: Samples


def stack(
    pairs: Sequence[tuple[Any, Any]],
    *,
    names: Sequence[str] | None = None,
    allowed: Sequence[Sequence[int]] | None = None,
    classes: int | None = None,
    pad_to: int | None = None,
    what: str = "agent",
    may_be_empty: bool = False,
) -> Samples:
    """Check and stack one pair (x, y) per agent or task into padded `Samples` with a leading axis.

    `allowed` gives each pair the set of classes that its softmax may choose, out of `classes`.
    """
    labels = [str(n) for n in names] if names is not None else [f"{what} {i}" for i in range(len(pairs))]
    if not pairs:
        raise InputError(f"at least one {what} is needed, got none.")
    checked = [
        _check(x, y, f"{what} {n!r}" if names is not None else n, may_be_empty)
        for (x, y), n in zip(pairs, labels, strict=True)
    ]
    shapes = {x.shape[1:] for x, _ in checked}
    if len(shapes) > 1:
        listed = ", ".join(f"{n}: {x.shape[1:]}" for n, (x, _) in zip(labels, checked, strict=True))
        raise InputError(f"every {what} must have the same input shape, got {listed}.")
    if len({(y.dtype.kind, y.shape[1:]) for _, y in checked}) > 1:
        listed = ", ".join(f"{n}: {y.dtype}{list(y.shape[1:])}" for n, (_, y) in zip(labels, checked, strict=True))
        raise InputError(f"every {what} must have the same kind of target, got {listed}.")
    longest = max(len(x) for x, _ in checked)
    size = longest if pad_to is None else pad_to
    if size < longest:
        raise InputError(f"pad_to must be at least {longest}, the longest {what}, got {size}.")
    size = max(size, 1)

    def padded(a: np.ndarray) -> np.ndarray:
        return np.concatenate([a, np.zeros((size - len(a), *a.shape[1:]), a.dtype)])

    permitted = None
    if allowed is not None:
        if classes is None:
            raise InputError("allowed needs classes, the number of the model's outputs.")
        permitted = jnp.asarray(np.stack([np.isin(np.arange(classes), list(row)) for row in allowed]))
    return Samples(
        jnp.asarray(np.stack([padded(x) for x, _ in checked])),
        jnp.asarray(np.stack([padded(y) for _, y in checked])),
        jnp.asarray(np.stack([(np.arange(size) < len(x)).astype(np.float32) for x, _ in checked])),
        permitted,
    )


def _check(x: Any, y: Any, label: str, may_be_empty: bool) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(x), np.asarray(y)
    if x.ndim == 1:
        x = x[:, None]
    if x.dtype.kind not in "fiub" or y.dtype.kind not in "fiub":
        raise InputError(f"{label}: x and y must be numbers, got {x.dtype} and {y.dtype}.")
    if len(x) == 0 and not may_be_empty:
        raise InputError(f"{label} has no samples; leave it out or give it at least one.")
    if len(x) != len(y):
        raise InputError(f"{label}: x and y must have the same length, got {len(x)} and {len(y)}.")
    x = x.astype(np.float32)
    if y.dtype.kind == "f":
        y = y.astype(np.float32).reshape(len(y), -1) if len(y) else y.astype(np.float32).reshape(0, 1)
    else:
        y = y.astype(np.int32)
    for name, a in (("x", x), ("y", y)):
        bad = len(a) - int(np.isfinite(a.reshape(len(a), -1)).all(1).sum()) if len(a) else 0
        if bad:
            raise InputError(
                f"{label}: {name} must be finite, got NaN or infinity in {bad} of {len(a)} samples; "
                "drop or repair them."
            )
    if y.dtype.kind == "i":
        if y.ndim != 1:
            raise InputError(f"{label}: class targets must have one axis, got shape {y.shape}.")
        if len(y) and y.min() < 0:
            raise InputError(f"{label}: class targets must be 0 or more, got {y.min()}.")
    return x, y


def make_agents(
    train: Sequence[tuple[Any, Any]],
    validation: Sequence[tuple[Any, Any]] | None = None,
    *,
    names: Sequence[str] | None = None,
    allowed: Sequence[Sequence[int]] | None = None,
    classes: int | None = None,
) -> Agents:
    """Agents from one pair (x, y) of arrays each; integer y means classes, float y means regression.

    Validation samples are optional; the methods that need them (MAML, iMAML) say so.
    """
    labels = tuple(str(n) for n in names) if names is not None else tuple(str(i) for i in range(len(train)))
    if len(set(labels)) != len(labels):
        raise InputError(f"agents' names must differ, got {', '.join(labels)}.")
    if validation is not None and len(validation) != len(train):
        raise InputError(f"validation must have one pair per agent: {len(train)}, got {len(validation)}.")
    if len(labels) != len(train):
        raise InputError(f"names must have one name per agent: {len(train)}, got {len(labels)}.")
    held = validation if validation is not None else [(np.asarray(x)[:0], np.asarray(y)[:0]) for x, y in train]
    data = AgentData(
        stack(train, names=labels, allowed=allowed, classes=classes),
        stack(held, names=labels, allowed=allowed, classes=classes, may_be_empty=True),
    )
    if data.train.x.shape[2:] != data.validation.x.shape[2:] or data.train.y.dtype != data.validation.y.dtype:
        raise InputError("training and validation samples must have the same input shape and kind of target.")
    return Agents(data, labels)


def stack_seeds(per_seed: Sequence[Agents], seeds: Sequence[int]) -> Agents:
    """One `Agents` whose arrays have a leading axis of seeds, from one `Agents` per seed (same names and sizes)."""
    data = jax.tree.map(lambda *a: jnp.stack(a), *[agents.data for agents in per_seed])
    return Agents(data, per_seed[0].names, tuple(seeds))
