"""Own agents as a study: the models they have are used, the rest is trained, and controls stand beside the method."""

from pathlib import Path

import numpy as np
import pytest

from fewjoule.errors import InputError
from fewjoule.models.nets import mlp
from fewjoule.models.weights import write_model
from fewjoule.studies.prepare import own_study as study_of
from fewjoule.studies.prepare import prepare
from fewjoule.studies.pretrain import pretrain
from fewjoule.studies.run import Told
from fewjoule.studies.settings import Study, make_study

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
    tables = {
        "family": {"kind": "files", "folder": str(tmp_path / "agents"), "new_tasks": str(tmp_path / "new"), **changes},
        "model": {"spec": MODEL.spec},
        "local": {"max_steps": 10},
        "energy": {"meter": "operations"},
        "evaluation": {"steps": [0, 1], "headline": 1},
    }
    settings = {"rounds": 2}
    return study_of(tables, folder=tmp_path / "agents", method="fedavg", settings=settings, seed=3, where="here")


def test_the_study_has_the_controls_and_as_many_tasks_as_files(tmp_path: Path) -> None:
    prepared = prepare(own_study(tmp_path))
    assert [entry.name for entry in prepared.study.methods] == ["fedavg", "average", "local", "random"]
    assert prepared.study.evaluation.tasks == 3
    assert prepared.agents.data.train.x.shape == (1, 3, 20, 1)
    # what is written to study.toml gives the same study again
    assert make_study(prepared.study.model_dump(mode="json", exclude_none=True), "again") == prepared.study


@pytest.mark.slow
def test_given_models_are_kept_and_the_others_trained(tmp_path: Path) -> None:
    study = own_study(tmp_path, align="never")
    given = np.linspace(-1, 1, MODEL.size).astype(np.float32)
    write_model(tmp_path / "agents" / "a2.safetensors", MODEL, given)
    part = pretrain(prepare(study), study.energy.metering(), Told(print))
    np.testing.assert_array_equal(part.arrays["models"][0, 1], given)
    assert np.isfinite(part.arrays["models"]).all()
    assert not (part.arrays["models"][0, 0] == part.arrays["models"][0, 2]).all()
    assert part.facts["reading"]["joules"] > 0
    assert [flops > 0 for flops in part.facts["flops"][0]] == [True, False, True]


def test_no_training_is_charged_where_every_agent_has_its_model(tmp_path: Path) -> None:
    study = own_study(tmp_path)
    for a in (1, 2, 3):
        write_model(tmp_path / "agents" / f"a{a}.safetensors", MODEL, np.full(MODEL.size, 0.1 * a))
    part = pretrain(prepare(study), study.energy.metering(), Told(print))
    assert part.facts["reading"] is None
    assert part.facts["flops"] == [[0, 0, 0]]
    assert part.facts["trained"] == [False] * 3


def test_a_study_of_the_wrong_loss_is_refused(tmp_path: Path) -> None:
    study = own_study(tmp_path)
    wrong = study.model_copy(update={"model": study.model.model_copy(update={"loss": "cross_entropy"})})
    with pytest.raises(InputError, match=r"holds a regression task, but model.loss is cross_entropy; set mse"):
        prepare(wrong)
    assert prepare(study).study.model.loss == "mse"  # where it is left out, the data say it


def test_trial_28_local_models_are_kept_for_the_next_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWJOULE_CACHE", str(tmp_path / "cache"))
    study, lines = own_study(tmp_path), []
    first = pretrain(prepare(study), study.energy.metering(), Told(lines.append))
    assert not any("as trained before" in line for line in lines)
    other = study.model_copy(update={"methods": study.methods[1:]})  # other methods, the same local models
    second = pretrain(prepare(other), study.energy.metering(), Told(lines.append))
    assert any("as trained before" in line for line in lines)
    np.testing.assert_array_equal(first.arrays["models"], second.arrays["models"])
    assert first.facts["reading"] == second.facts["reading"]
    lines.clear()
    longer = study.model_copy(update={"local": study.local.model_copy(update={"max_steps": 11})})
    pretrain(prepare(longer), study.energy.metering(), Told(lines.append))
    x = np.linspace(-5, 5, 20)
    np.savez(tmp_path / "agents" / "a1.npz", x=x, y=np.cos(x))  # other data
    pretrain(prepare(study), study.energy.metering(), Told(lines.append))
    assert not any("as trained before" in line for line in lines)
