"""`fewjoule run` end to end on a small study: the folder's contract, resuming after a kill, and wrong use."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fewjoule.cli import main
from fewjoule.energy import Ledger, link
from fewjoule.models.weights import read_model
from fewjoule.studies.parts import new_folder
from fewjoule.studies.settings import load_study
from fewjoule.tasks.mnist import FILES

STUDY = """
name = "small"
seeds = [0, 1]
[family]
kind = "sinusoid"
amplitudes = [2, 6, 10]
samples = 40
validation = 20
[model]
spec = "mlp:1-40-40-1"
[local]
max_steps = 400
batch = 20
[evaluation]
tasks = 12
queries = 20
steps = [0, 2]
headline = 2
[energy]
meter = "cpu-time"
[[methods]]
name = "backward"
method = "meta_backward"
rounds = 50
batch = 20
radius = 0.01
paper = true
[[methods]]
name = "explodes"
method = "meta_backward"
rounds = 50
learning_rate = 10.0
batch = 20
radius = "linear"
[[methods]]
name = "average"
method = "average"
[[methods]]
name = "random"
method = "random"
"""


def fewjoule(*arguments, cwd, cache, **options):
    environment = {**os.environ, "FEWJOULE_CACHE": str(cache), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "fewjoule", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, **options)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, cache):
    place = tmp_path_factory.mktemp("run")
    (place / "small.toml").write_text(STUDY)
    done = fewjoule("run", "small.toml", cwd=place, cache=cache)
    assert done.returncode == 0, done.stderr
    assert "explodes DIVERGED for seeds 0, 1" in done.stdout
    assert "sinusoids drawn from the seeds" in done.stdout
    assert "CPU time" in done.stdout
    return place / "runs/small"


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_the_folder_keeps_its_contract(folder):
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    expected = {"study.toml", "evaluation.csv", "energy.csv", "trace.csv", "paths.csv", "summary.json", "report.html"}
    assert expected <= names
    assert {f"meta/{m}-{s}.safetensors" for m in ("backward", "average", "random") for s in (0, 1)} <= names
    assert not any(n.startswith(("meta/explodes", ".parts")) for n in names)
    table = rows(folder / "evaluation.csv")
    assert list(table[0]) == ["method", "seed", "task", "steps", "loss", "accuracy"]
    assert len(table) == 3 * 2 * 12 * 2
    assert all(float(row["loss"]) >= 0 and row["accuracy"] == "" for row in table)


def test_the_summary_has_finite_numbers_or_diverged_and_shares_that_sum_to_one(folder):
    summary = json.loads((folder / "summary.json").read_text())
    methods = summary["methods"]
    assert sum(m["share_best"] for m in methods.values()) == pytest.approx(1)
    assert methods["explodes"]["diverged"] == [0, 1]
    assert methods["explodes"]["quality"] == {}
    assert methods["explodes"]["share_best"] == 0
    for name in ("backward", "average", "random"):
        assert methods[name]["diverged"] == []
        for steps in ("0", "2"):
            numbers = methods[name]["quality"][steps]["loss"]
            # trial 10: two seeds give no interval
            assert (numbers.pop("low"), numbers.pop("high")) == (None, None)
            assert np.isfinite(list(numbers.values())).all()
    table = [r for r in rows(folder / "evaluation.csv") if r["method"] == "average" and r["steps"] == "2"]
    median = methods["average"]["quality"]["2"]["loss"]["median"]
    assert median == pytest.approx(np.median([float(r["loss"]) for r in table]), rel=1e-6)


def test_the_energies_equal_the_papers_link_by_hand(folder):
    ledger = Ledger.from_csv(folder / "energy.csv")
    once = 1761 * 32 * 2 / (5000 * np.log2(5))  # joules of one float32 upload: bits x power / rate
    assert once == pytest.approx(9.708, abs=5e-4)
    for seed in (0, 1):
        first = ledger.total(method="backward", seed=seed, phase="uplink", round=0)
        whole = ledger.total(method="backward", seed=seed, phase="uplink")
        assert first == pytest.approx(3 * once)
        assert first == pytest.approx(29.1, abs=0.05)
        assert whole - first == pytest.approx(1456.2, abs=0.05)
        assert ledger.total(method="average", seed=seed, phase="uplink") == pytest.approx(3 * once)
        assert len(ledger.select(method="random", phase="uplink")) == 0
    assert {row.kind for row in ledger.select(phase="uplink")} == {"analytic"}
    assert {row.kind for row in ledger.select(phase=["pretraining", "computation", "adaptation"])} == {"modelled"}
    summary = json.loads((folder / "summary.json").read_text())
    uplink = summary["methods"]["backward"]["energy"]["uplink"]["analytic"]
    assert uplink["joules"] == pytest.approx(51 * 3 * once)
    assert uplink["seconds"] == pytest.approx(51 * link("paper").seconds(1761 * 32))  # three agents at once
    assert summary["methods"]["backward"]["uplink_values"] == 51 * 3 * 1761


def test_the_meta_models_carry_their_card(folder):
    loaded = read_model(folder / "meta/backward-1.safetensors")
    assert loaded.model.size == 1761
    assert loaded.card["method"]["method"] == "meta_backward"
    assert loaded.card["seed"] == 1


STABLE = ("evaluation.csv", "trace.csv", "paths.csv", "meta/backward-0.safetensors", "meta/average-1.safetensors")


def numbers(path):
    """What must not change between two runs of a study."""
    kept = {name: (path / name).read_bytes() for name in STABLE}
    kept["energy"] = [
        tuple(v for k, v in row.items() if row["kind"] == "analytic" or k not in ("joules", "seconds"))
        for row in rows(path / "energy.csv")
    ]
    return kept


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_numbers(folder, cache, tmp_path):
    environment = {**os.environ, "FEWJOULE_CACHE": str(cache), "JAX_PLATFORMS": "cpu"}
    study = folder.parents[1] / "small.toml"
    command = [sys.executable, "-m", "fewjoule", "run", str(study), "--out", "killed"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    killed = tmp_path / "killed"
    deadline = time.monotonic() + 240
    while (
        not list(killed.glob(".parts/method-*.safetensors")) and process.poll() is None and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = {p.name: p.stat().st_mtime_ns for p in killed.glob(".parts/method-*.safetensors")}
    assert finished, "the run was killed before its first method ended"
    assert not (killed / "summary.json").exists(), "the run ended before it was killed"
    wrong = fewjoule("run", "sinusoid", "--resume", "killed", cwd=tmp_path, cache=cache)
    assert wrong.returncode == 2
    assert "holds the study 'small', not 'sinusoid'" in wrong.stderr
    done = fewjoule("run", "--resume", "killed", cwd=tmp_path, cache=cache)
    assert done.returncode == 0, done.stderr
    assert numbers(killed) == numbers(folder)
    again = fewjoule("run", "--resume", "killed", cwd=tmp_path, cache=cache)
    assert again.returncode == 2
    assert "nothing is left to resume" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run",), "name a study"),
        (("run", "sinsoid"), "did you mean 'sinusoid'"),
        (("run", "none.toml"), "none.toml does not exist"),
        (("run", "bad.toml"), "bad.toml: unknown key 'seed'; did you mean 'seeds'?"),
        (("run", "sinusoid", "--seeds", "x"), "--seeds takes a number of seeds"),
        (("run", "sinusoid", "--out", "taken"), "taken exists and is not empty"),
        (("run", "sinusoid", "--out", "bad.toml/x"), "cannot be written to"),
        (("run", "mnist", "--data-dir", "taken"), "does not exist; the folder must hold"),
        (("run", "--resume", "nowhere"), "is not a folder"),
        (("run", "--resume", "taken"), "is not a run folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2_and_leaves_nothing_behind(
    tmp_path, monkeypatch, capsys, arguments, message
):
    (tmp_path / "bad.toml").write_text(STUDY.replace("seeds", "seed", 1))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").write_text("mine")
    before = sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fewjoule", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    errors = capsys.readouterr().err
    assert stop.value.code == 2
    assert message in errors
    assert errors.count("\n") == 1
    assert sorted(p.relative_to(tmp_path) for p in tmp_path.rglob("*")) == before


def test_a_corrupt_data_file_is_refused_before_anything_is_written(tmp_path, cache):
    for name in FILES:
        (tmp_path / name).write_bytes(b"broken")
    done = fewjoule("run", "mnist", "--data-dir", tmp_path, cwd=tmp_path, cache=cache)
    assert done.returncode == 2
    assert "is not the original file" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_second_run_takes_the_next_free_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    study = load_study("sinusoid")
    assert [str(new_folder(study, None)) for _ in range(3)] == ["runs/sinusoid", "runs/sinusoid-2", "runs/sinusoid-3"]


@pytest.mark.slow
def test_interrupting_says_how_to_go_on(folder, cache, tmp_path):
    environment = {**os.environ, "FEWJOULE_CACHE": str(cache), "JAX_PLATFORMS": "cpu"}
    study = folder.parents[1] / "small.toml"
    command = [sys.executable, "-m", "fewjoule", "run", str(study), "--out", "stopped"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 240
    while not Path(tmp_path / "stopped/.parts/pretraining.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "continue with: fewjoule run --resume stopped" in errors
    assert "Traceback" not in errors
