"""Few-shot adaptation: fine-tune one or many meta-models to one or thousands of new tasks at once.

From meta-models and tasks to the loss and accuracy on each task's query samples after every number of steps asked for.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.energy import counts
from fewjoule.energy.metering import Around
from fewjoule.errors import DivergedWarning, InputError, is_whole, positive
from fewjoule.models.model import Model, check_samples
from fewjoule.tasks.samples import Samples, Tasks
from fewjoule.training.descent import descend
from fewjoule.training.descent import optimiser as make_optimiser
from fewjoule.training.mesh import busy_devices, gathered, in_groups, over_devices
from fewjoule.training.program import COMPILER_OPTIONS, Program
from fewjoule.training.tuning import ALL_WEIGHTS, Tuning, rated

TOGETHER_BYTES = 8 << 20
"""What the tasks that are fine-tuned at once may read and write in a step, as `count_once` adds it up. They go over the
same samples in every step, so they are fastest where all of it stays in a core's own cache: 500 sinusoids of 40 samples
1.3 times in groups of 10 beside all at once."""


@dataclass(frozen=True, repr=False)
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
        """Mean over all meta-models and tasks, by number of steps; infinite, with a warning, where one overflowed."""
        for line in self.overflows() if what == "loss" else ():
            warnings.warn(line, DivergedWarning, stacklevel=2)
        return self._over_tasks(what, np.mean)

    def overflows(self) -> list[str]:
        """For each number of steps after which the loss of some task is infinite, a line that says of how many."""
        lost = np.isinf(self.loss).reshape(-1, len(self.steps))
        return [
            f"after {steps} steps {count} of {len(lost)} fine-tunings overflowed, so the mean loss is infinite; look "
            "at the median, or lower the learning rate."
            for steps, count in zip(self.steps, lost.sum(0), strict=True)
            if count
        ]

    def quantile(self, q: float, what: str = "loss") -> dict[int, float]:
        """Quantile q (0 to 1) over all meta-models and tasks, by number of steps."""
        return self._over_tasks(what, partial(np.quantile, q=q))

    @property
    def _metric(self) -> str:
        return "loss" if np.isnan(self.accuracy).all() else "accuracy"

    def __repr__(self) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergedWarning)
            reached = ", ".join(f"{value:.4g} after {steps}" for steps, value in self.median(self._metric).items())
        return f"Adaptation({self.loss.shape[-2]} tasks: median {self._metric} {reached} steps)"

    def plot(self) -> Any:
        """Median loss or accuracy by number of steps, with the middle half of the tasks: an Altair chart."""
        import altair as alt

        metric = self._metric
        low, middle, high = (self.quantile(q, metric) for q in (0.25, 0.5, 0.75))
        rows = [{"steps": s, "median": middle[s], "low": low[s], "high": high[s]} for s in self.steps]
        base = alt.Chart(alt.InlineData(values=[row for row in rows if np.isfinite(list(row.values())).all()]))
        scale = alt.Scale(type="log" if metric == "loss" else "linear")
        band = base.mark_area(opacity=0.25).encode(x="steps:Q", y=alt.Y("low:Q", scale=scale), y2="high:Q")
        return band + base.mark_line(point=True).encode(x="steps:Q", y=alt.Y("median:Q", title=metric, scale=scale))

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
    learning_rate: float = 0.01,
    optimiser: str = "sgd",
    keep_models: bool = False,
    tuning: Tuning = ALL_WEIGHTS,
    rates: Array | None = None,
) -> Adaptation:
    """Fine-tune every meta-model (one vector or any stack of them) to every task, by full-batch descent.

    The descent is on the support samples; loss and accuracy are on the query samples, after each number of `steps`.
    `tuning` says which weights descend: that of a run is `run.method.tuning`. `rates`, shaped as `meta`, are learning
    rates of every weight, in place of `learning_rate` and `optimiser`: those of a run are `run.rates`.
    """
    wanted = _checked(model, meta, tasks, steps, learning_rate, optimiser)
    flat = np.asarray(meta, np.float32).reshape(-1, model.size)
    if rates is not None and np.shape(rates) != np.shape(meta):
        raise InputError(f"rates must be shaped as meta, {list(np.shape(meta))}, got {list(np.shape(rates))}.")
    own_rates = None if rates is None else np.asarray(rates, np.float32).reshape(flat.shape)
    static = (model, wanted, learning_rate, optimiser, keep_models, tuning, True)
    loss, accuracy, models = Program(adapt_all, static, (flat, tasks, own_rates)).run()
    shape = (*np.shape(meta)[:-1], *loss.shape[1:])
    losses, accuracies = _usable(loss, accuracy, np.isfinite(flat[..., None]).all(1, keepdims=True))
    adapted = gathered(models).reshape(*shape[:-1], model.size) if keep_models else None
    return Adaptation(wanted, losses.reshape(shape), accuracies.reshape(shape), adapted)


def adapt_ahead(
    model: Model, metas: int, tasks: Tasks, *, steps: Sequence[int], learning_rate: float, optimiser: str,
    tuning: Tuning, rated: bool,
) -> None:  # fmt: skip
    """Compile `adapt` of so many meta-models [metas, d], with rates or without, and run nothing."""
    vectors = jax.ShapeDtypeStruct((metas, model.size), jnp.float32)  # type: ignore[no-untyped-call]
    static = (model, tuple(steps), learning_rate, optimiser, False, tuning, True)
    Program(adapt_all, static, (vectors, tasks, vectors if rated else None)).compile()


def adapt_each(
    model: Model,
    starts: Array,
    tasks: Tasks,
    *,
    steps: Sequence[int] = (0, 1, 5, 10, 50),
    learning_rate: float = 0.01,
    optimiser: str = "sgd",
    tuning: Tuning = ALL_WEIGHTS,
) -> Adaptation:
    """Fine-tune every task's own model `starts` [tasks, d] to that task, as `adapt` does; one task after the other.

    Tasks may have thousands of samples each, as agents have.
    """
    wanted = _checked(model, starts, tasks, steps, learning_rate, optimiser)
    vectors = np.asarray(starts, np.float32)
    if vectors.shape[:-1] != tasks.support.mask.shape[:1]:
        raise InputError(f"starts must be one model per task: {len(tasks.support.mask)}, got {len(vectors)}.")
    loss, accuracy = _adapt_each(model, wanted, learning_rate, optimiser, tuning, vectors, tasks)
    return Adaptation(wanted, *_usable(loss, accuracy, np.isfinite(vectors).all(-1, keepdims=True)))


def _checked(
    model: Model, meta: Any, tasks: Tasks, steps: Sequence[int], learning_rate: float, optimiser: str
) -> tuple[int, ...]:
    """The numbers of steps, once everything fits."""
    if np.shape(meta)[-1:] != (model.size,):
        raise InputError(f"meta must be vectors of {model.size} weights, got shape {list(np.shape(meta))}.")
    if not len(steps) or not all(is_whole(s) and s >= 0 for s in steps):
        raise InputError(f"steps must be one or more whole numbers of at least 0, got {list(steps)}.")
    wanted = tuple(int(s) for s in steps)
    if list(wanted) != sorted(set(wanted)):
        raise InputError(f"steps must rise without repetition, got {list(wanted)}.")
    positive("learning_rate", learning_rate)
    make_optimiser(optimiser, learning_rate)
    for name, samples in (("tasks' support", tasks.support), ("tasks' query", tasks.query)):
        check_samples(model, samples, name)
    return wanted


def _usable(loss: Array, accuracy: Array, usable: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Infinite losses where fine-tuning overflowed, NaN where the model was not finite (`usable`) to begin with."""
    losses = np.where(usable, np.nan_to_num(np.asarray(loss), nan=np.inf, posinf=np.inf), np.nan)
    return losses, np.where(usable, np.asarray(accuracy), np.nan)


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5, 6), compiler_options=COMPILER_OPTIONS)
def adapt_all(
    model: Model,
    wanted: tuple[int, ...],
    learning_rate: float,
    name: str,
    keep_models: bool,
    tuning: Tuning,
    in_parts: bool,
    metas: Array,
    tasks: Tasks,
    rates: Array | None,
) -> tuple[Array, Array, Any]:
    """With `in_parts`, tasks are split over devices, and each takes as many at once as its cache holds."""

    def one_task(meta: Array, rates: Array | None, support: Samples, query: Samples) -> tuple[Array, Array, Any]:
        by = rated(make_optimiser(name, learning_rate), rates)
        judged, vector = at_each(model, wanted, by, tuning, meta, support, _judge(model, query))
        return *judged, vector if keep_models else ()

    def some_tasks(
        metas: Array, rates: Array | None, support: Samples, query: Samples, group: int | None = None
    ) -> Any:
        """All metas on these tasks; arrays [tasks, metas, ...]."""

        def one_meta(both: tuple[Array, Array | None]) -> Any:
            at_once = jax.vmap(partial(one_task, *both))
            return at_once(support, query) if group is None else in_groups(at_once, group, support, query)

        return jax.tree.map(lambda a: jnp.moveaxis(a, 0, 1), jax.lax.map(one_meta, (metas, rates)))

    count, run = len(tasks.support.mask), some_tasks
    if in_parts:
        first = (metas[0], None if rates is None else rates[0], *jax.tree.map(lambda a: a[0], tasks))
        flops, size_bytes = counts.count(one_task, *first).flops, counts.count_once(one_task, *first).bytes
        run = partial(some_tasks, group=max(1, TOGETHER_BYTES // size_bytes))
        run = over_devices(run, count, (False, False, True, True), busy_devices(count * len(metas) * flops))
    return jax.tree.map(lambda a: jnp.moveaxis(a, 1, 0), run(metas, rates, *tasks))


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4), compiler_options=COMPILER_OPTIONS)
def _adapt_each(
    model: Model, wanted: tuple[int, ...], learning_rate: float, name: str, tuning: Tuning, starts: Array, tasks: Tasks
) -> tuple[Array, Array]:
    by = make_optimiser(name, learning_rate)

    def some(starts: Array, tasks: Tasks) -> tuple[Array, Array]:
        def one(start: Array, task: Tasks) -> Any:
            return at_each(model, wanted, by, tuning, start, task.support, _judge(model, task.query))[0]

        judged: tuple[Array, Array] = jax.lax.map(lambda each: one(*each), (starts, tasks))
        return judged

    judged: tuple[Array, Array] = over_devices(some, len(starts), (True, True))(starts, tasks)
    return judged


def _judge(model: Model, query: Samples) -> Callable[[Array], tuple[Array, Array]]:
    return lambda vector: (model.loss(vector, query), model.accuracy(vector, query))


def at_each(
    model: Model, wanted: tuple[int, ...], by: Any, tuning: Tuning, start: Array, support: Samples,
    judge: Callable[[Array], Any],
) -> tuple[Any, Array]:  # fmt: skip
    """What `judge` says of the model [d] after each number of steps on the support, stacked; and the last model."""
    begin, loss, whole = tuning.problem(model, start, support)

    def go_on(carry: tuple[Array, Any], steps: int) -> tuple[tuple[Array, Any], Any]:
        if steps and not tuning.prototypes:
            reached = descend(loss, carry[0], support, by=by, steps=steps, memory=carry[1])
            carry = (reached.vector, reached.memory)
        return carry, judge(whole(carry[0]))

    carry, first = go_on((begin, by.init(begin)), wanted[0])
    gaps = np.diff(wanted)
    if len(gaps) > 10 and (gaps == gaps[0]).all():  # one loop, not a program as long as the list
        carry, rest = jax.lax.scan(lambda c, _: go_on(c, int(gaps[0])), carry, None, length=len(gaps))
        judged = jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), first, rest)
    else:
        each = [first]
        for gap in gaps:
            carry, now = go_on(carry, int(gap))
            each.append(now)
        judged = jax.tree.map(lambda *values: jnp.stack(values), *each)
    return judged, whole(carry[0])


class FineTuning:
    """Fine-tuning alone, without judging it: one meta-model to every task of `support` [tasks, ...].

    This is what a new device does, so it is what a meter goes around and what `adaptation_flops` counts.
    """

    def __init__(
        self, model: Model, meta: Array, support: Samples, *, steps: int, learning_rate: float, optimiser: str = "sgd",
        tuning: Tuning = ALL_WEIGHTS, rates: Array | None = None,
    ) -> None:  # fmt: skip
        static = (model, steps, learning_rate, optimiser, tuning)
        self._program = Program(_fine_tune, static, (np.asarray(meta, np.float32), support, rates))

    def compile(self) -> None:
        """Compile without running."""
        self._program.compile()

    def run(self, around: Around | None = None) -> Array:
        """The adapted models [tasks, d]. `around` is handed the execution of the compiled program."""
        adapted: Array = self._program.run(around)
        return adapted


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4), compiler_options=COMPILER_OPTIONS)
def _fine_tune(
    model: Model, steps: int, learning_rate: float, name: str, tuning: Tuning, meta: Array, support: Samples,
    rates: Array | None,
) -> Array:  # fmt: skip
    by = rated(make_optimiser(name, learning_rate), rates)
    return jax.vmap(lambda samples: tuning.tuned(model, meta, samples, by=by, steps=steps))(support)


def one_task(support: Samples, query: Samples | None = None) -> Tasks:
    """Samples [n, ...] as the only task of a stack; tested on themselves where no query is given."""
    pair = (support, support if query is None else query)
    return Tasks(*(jax.tree.map(lambda a: a[None], samples) for samples in pair))
