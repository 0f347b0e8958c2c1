"""What an agent owns and what a new task is: samples, padded and masked so that agents may differ in size.

Data comes from a task family (`sinusoid`, `mnist`, files) as plain arrays, one pair (x, y) per agent or task;
it leaves as stacked arrays that `local`, `simulate` and `adapt` vectorise over.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.errors import InputError, positive_int
from fewjoule.randomness import agent_id, seeds_of, uniform_rows

Pair = tuple[Any, Any]  # x and y
Weighed = Pair | tuple[Any, Any, Any]  # and what each sample counts
DrawPair = Callable[[int, np.random.Generator], Pair]
ALL_AGENTS = "all"
"""The name that a ledger gives to an amount of all agents together, so no agent may have it."""
LAST_CHARACTER, SURROGATES = 0x10FFFF, (0xD800, 0xDFFF)
"""Of Unicode; surrogates are halves of characters and no text by themselves."""


class Samples(NamedTuple):
    """Samples of one agent or task (more leading axes when stacked).

    Padding stands at the end, with mask 0; it repeats the first sample, so that a model which is finite on the real
    samples is finite on the padding too (0 times NaN would not be 0).
    """

    x: Array  # [n, ...features]
    y: Array  # [n, outputs] float for regression, [n] int class for classification
    mask: Array  # [n] float32, 1 where a sample is real
    allowed: Array | None = None  # [classes] bool: classes that the softmax may choose; None allows all
    weight: Array | None = None  # [n] float32, what a sample's loss counts, 1 on average; None counts all alike


class AgentData(NamedTuple):
    """What one agent owns."""

    train: Samples
    validation: Samples


def few(things: Sequence[str], most: int = 12) -> str:
    """`a, b, c`, on one line however many there are."""
    return ", ".join(things[:most]) + (f", ... and {len(things) - most} more" if len(things) > most else "")


def draw(samples: Samples, key: Array, size: int | None) -> Samples:
    """A mini-batch of `size` real samples, drawn with replacement; all samples where size is None.

    The draw depends on the number of real samples only, so padding never changes it.
    """
    if size is None:
        return samples
    rows = uniform_rows(key, size, samples.mask.sum())
    x, y, weight = rows_of(samples, rows, "promise_in_bounds")
    return Samples(x, y, jnp.ones(size, samples.mask.dtype), samples.allowed, weight)


def rows_of(samples: Samples, rows: Array, mode: str) -> tuple[Array, Array, Array | None]:
    """Inputs, targets and weights at these positions."""
    taken = jax.tree.map(lambda a: a.at[rows].get(mode=mode), (samples.x, samples.y, samples.weight))
    return taken[0], taken[1], taken[2]


@dataclass(frozen=True, repr=False)
class Agents:
    """The agents of a run. Arrays are [agents, n, ...]; with `seeds`, [seeds, agents, n, ...]."""

    data: AgentData
    names: tuple[str, ...]
    seeds: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        names = few(self.names, 5)
        sizes, inputs = self.sizes, list(self.data.train.x.shape[2 if self.seeds is None else 3 :])
        samples = f"{min(sizes)} to {max(sizes)}" if len(set(sizes)) > 1 else str(sizes[0])
        seeds = "" if self.seeds is None else f", {len(self.seeds)} seeds"
        return f"Agents({len(self)}: {names}; {samples} samples each, inputs {inputs}{seeds})"

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
    """New tasks: arrays are [tasks, n, ...]. A device adapts on `support` and is tested on `query`."""

    support: Samples
    query: Samples


def stack(
    pairs: Sequence[Weighed],
    *,
    names: Sequence[str] | None = None,
    allowed: Sequence[Sequence[int]] | None = None,
    classes: int | None = None,
    what: str = "agent",
    may_be_empty: bool = False,
) -> Samples:
    """Check and stack one pair (x, y) per agent or task into padded `Samples` with a leading axis.

    Three arrays (x, y, weight) say what each sample counts; only their ratios matter, as they are made 1 on average.
    `allowed` gives each pair the set of classes that its softmax may choose, out of `classes`.
    """
    if not pairs:
        raise InputError(f"at least one {what} is needed, got none.")
    labels = [f"{what} {i}" for i in range(len(pairs))] if names is None else [str(n) for n in names]
    called = labels if names is None else [f"{what} {n!r}" for n in labels]
    checked = []
    for (x, y, *_), label in zip(pairs, called, strict=True):
        x, y = check_pair(label, x, y, may_be_empty=may_be_empty)
        checked.append((x, check_classes(label, y)))
    weights = [_weights(label, pair, len(x)) for label, pair, (x, _) in zip(called, pairs, checked, strict=True)]
    weighed = any(len(pair) > 2 for pair in pairs)
    for thing, described in (
        ("input shape", [f"{x.shape[1:]}" for x, _ in checked]),
        ("kind of target", [f"{y.dtype}{list(y.shape[1:])}" for _, y in checked]),
    ):
        if len(set(described)) > 1:
            listed = ", ".join(f"{n}: {d}" for n, d in zip(labels, described, strict=True))
            raise InputError(f"every {what} must have the same {thing}, got {listed}.")
    size = max(1, *(len(x) for x, _ in checked))

    def padded(a: np.ndarray) -> np.ndarray:
        if len(a) == size:
            return a
        filler = a[:1] if len(a) else np.zeros((1, *a.shape[1:]), a.dtype)
        return np.concatenate([a, np.repeat(filler, size - len(a), 0)])

    permitted = None
    if allowed is not None:
        if classes is None:
            raise InputError("allowed needs classes, the number of the model's outputs.")
        rows = _check_allowed(allowed, classes, [y for _, y in checked], called, what)
        permitted = np.stack([np.isin(np.arange(classes), row) for row in rows])
    stacked = (
        np.stack([padded(x) for x, _ in checked]),
        np.stack([padded(y) for _, y in checked]),
        np.stack([(np.arange(size) < len(x)).astype(np.float32) for x, _ in checked]),
        permitted,
        np.stack([padded(weight) for weight in weights]) if weighed else None,
    )
    return Samples(*jax.device_put(stacked))  # jnp.asarray would compile a program for every shape


def _weights(label: str, pair: Weighed, size: int) -> np.ndarray:
    """What each sample counts, 1 on average."""
    given = np.ones(size) if len(pair) < 3 else np.asarray(pair[2])
    if given.shape != (size,) or given.dtype.kind not in "fiub" or not (np.isfinite(given) & (given >= 0)).all():
        raise InputError(f"{label}: weights must be one number of at least 0 for each of its {size} samples.")
    if size and not given.sum():
        raise InputError(f"{label}: all its weights are 0; leave it out.")
    return np.asarray(given / given.mean() if size else given, np.float32)


def _check_allowed(
    allowed: Sequence[Sequence[int]], classes: int, targets: list[np.ndarray], called: list[str], what: str
) -> list[list[int]]:
    if len(allowed) != len(targets):
        raise InputError(f"allowed must have one set of classes per {what}: {len(targets)}, got {len(allowed)}.")
    rows = [sorted(int(c) for c in row) for row in allowed]
    for label, row, y in zip(called, rows, targets, strict=True):
        if not row or row[0] < 0 or row[-1] >= classes:
            raise InputError(f"{label}: allowed must be one or more classes from 0 to {classes - 1}, got {row}.")
        outside = sorted({int(c) for c in np.unique(y)} - set(row))
        if outside:
            raise InputError(f"{label}: class {outside[0]} is among its samples but not among its allowed {row}.")
    return rows


def check_pair(
    label: str, x: Any, y: Any, suffix: str = "", *, may_be_text: bool = False, may_be_empty: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [n, ...] as float32; targets [n, outputs] as float32, or whole numbers or text in the shape they came."""
    both = f"x{suffix} and y{suffix}"
    try:
        x, y = np.asarray(x), np.asarray(y)
    except ValueError as error:
        raise InputError(f"{label}: {both} must be arrays of one shape per sample; {error}.") from error
    if x.ndim == 0 or y.ndim == 0:
        raise InputError(f"{label}: {both} must be lists of samples, got single values.")
    if x.dtype.kind not in "fiub" or y.dtype.kind not in ("fiubUSO" if may_be_text else "fiub"):
        raise InputError(f"{label}: {both} must be numbers, got {x.dtype} and {y.dtype}; turn them into numbers.")
    if len(x) == 0 and not may_be_empty:
        raise InputError(f"{label} has no samples; leave it out or give it at least one.")
    if len(x) and not (x.size and y.size):
        raise InputError(
            f"{label}: {both} must hold numbers, got shapes {x.shape} and {y.shape}; add inputs or targets."
        )
    if len(x) != len(y):
        raise InputError(f"{label}: {both} must have the same length, got {len(x)} and {len(y)}.")
    x = _finite_floats(label, "x" + suffix, x if x.ndim > 1 else x[:, None])
    if y.dtype.kind == "f":
        return x, _finite_floats(label, "y" + suffix, y).reshape(len(y), math.prod(y.shape[1:]))
    if y.dtype.kind in "iub":
        _check_most(label, "y" + suffix, y, np.int64)
        return x, y.astype(np.int64)
    return x, _words(label, "y" + suffix, y)


def _words(label: str, name: str, y: np.ndarray) -> np.ndarray:
    """Text as Python's own strings. NumPy's arrays of text may hold numbers that are no characters."""
    if y.dtype.kind == "O":
        return y
    fault = InputError(f"{label}: {name} holds bytes that are no text; write the names of the classes again.")
    if y.dtype.kind == "S":
        try:
            y = np.char.decode(y, "utf-8")
        except UnicodeDecodeError:
            raise fault from None
    codes = np.ascontiguousarray(y, y.dtype.newbyteorder("=")).view(np.uint32)
    if ((codes > LAST_CHARACTER) | ((codes >= SURROGATES[0]) & (codes <= SURROGATES[1]))).any():
        raise fault
    return y.astype(object)


def check_classes(label: str, y: np.ndarray) -> np.ndarray:
    if y.dtype.kind == "f":
        return y
    if y.ndim != 1:
        raise InputError(f"{label}: class targets must have one axis, got shape {y.shape}.")
    if len(y) and y.min() < 0:
        raise InputError(f"{label}: class targets must be 0 or more, got {y.min()}; number them from 0.")
    _check_most(label, "a class target", y, np.int32)
    return y.astype(np.int32)


def _check_most(label: str, name: str, y: np.ndarray, kind: type[np.signedinteger[Any]]) -> None:
    if y.size and y.max() > (most := np.iinfo(kind).max):
        raise InputError(
            f"{label}: {name} must be at most {most}, got {y.max()}; number classes from 0, or give real numbers for a "
            "regression."
        )


def _finite_floats(label: str, name: str, values: np.ndarray) -> np.ndarray:
    """Numbers as float32; refuses NaN, infinity and what float32 cannot hold."""
    with np.errstate(over="ignore"):  # beyond float32 becomes infinity
        values = values.astype(np.float32, copy=False)
    bad = np.flatnonzero(~np.isfinite(values).all(axis=tuple(range(1, values.ndim))))
    if len(bad):
        raise InputError(
            f"{label}: {name} must be finite, got NaN or infinity in {len(bad)} of {len(values)} samples "
            f"(first: sample {bad[0]}); drop or repair them."
        )
    return values


def check_names(names: Sequence[str]) -> None:
    """Refuse agents that could be taken for each other, or for all of them, and names that would spoil a line."""
    if len(set(names)) != len(names):
        raise InputError(f"agents' names must differ, got {', '.join(names)}.")
    if ALL_AGENTS in names:
        raise InputError(f"no agent may be called {ALL_AGENTS!r}, which stands for all agents together; rename it.")
    for name in names:
        if not name or not name.isprintable():
            raise InputError(f"an agent's name must be printable text, got {name!r}; rename it.")


def make_agents(
    train: Sequence[Weighed],
    validation: Sequence[Weighed] | None = None,
    *,
    names: Sequence[str] | None = None,
    allowed: Sequence[Sequence[int]] | None = None,
    classes: int | None = None,
) -> Agents:
    """Agents from one pair (x, y) of arrays each; integer y means classes, float y means regression.

    A third array says what each sample counts in the loss. Validation samples are optional; the methods that need them
    (MAML, iMAML) say so.
    """
    labels = tuple(str(n) for n in names) if names is not None else tuple(str(i) for i in range(len(train)))
    check_names(labels)
    if validation is not None and len(validation) != len(train):
        raise InputError(f"validation must have one pair per agent: {len(train)}, got {len(validation)}.")
    if len(labels) != len(train):
        raise InputError(f"names must have one name per agent: {len(train)}, got {len(labels)}.")
    owned = stack(train, names=labels, allowed=allowed, classes=classes)
    none = (np.zeros((0, *owned.x.shape[2:]), owned.x.dtype), np.zeros((0, *owned.y.shape[2:]), owned.y.dtype))
    held = validation if validation is not None else [none] * len(train)
    data = AgentData(owned, stack(held, names=labels, allowed=allowed, classes=classes, may_be_empty=True))
    if data.train.x.shape[2:] != data.validation.x.shape[2:] or data.train.y.dtype != data.validation.y.dtype:
        raise InputError("training and validation samples must have the same input shape and kind of target.")
    return Agents(data, labels)


def for_seeds(make: Callable[[int], Agents], seed: int | Sequence[int]) -> Agents:
    """The agents that `make` gives for a seed; for a sequence of seeds, with a leading axis of seeds.

    Names and sizes must not depend on the seed.
    """
    seeds = seeds_of(seed)
    if np.ndim(seed) == 0:
        return make(seeds[0])
    each = [make(s) for s in seeds]
    return Agents(jax.device_put(jax.tree.map(lambda *a: np.stack(a), *[a.data for a in each])), each[0].names, seeds)


def draw_agents(
    names: Sequence[str], pair: DrawPair, samples: int, validation: int, seed: int | Sequence[int], **settings: Any
) -> Agents:
    """Agents of a task family: `pair(i, rng)` gives agent i's `samples` training samples, then `validation` others.

    The generator is the agent's own, by seed and name, so that the other agents do not matter. Settings are those of
    `make_agents`.
    """
    positive_int("samples", samples)
    positive_int("validation", validation, least=0)

    def one(seed: int) -> Agents:
        pairs = [pair(i, np.random.default_rng([seed, agent_id(name)])) for i, name in enumerate(names)]
        train, held = ([(x[part], y[part]) for x, y in pairs] for part in (slice(samples), slice(samples, None)))
        return make_agents(train, held, names=names, **settings)

    return for_seeds(one, seed)


def generator_of_tasks(seed: int, **counts: int) -> np.random.Generator:
    """The generator of new tasks, once their numbers of samples and the like are known to be such."""
    for name, count in counts.items():
        positive_int(name, count)
    if np.ndim(seed) != 0:
        raise InputError(f"the seed of new tasks must be one whole number, got {seed}.")
    return np.random.default_rng([*seeds_of(seed), agent_id("new tasks")])


def make_tasks(support: Sequence[Weighed], query: Sequence[Weighed], **settings: Any) -> Tasks:
    """New tasks from two pairs (x, y) of arrays each; the settings are those of `stack`."""
    return Tasks(stack(support, what="task", **settings), stack(query, what="task", **settings))
