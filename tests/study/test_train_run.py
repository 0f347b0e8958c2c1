"""Own agents as a study: the models they have are used, the rest is trained, and controls stand beside the method."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from fewjoule.energy import Ledger
from fewjoule.errors import InputError
from fewjoule.models.nets import mlp
from fewjoule.models.weights import write_model
from fewjoule.study.run import prepare
from fewjoule.study.settings import FilesFamily, Study, make_study
from fewjoule.study.train_run import pretrain_files, pretraining_part, study_of

MODEL = mlp([1, 6, 1])


def own_study(tmp_path: Path, **changes: object) -> Study:
    for name in ("agents", "new"):
        (tmp_path / name).mkdir(exist_ok=True)
    x = np.linspace(-5, 5, 20)
    for a in (1, 2, 3):
        np.savez(tmp_path / "agents" / f"a{a}.npz", x=x, y=a * np.sin(x))
        np.savez(
            tmp_path / "new" / f"t{a}.npz", x=x, y=2.5 * a * np.sin(x), x_test=x + 0.1, y_test=2.5 * a * np.sin(x + 0.1)
        )
    family = {"folder": str(tmp_path / "agents"), "new_tasks": str(tmp_path / "new"), **changes}
    return study_of(
        family, model=MODEL, init="glorot", method="fedavg", settings={"rounds": 2}, seed=3, local={"max_steps": 10},
        energy={"meter": "operations"}, evaluation={"steps": [0, 1], "headline": 1},
    )  # fmt: skip


def test_the_study_has_the_controls_and_as_many_tasks_as_files(tmp_path: Path) -> None:
    prepared = prepare(own_study(tmp_path))
    assert [entry.name for entry in prepared.study.methods] == ["fedavg", "average", "local", "random"]
    assert prepared.study.evaluation.tasks == 3
    assert prepared.agents.data.train.x.shape == (1, 3, 20, 1)
    # what is written to study.toml gives the same study again
    assert make_study(prepared.study.model_dump(mode="json", exclude_none=True), "again") == prepared.study


def test_given_models_are_kept_and_the_others_trained(tmp_path: Path) -> None:
    study = own_study(tmp_path, align="never")
    given = np.linspace(-1, 1, MODEL.size).astype(np.float32)
    write_model(tmp_path / "agents" / "a2.safetensors", MODEL, given)
    prepared = prepare(study)
    assert isinstance(study.family, FilesFamily)
    part = pretrain_files(study, study.family, MODEL, prepared.agents, study.energy.metering())
    np.testing.assert_array_equal(part.arrays["models"][0, 1], given)
    assert np.isfinite(part.arrays["models"]).all()
    assert not (part.arrays["models"][0, 0] == part.arrays["models"][0, 2]).all()
    assert part.facts["reading"]["joules"] > 0
    assert part.facts["flops"][0] > 0


def test_no_training_is_charged_where_every_agent_has_its_model(tmp_path: Path) -> None:
    study = own_study(tmp_path)
    for a in (1, 2, 3):
        write_model(tmp_path / "agents" / f"a{a}.safetensors", MODEL, np.full(MODEL.size, 0.1 * a))
    assert isinstance(study.family, FilesFamily)
    part = pretrain_files(study, study.family, MODEL, prepare(study).agents, study.energy.metering())
    assert part.facts == {"reading": None, "flops": [0]}


def test_finished_training_is_taken_over_with_its_energy() -> None:
    ledger = Ledger()
    assert pretraining_part(jnp.zeros((2, 3)), ledger).facts["reading"] is None
    ledger.add(method="m", seed=0, phase="pretraining", kind="modelled", source="s", joules=2, seconds=1, flops=7)
    part = pretraining_part(jnp.zeros((2, 3)), ledger)
    assert part.arrays["models"].shape == (1, 2, 3)
    assert part.facts == {"reading": {"joules": 2, "seconds": 1, "kind": "modelled", "source": "s"}, "flops": [7]}


def test_a_study_of_the_wrong_loss_is_refused(tmp_path: Path) -> None:
    study = own_study(tmp_path)
    wrong = study.model_copy(update={"model": study.model.model_copy(update={"loss": "cross_entropy"})})
    prepared = prepare(wrong)
    assert isinstance(wrong.family, FilesFamily)
    with pytest.raises(InputError, match=r"holds a regression task, but model.loss is cross_entropy; set mse"):
        pretrain_files(wrong, wrong.family, prepared.model, prepared.agents, study.energy.metering())
