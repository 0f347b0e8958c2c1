"""Fine-tuning to one task, and the choice of steps, against the adaptation of many tasks and plain loops."""

import jax
import numpy as np
import pytest

from fewjoule import InputError, adapt
from fewjoule.cli.adapt import step_grid
from fewjoule.cli.evaluate import cdf_rows, quantile_rows
from fewjoule.models.nets import mlp
from fewjoule.tasks.samples import Samples, stack
from fewjoule.training.adapt import one_task
from fewjoule.training.choose import choose_steps

MODEL = mlp([1, 5, 1])
META = MODEL.init(jax.random.key(3))
X = np.linspace(-2, 2, 6)


def samples(rows: np.ndarray) -> Samples:
    stacked = stack([(X[rows], np.sin(X[rows]))])
    return Samples(stacked.x[0], stacked.y[0], stacked.mask[0])


def losses(support: Samples, query: Samples, steps: range, learning_rate: float) -> np.ndarray:
    return adapt(MODEL, META, one_task(support, query), steps=steps, learning_rate=learning_rate).loss[0]


def test_many_numbers_of_steps_in_one_loop_are_those_of_few() -> None:
    """Equal distances take another program than a short list does."""
    support, query = samples(np.arange(4)), samples(np.arange(2, 6))
    task = one_task(support, query)
    many = adapt(MODEL, META, task, steps=range(1, 20, 2), learning_rate=0.1, keep_models=True)
    longer = adapt(MODEL, META, task, steps=range(1, 40, 2), learning_rate=0.1)
    few = adapt(MODEL, META, task, steps=[1, 3, 19], learning_rate=0.1, keep_models=True)
    np.testing.assert_allclose(longer.loss[0][[0, 1, 9]], few.loss[0], rtol=1e-5)
    np.testing.assert_allclose(many.loss[0], longer.loss[0][:10], rtol=1e-5)
    assert many.models is not None
    assert few.models is not None
    np.testing.assert_allclose(many.models, few.models, rtol=1e-5, atol=1e-6)
    assert few.loss[0, -1] < few.loss[0, 0]


def test_every_step_is_that_of_a_plain_loop() -> None:
    support, query = samples(np.arange(4)), samples(np.arange(2, 6))
    vector, plain = META, [float(MODEL.loss(META, query))]
    for _ in range(15):
        vector = vector - 0.1 * jax.grad(MODEL.loss)(vector, support)
        plain.append(float(MODEL.loss(vector, query)))
    np.testing.assert_allclose(losses(support, query, range(16), 0.1), plain, rtol=1e-5)


def test_leaving_one_out_is_a_loop_over_samples() -> None:
    everything = np.arange(6)
    each = [
        losses(samples(np.delete(everything, i)), samples(everything[i : i + 1]), range(21), 0.3) for i in everything
    ]
    mean = np.mean(each, axis=0)
    choice = choose_steps(MODEL, META, samples(everything), most=20, by="leave-one-out", learning_rate=0.3)
    np.testing.assert_allclose(choice.loss, mean, rtol=1e-4)
    assert choice.steps == int(mean.argmin())


def test_a_validation_share_is_held_out_once() -> None:
    choice = choose_steps(
        MODEL, META, samples(np.arange(6)), most=5, by="validation", learning_rate=0.1, share=0.3, seed=1
    )
    rows = np.random.default_rng(1).permutation(6)
    held, fit = np.sort(rows[:2]), np.sort(rows[2:])
    expected = losses(samples(fit), samples(held), range(6), 0.1)
    np.testing.assert_allclose(choice.loss, expected, rtol=1e-4)


def test_what_cannot_be_chosen_is_said() -> None:
    one = samples(np.arange(1))
    with pytest.raises(InputError, match="needs at least 2 samples, got 1"):
        choose_steps(MODEL, META, one, most=5, by="leave-one-out", learning_rate=0.1)
    with pytest.raises(InputError, match="share must be above 0"):
        choose_steps(MODEL, META, samples(np.arange(6)), most=5, by="validation", learning_rate=0.1, share=1.0)
    assert step_grid(12) == (0, 1, 2, 3, 5, 7, 10, 12)
    assert step_grid(0) == (0,)


def test_the_distribution_over_tasks_is_the_share_at_or_below() -> None:
    values = np.array([[3.0], [1.0], [1.0], [2.0]])
    assert list(cdf_rows([10], values)) == [(10, "1.0", "0.5"), (10, "2.0", "0.75"), (10, "3.0", "1.0")]
    ((steps, mean, *quantiles),) = quantile_rows([10], values)
    assert (steps, mean) == (10, 1.75)
    np.testing.assert_allclose(quantiles, [1.0, 1.0, 1.5, 2.25, 2.85])  # trial 29: the median is everybody's median
