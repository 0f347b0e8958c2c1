"""What is kept of a study's predictions is what its models say: the losses are those of the evaluation."""

import numpy as np
import pytest

import fewjoule as fj
from fewjoule.studies.families import Evaluation
from fewjoule.studies.predictions import TASKS, NewDevice, predict_new_tasks
from fewjoule.training.tuning import Tuning


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_kept_predictions_have_the_losses_of_the_evaluation(kind: str) -> None:
    if kind == "regression":
        model = fj.mlp([1, 4, 1])
        tasks = fj.sinusoid.new_tasks(TASKS + 2, amplitude=(1, 5), shots=5, queries=20, seed=1)
    else:
        model = fj.mlp([784, 4, 10], loss="cross_entropy")
        tasks = fj.mnist.new_tasks(TASKS + 2, ways=3, shots=2, queries=4, seed=1)
    evaluation = Evaluation(tasks=TASKS + 2, steps=[0, 1, 3], headline=3, learning_rate=0.05)
    rng = np.random.default_rng(0)
    metas = {"one": rng.normal(size=model.size).astype(np.float32), "gone": np.full(model.size, np.nan, np.float32)}
    found = predict_new_tasks(model, {name: NewDevice(meta) for name, meta in metas.items()}, tasks, evaluation, 7)
    assert (found.steps, found.seed, list(found.said)) == ([0, 1, 3], 7, ["one"])
    judged = fj.adapt(model, metas["one"], tasks, steps=[0, 1, 3], learning_rate=0.05)
    said, truth = found.said["one"], found.query_y
    if kind == "regression":
        np.testing.assert_allclose(((said - truth) ** 2).mean((-1, -2)).T, judged.loss[:TASKS], rtol=1e-4)
        assert found.support_y.shape[:2] == (TASKS, 5)
    else:
        np.testing.assert_allclose((said == truth).mean(-1).T, judged.accuracy[:TASKS], atol=1e-6)
        assert found.support_x.shape[1] == 0
        assert found.classifies


@pytest.mark.slow
def test_a_method_with_class_means_or_rates_of_its_own_is_shown_as_it_is_used() -> None:
    model = fj.mlp([784, 4, 10], loss="cross_entropy")
    tasks = fj.mnist.new_tasks(TASKS, ways=3, shots=2, queries=4, seed=1)
    evaluation = Evaluation(tasks=TASKS, steps=[0, 2], headline=2, learning_rate=0.05)
    meta, means = np.random.default_rng(0).normal(size=model.size).astype(np.float32), Tuning(prototypes=True)
    rates = np.full(model.size, 0.5, np.float32)
    starts = {"plain": NewDevice(meta), "means": NewDevice(meta, means), "rated": NewDevice(meta, rates=rates)}
    found = predict_new_tasks(model, starts, tasks, evaluation, 7)
    assert list(found.said) == list(starts)
    for name, how in (("means", {"tuning": means}), ("rated", {"rates": rates}), ("plain", {"learning_rate": 0.05})):
        due = fj.adapt(model, meta, tasks, steps=found.steps, **how).accuracy
        np.testing.assert_allclose((found.said[name] == found.query_y).mean(-1).T, due, atol=1e-6)
