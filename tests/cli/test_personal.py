"""Methods with an own head on the command line: trained from files, adapted as their card says."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewjoule.models.weights import read_model
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
        ("protonet", ("rounds=2", "ways=3", "shots=2", "queries=2"), Tuning(prototypes=True)),
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
