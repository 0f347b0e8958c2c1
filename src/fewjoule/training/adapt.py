"""Few-shot adaptation: fine-tune one or many meta-models to one or thousands of new tasks at once.

From meta-models and tasks to the loss and accuracy on each task's query samples after every number of steps asked for.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fewjoule.errors import DivergedWarning, InputError, is_whole, positive
from fewjoule.models.model import Model, check_samples
from fewjoule.tasks.samples import Samples, Tasks
from fewjoule.training.descent import optimiser as make_optimiser


@dataclass(frozen=True)
class Adaptation:
    """Loss and accuracy on the query samples: [..., tasks, steps], with the leading axes of the meta-models.

    A fine-tuning that overflowed has loss infinity. A meta-model that was not finite (a diverged run) has NaN and is
    left out of the statistics, with a warning. `models` are the adapted vectors after the last step, where kept.
    """

    steps: tuple[int, ...]
    loss: np.ndarray[Any, Any]
    accuracy: np.ndarray[Any, Any]
    models: Array | None = None

    def median(self, what: str = "loss") -> dict[int, float]:
        """Median over all meta-models and tasks, by number of steps."""
        return self._over_tasks(what, np.median)

    def mean(self, what: str = "loss") -> dict[int, float]:
        """Mean over all meta-models and tasks, by number of steps."""
        return self._over_tasks(what, np.mean)

    def quantile(self, q: float, what: str = "loss") -> dict[int, float]:
        """Quantile q (0 to 1) over all meta-models and tasks, by number of steps."""
        return self._over_tasks(what, partial(np.quantile, q=q))

    def _over_tasks(self, what: str, statistic: Any) -> dict[int, float]:
        if what not in ("loss", "accuracy"):
            raise InputError(f"what must be 'loss' or 'accuracy', got {what!r}.")
        values = getattr(self, what)
        rows = values.reshape(-1, *values.shape[-2:])
        kept = rows[~np.isnan(self.loss).reshape(rows.shape).all((1, 2))]
        if len(kept) < len(rows):
            warnings.warn(
                f"{len(rows) - len(kept)} of {len(rows)} meta-models had diverged and are left out.",
                DivergedWarning,
                stacklevel=3,
            )
        return {s: float(statistic(kept[..., i])) if len(kept) else float("nan") for i, s in enumerate(self.steps)}


def adapt(
    model: Model,
    meta: Array,
    tasks: Tasks,
    *,
    steps: Sequence[int] = (0, 1, 5, 10, 50),
    step: float = 0.01,
    optimiser: str = "sgd",
    keep_models: bool = False,
) -> Adaptation:
    """Fine-tune every meta-model (one vector or any stack of them) to every task, by full-batch descent.

    The descent is on the support samples; loss and accuracy are on the query samples, after each number of `steps`.
    """
    if np.shape(meta)[-1:] != (model.size,):
        raise InputError(f"meta must be vectors of {model.size} weights, got shape {list(np.shape(meta))}.")
    if not len(steps) or not all(is_whole(s) and s >= 0 for s in steps):
        raise InputError(f"steps must be one or more whole numbers of at least 0, got {list(steps)}.")
    wanted = tuple(int(s) for s in steps)
    if list(wanted) != sorted(set(wanted)):
        raise InputError(f"steps must rise without repetition, got {list(wanted)}.")
    positive("step", step)
    make_optimiser(optimiser, step)
    for name, samples in (("tasks' support", tasks.support), ("tasks' query", tasks.query)):
        check_samples(model, samples, name)
    meta = jnp.asarray(meta, jnp.float32)
    flat = meta.reshape(-1, model.size)
    loss, accuracy, models = _adapt(model, wanted, step, optimiser, keep_models, flat, tasks)
    shape = (*meta.shape[:-1], *loss.shape[1:])
    usable = np.asarray(jnp.isfinite(flat).all(-1))[:, None, None]
    losses = np.where(usable, np.nan_to_num(np.asarray(loss), nan=np.inf, posinf=np.inf), np.nan)
    return Adaptation(
        wanted,
        losses.reshape(shape),
        np.where(usable, np.asarray(accuracy), np.nan).reshape(shape),
        models.reshape(*shape[:-1], model.size) if keep_models else None,
    )


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _adapt(
    model: Model, wanted: tuple[int, ...], step: float, name: str, keep_models: bool, metas: Array, tasks: Tasks
) -> tuple[Array, Array, Any]:
    chosen = make_optimiser(name, step)

    def descend(carry: tuple[Array, Any], support: Samples, steps: int) -> tuple[Array, Any]:
        def one(carry: tuple[Array, Any], _: None) -> tuple[tuple[Array, Any], None]:
            vector, memory = carry
            change, memory = chosen.update(jax.grad(model.loss)(vector, support), memory, vector)
            return (optax.apply_updates(vector, change), memory), None

        return jax.lax.scan(one, carry, None, length=steps)[0]

    def one_task(meta: Array, support: Samples, query: Samples) -> tuple[Array, Array, Any]:
        carry = (meta, chosen.init(meta))
        losses, accuracies, done = [], [], 0
        for target in wanted:
            carry = descend(carry, support, target - done) if target > done else carry
            done = target
            losses.append(model.loss(carry[0], query))
            accuracies.append(model.accuracy(carry[0], query))
        return jnp.stack(losses), jnp.stack(accuracies), carry[0] if keep_models else ()

    def one_meta(meta: Array) -> tuple[Array, Array, Any]:
        return jax.vmap(one_task, (None, 0, 0))(meta, tasks.support, tasks.query)

    return jax.lax.map(one_meta, metas)
