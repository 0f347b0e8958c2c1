"""Methods with an own head on the command line: trained from files, adapted as their card says."""

import csv
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from fewjoule import mlp
from fewjoule.models.weights import read_model, write_model
from fewjoule.tasks.samples import make_tasks
from fewjoule.training.tuning import Tuning, tuning_of


@pytest.fixture
def places(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for folder, count in (("agents", 3), ("new", 2)):
        (tmp_path / folder).mkdir()
        for i in range(count):
            y = np.tile([0, 1, 2], 6)
            x = rng.normal(size=(18, 2)) + 3 * np.stack([np.cos(y + i), np.sin(y + i)], -1)
            np.savez(tmp_path / folder / f"{folder}{i}.npz", x=x, y=y, x_test=x[:6] + 0.1, y_test=y[:6])
    return tmp_path


@pytest.mark.parametrize(
    ("name", "settings", "tuning"),
    [
        pytest.param(
            "protonet",
            ("rounds=2", "ways=3", "shots=2", "queries=2"),
            Tuning(prototypes=True),
            marks=pytest.mark.slow,
        ),
        pytest.param("fedrep", ("rounds=2", "head_steps=2", "body_steps=2"), Tuning(head=1), marks=pytest.mark.slow),
        pytest.param("meta_sgd", ("rounds=2",), Tuning(), marks=pytest.mark.slow),
    ],
)
def test_train_evaluate_and_adapt(places: Path, fewjoule: Any, name: str, settings: Any, tuning: Tuning) -> None:
    sets = [part for each in settings for part in ("--set", each)]
    run = places / "run"
    code, _, told = fewjoule(
        "train", str(places / "agents"), "--method", name, *sets, "--model", "mlp:2-4-3", "--local-steps", "5",
        "--run", str(run), "-o", str(places / "meta.safetensors"),
        "--tasks", str(places / "new"), "--meter", "operations",
    )  # fmt: skip
    assert code == 0, told
    meta = next((run / "meta").glob(f"{name}-*.safetensors"))
    assert tuning_of(read_model(meta).card) == tuning
    for path in (meta, places / "meta.safetensors"):
        assert (read_model(path).rates is not None) == (name == "meta_sgd")
    with (run / "evaluation.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["method"] == name and row["task"] == "0"]
    assert len(rows) > 1
    assert (len({row["loss"] for row in rows}) == 1) == tuning.prototypes  # no steps, so the same after all of them
    fewjoule(
        "adapt", str(meta), str(places / "new" / "new0.npz"), "--steps", "3", "-o", str(places / "own.safetensors")
    )
    before, after = (read_model(path).vector for path in (meta, places / "own.safetensors"))
    moved = np.asarray(before != after)
    assert moved[-15:].any()
    assert moved[:-15].any() == (tuning == Tuning())  # the body stays where only the head is tuned


@pytest.mark.slow
def test_learned_rates_take_the_place_of_the_learning_rate(places: Path, fewjoule: Any) -> None:
    model, rng = mlp([2, 4, 3], loss="cross_entropy"), np.random.default_rng(1)
    vector, rates = rng.normal(size=model.size), rng.uniform(0, 0.3, size=model.size)
    task, own = places / "new" / "new0.npz", places / "own.safetensors"
    write_model(places / "rated.safetensors", model, vector, rates=rates)
    code, said, told = fewjoule(
        "adapt", str(places / "rated.safetensors"), str(task), "--steps", "1", "--learning-rate", "9", "-o", str(own)
    )
    assert code == 0, told
    assert "learned rates" in said + told
    pair = [(np.load(task)["x"].astype(np.float32), np.load(task)["y"].astype(np.int32))]
    samples = jax.tree.map(lambda a: a[0], make_tasks(pair, pair).support)
    due = vector - rates * jax.grad(model.loss)(jax.numpy.asarray(vector, "float32"), samples)
    np.testing.assert_allclose(read_model(own).vector, due, rtol=1e-4, atol=1e-5)
    assert read_model(own).card["adapted"]["learning_rate"] == "learned"
