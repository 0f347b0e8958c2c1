"""A run's place on disk: one run at a time, continued only with what it was begun with, nothing left behind."""

from pathlib import Path

import numpy as np
import pytest

from fewjoule.errors import InputError
from fewjoule.files import LEFTOVER, locked, sweep, write_atomically
from fewjoule.studies.parts import Part, Parts, new_folder
from fewjoule.studies.prepare import digest, prepare
from fewjoule.studies.run import Told, run_study
from fewjoule.studies.settings import load_study

SMALL = {"evaluation.tasks": 2, "evaluation.steps": [0, 10], "local.max_steps": 5}


@pytest.fixture
def prepared():
    return prepare(load_study("sinusoid", settings=SMALL, seeds=[0], quick=True))


def test_trial_17_a_folder_that_is_being_run_is_not_run_again(prepared, tmp_path):
    folder = new_folder(prepared.study, str(tmp_path / "run"))
    with locked(folder / ".parts" / "lock", "busy"), pytest.raises(InputError, match="is being run by another process"):
        run_study(prepared, folder, Told(print))
    with pytest.raises(InputError, match="exists and is not empty"):
        new_folder(prepared.study, str(tmp_path / "run"))


def test_trial_17_two_new_runs_never_share_a_folder(prepared, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = [new_folder(prepared.study, None) for _ in range(3)]
    assert folders == [Path("runs/sinusoid"), Path("runs/sinusoid-2"), Path("runs/sinusoid-3")]


def test_trial_10_a_run_is_not_continued_with_other_data_or_settings(prepared, tmp_path):
    folder = new_folder(prepared.study, str(tmp_path / "run"))
    Parts(folder / ".parts").begin(digest(prepared))
    Parts(folder / ".parts").begin(digest(prepared))  # the same is welcome
    data = prepared.agents.data
    other = prepared._replace(
        agents=type(prepared.agents)(
            data._replace(train=data.train._replace(y=data.train.y + 1)), prepared.agents.names, prepared.agents.seeds
        )
    )
    longer = prepared._replace(study=prepared.study.model_copy(update={"title": "another"}))
    for changed in (other, longer):
        with pytest.raises(InputError, match="was begun with other data or settings"):
            run_study(changed, folder, Told(print))


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", b"\x08\0\0\0\0\0\0\0{", b"\xff" * 64])
def test_trial_20_a_damaged_part_is_one_line(tmp_path, damage):
    parts = Parts(tmp_path)
    parts.save("stage", Part({"a": np.arange(3.0)}, {"b": [1]}))
    assert parts.load("stage").facts == {"b": [1]}
    (tmp_path / "stage.safetensors").write_bytes(damage)
    with pytest.raises(InputError, match=r"stage.safetensors is damaged .*delete it and resume again"):
        parts.load("stage")


def test_trial_21_what_killed_writers_left_is_swept(tmp_path):
    write_atomically(tmp_path / "kept", b"x")
    (tmp_path / f".kept.abc{LEFTOVER}").write_bytes(b"half")
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
