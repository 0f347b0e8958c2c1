"""Fine-tuning to one task, and the choice of steps, against the adaptation of many tasks and plain loops."""

import jax
import numpy as np
import pytest

from fewjoule import InputError, adapt
from fewjoule.cli.predictions import cdf_table, quantile_rows
from fewjoule.models.nets import mlp
from fewjoule.tasks.samples import Samples, stack
from fewjoule.training.fine_tune import choose_steps, fine_tune, one_task, step_grid

MODEL = mlp([1, 5, 1])
META = MODEL.init(jax.random.key(3))
X = np.linspace(-2, 2, 6)


def samples(rows: np.ndarray) -> Samples:
    stacked = stack([(X[rows], np.sin(X[rows]))])
    return Samples(stacked.x[0], stacked.y[0], stacked.mask[0])


def test_every_step_is_that_of_the_adaptation_of_many_tasks() -> None:
    support, query = samples(np.arange(4)), samples(np.arange(2, 6))
    done = fine_tune(MODEL, META, support, query, steps=7, step=0.1)
    expected = adapt(MODEL, META, one_task(support, query), steps=range(8), step=0.1, keep_models=True)
    assert expected.models is not None
    np.testing.assert_allclose(done.test_loss, expected.loss[0], rtol=1e-5)
    np.testing.assert_allclose(done.vector, expected.models[0], rtol=1e-5, atol=1e-6)
    assert done.loss[-1] < done.loss[0]


def test_leaving_one_out_is_a_loop_over_samples() -> None:
    everything = np.arange(6)
    losses = [
        fine_tune(
            MODEL, META, samples(np.delete(everything, i)), samples(everything[i : i + 1]), steps=20, step=0.3
        ).test_loss
        for i in everything
    ]
    mean = np.mean(losses, axis=0)
    choice = choose_steps(MODEL, META, samples(everything), most=20, by="leave-one-out", step=0.3)
    np.testing.assert_allclose(choice.loss, mean, rtol=1e-4)
    assert choice.steps == int(mean.argmin())


def test_a_validation_share_is_held_out_once() -> None:
    choice = choose_steps(MODEL, META, samples(np.arange(6)), most=5, by="validation", step=0.1, share=0.3, seed=1)
    rows = np.random.default_rng(1).permutation(6)
    held, fit = np.sort(rows[:2]), np.sort(rows[2:])
    expected = fine_tune(MODEL, META, samples(fit), samples(held), steps=5, step=0.1).test_loss
    np.testing.assert_allclose(choice.loss, expected, rtol=1e-4)


def test_what_cannot_be_chosen_is_said() -> None:
    one = samples(np.arange(1))
    with pytest.raises(InputError, match="needs at least 2 samples, got 1"):
        choose_steps(MODEL, META, one, most=5, by="leave-one-out", step=0.1)
    with pytest.raises(InputError, match="share must be above 0"):
        choose_steps(MODEL, META, samples(np.arange(6)), most=5, by="validation", step=0.1, share=1.0)
    with pytest.raises(InputError, match="steps must be at least 0"):
        fine_tune(MODEL, META, one, None, steps=-1, step=0.1)
    assert step_grid(12) == (0, 1, 2, 3, 5, 7, 10, 12)
    assert step_grid(0) == (0,)


def test_the_distribution_over_tasks_is_the_share_at_or_below() -> None:
    values = np.array([[3.0], [1.0], [1.0], [2.0]])
    assert cdf_table([10], values) == "steps,value,share\n10,1.0,0.5\n10,2.0,0.75\n10,3.0,1.0\n"
    assert quantile_rows([10], values) == [[10, 1.75, 1.0, 1.0, 1.0, 2.0, 3.0]]
