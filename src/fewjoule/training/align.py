"""Permutation alignment of local models that were trained from different starts, so that their average means something.

Ainsworth, Hayase and Srinivasa 2022, "Git Re-Basin: Merging Models modulo Permutation Symmetries": hidden units have no
order of their own, so model B is reordered to be near model A before the two are averaged. For one layer at a time

    S[i, j] = sum over the tensors with that axis of <unit i of A, unit j of B, the other axes already reordered>

is maximised by a linear assignment; layers are visited until nothing changes. With more than two models each is then
matched to the mean of the others until that changes nothing either. No model's function changes.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.errors import InputError
from fewjoule.models.model import Model
from fewjoule.tasks.samples import Agents, Samples, Tasks
from fewjoule.training.adapt import adapt

MAX_SWEEPS = 100
MODES = ("auto", "always", "never")


class Axes(NamedTuple):
    """How one tensor is seen for alignment: its shape, and for each axis the group of units that orders it, or None."""

    shape: tuple[int, ...]
    groups: tuple[int | None, ...]


class Alignment(NamedTuple):
    """Aligned models and how much that helped, as losses on the agents' own training samples (mean over agents).

    A barrier is the loss of the average of the models less the mean loss of the models themselves. `adapted` is the
    loss of the average after a few fine-tuning steps on an agent's samples: that is how a meta-model is used, and where
    tasks differ much the barrier says little about it.
    """

    models: Array  # [agents, d], aligned where `applied`, else as they came
    applied: bool
    barrier_before: float
    barrier_after: float
    adapted_before: float
    adapted_after: float


def permutable_axes(model: Model) -> list[Axes]:
    """Which axes permute together, tensor by tensor in flat order."""
    layers = model.architecture.layers
    axes: list[Axes] = []
    group, before, after = -1, None, None
    for layer in layers:
        if layer.kind != "norm":  # a norm keeps the units of the layer before it
            group, before = group + 1, after
            after = group if layer is not layers[-1] else None
        # a dense layer after an image sees every pixel of every channel: channels permute, pixels do not
        sides = layer.sides if layer.sides != (1, 1) else ()
        weight = Axes((*sides, layer.inputs, layer.outputs), (*(None for _ in sides), before, after))
        own = Axes((layer.outputs,), (after,))
        axes += [own if layer.kind == "norm" else weight, own]
    return axes


def match(model: Model, reference: Array, other: Array) -> Array:
    """The weights of `other` with its hidden units in the order that is nearest to `reference`."""
    axes = permutable_axes(model)
    permutations = _match(axes, _tensors(axes, reference), _tensors(axes, other))
    return jnp.asarray(_reordered(axes, other, permutations))


def align_models(model: Model, models: Array) -> Array:
    """All models [agents, d] in one order of hidden units: matched to the first, then to the mean of the others."""
    axes = permutable_axes(model)
    aligned = [np.asarray(vector, np.float32) for vector in models]
    for i in range(1, len(aligned)):
        aligned[i] = np.asarray(match(model, jnp.asarray(aligned[0]), jnp.asarray(aligned[i])))
    if len(aligned) < 3:
        return jnp.asarray(np.stack(aligned))
    for _ in range(MAX_SWEEPS):
        changed = False
        for i, vector in enumerate(aligned):
            others = np.mean([v for j, v in enumerate(aligned) if j != i], axis=0)
            permutations = _match(axes, _tensors(axes, others), _tensors(axes, vector))
            moved = _reordered(axes, vector, permutations)
            # a tie or the last bit of a sum must not keep this going: only a nearer order counts
            if float(np.vdot(others, moved)) > float(np.vdot(others, vector)) * (1 + 1e-6) + 1e-9:
                aligned[i], changed = moved, True
        if not changed:
            break
    return jnp.asarray(np.stack(aligned))


def barrier(model: Model, models: Array, agents: Agents) -> float:
    """Loss of the models' average less the mean of the models' own losses, each on its agent's training samples."""
    return float(_mean_loss(model, models.mean(0), agents.data.train) - _mean_loss(model, models, agents.data.train))


@partial(jax.jit, static_argnums=0)
def _mean_loss(model: Model, models: Array, samples: Samples) -> Array:
    """Mean over agents of the loss of their models [agents, d], or of one model [d] for all."""
    return jax.vmap(model.loss, (0 if models.ndim == 2 else None, 0))(models, samples).mean()


def align(
    model: Model, models: Array, agents: Agents, *, mode: str = "auto", steps: int = 10, learning_rate: float = 0.01
) -> Alignment:
    """Align the agents' local models; `auto` keeps the result only where it makes the average a better start.

    Better means a lower loss after `steps` fine-tuning steps of size `learning_rate` on each agent's samples.
    """
    if mode not in MODES:
        raise InputError(f"align must be one of {', '.join(MODES)}, got {mode!r}.")
    models = jnp.asarray(models)
    if models.ndim != 2 or models.shape != (len(agents), model.size):
        raise InputError(f"models must have shape [{len(agents)}, {model.size}], got {list(models.shape)}.")
    knows_layers = mode == "always" or model.knows_layers
    aligned = align_models(model, models) if mode != "never" and knows_layers else models
    before, after = barrier(model, models, agents), barrier(model, aligned, agents)
    tasks = Tasks(agents.data.train, agents.data.train)
    starts = jnp.stack([models.mean(0), aligned.mean(0)])
    adapted = adapt(model, starts, tasks, steps=[steps], learning_rate=learning_rate).loss[..., 0].mean(-1)
    # where fine-tuning overflows from both, the barrier is all there is to go by
    better = adapted[1] < adapted[0] if np.isfinite(adapted).any() else after < before
    applied = mode == "always" or bool(better)
    return Alignment(aligned if applied else models, applied, before, after, *map(float, adapted))


def _tensors(axes: Sequence[Axes], vector: Array | np.ndarray) -> list[np.ndarray]:
    values, at, out = np.asarray(vector, np.float64), 0, []
    for tensor in axes:
        size = int(np.prod(tensor.shape))
        out.append(values[at : at + size].reshape(tensor.shape))
        at += size
    return out


def _match(axes: Sequence[Axes], reference: list[np.ndarray], other: list[np.ndarray]) -> dict[int, np.ndarray]:
    """For every group, the order of the other model's units.

    The sweeps end in a local optimum that depends on where they begin, so they begin three times: from the order as it
    is, and from a first pass through the layers, forward or backward, that looks only at axes already matched.
    """
    sizes = {g: tensor.shape[a] for tensor in axes for a, g in enumerate(tensor.groups) if g is not None}
    found = []
    for first in (None, list(sizes), list(sizes)[::-1]):
        permutations = {g: np.arange(n) for g, n in sizes.items()} if first is None else {}
        for group in first or ():
            permutations[group] = _assign(_similarity(axes, reference, other, group, permutations, sizes[group]))
        for _ in range(MAX_SWEEPS):
            changed = False
            for group, own in permutations.items():
                similarity = _similarity(axes, reference, other, group, permutations, sizes[group])
                best, units = _assign(similarity), np.arange(sizes[group])
                now = similarity[units, own].sum()
                # ties and the last bit of a sum must not keep this going
                if similarity[units, best].sum() - now > 1e-9 * max(1.0, abs(now)):
                    permutations[group], changed = best, True
            if not changed:
                break
        near = sum(
            float(np.vdot(a, _permuted(b, tensor, permutations)))
            for tensor, a, b in zip(axes, reference, other, strict=True)
        )
        found.append((near, permutations))
    return max(found, key=lambda f: f[0])[1]


def _assign(similarity: np.ndarray) -> np.ndarray:
    from scipy.optimize import linear_sum_assignment

    return np.asarray(linear_sum_assignment(similarity, maximize=True)[1])


def _similarity(
    axes: Sequence[Axes],
    reference: list[np.ndarray],
    other: list[np.ndarray],
    group: int,
    permutations: dict[int, np.ndarray],
    size: int,
) -> np.ndarray:
    """Inner products of the units of one group; tensors with an axis whose order is not yet known are left out."""
    total = np.zeros((size, size))
    for tensor, a, b in zip(axes, reference, other, strict=True):
        if group in tensor.groups and all(g in permutations for g in tensor.groups if g not in (None, group)):
            axis = tensor.groups.index(group)
            moved = _permuted(b, tensor, permutations, skip=group)
            rows = [np.moveaxis(t, axis, 0).reshape(size, -1) for t in (a, moved)]
            total += rows[0] @ rows[1].T
    return total


def _permuted(
    tensor: np.ndarray, axes: Axes, permutations: dict[int, np.ndarray], skip: int | None = None
) -> np.ndarray:
    for axis, group in enumerate(axes.groups):
        if group is not None and group != skip:
            tensor = np.take(tensor, permutations[group], axis)
    return tensor


def _reordered(axes: Sequence[Axes], vector: Array | np.ndarray, permutations: dict[int, np.ndarray]) -> np.ndarray:
    tensors = zip(_tensors(axes, vector), axes, strict=True)
    return np.concatenate([_permuted(t, a, permutations).ravel() for t, a in tensors]).astype(np.float32)
