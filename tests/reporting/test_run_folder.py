"""The run folder: what is missing or damaged is named in one line, and what is written reads back the same."""

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from fewjoule.cli import main
from fewjoule.energy.ledger import KINDS, PHASES, Kind, Ledger, Phase
from fewjoule.errors import InputError
from fewjoule.reporting import write_report
from fewjoule.reporting.predictions import PREDICTIONS, Predictions
from fewjoule.reporting.run_folder import PATHS, TRACE, RunFolder, Summary
from fewjoule.simulation.run import Trace
from tests.reporting.run_folders import invented_predictions, make_folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("plain") / "run", tasks=3)


def replaced(name: str, old: str, new: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1), encoding="utf-8")

    return damage


def without(key: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        del summary[key]
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")

    return damage


DAMAGE = {
    "no folder": (lambda f: shutil.rmtree(f), "is not a folder"),
    "no summary": (lambda f: (f / "summary.json").unlink(), "summary.json is missing; finish it with"),
    "no study": (lambda f: (f / "study.toml").unlink(), "it has no study.toml"),
    "no trace": (lambda f: (f / "trace.csv").unlink(), "trace.csv is missing"),
    "half a summary": (lambda f: (f / "summary.json").write_text('{"format": 1, '), "summary.json cannot be used"),
    "another format": (replaced("summary.json", '"format": 1', '"format": 2'), "(format 2, this one reads 1); run"),
    "no format": (without("format"), "summary.json was written by another version of fewjoule (format None, this"),
    "no metric": (without("metric"), "metric: Field required"),
    "a wrong number": (replaced("summary.json", '"weights": 1761', '"weights": "many"'), "weights: Input"),
    "no steps": (replaced("summary.json", '"headline_steps": 10', '"headline_steps": 11'), "headline_steps 11"),
    "a wrong header": (replaced("evaluation.csv", "method,seed", "method,sed"), "evaluation.csv: the first line must"),
    "a short row": (
        replaced("trace.csv", "\nmeta_backward,0,1,", "\nmeta_backward,0,"),
        "trace.csv, line 2: a row",
    ),
    "a word for a number": (replaced("paths.csv", "amplitude 2,0,-4.0", "amplitude 2,0,west"), "pc1 must be a number"),
    "a stranger": (replaced("evaluation.csv", "\nmeta_backward,", "\nnobody,"), "no method 'nobody'"),
    "a wrong phase": (replaced("energy.csv", "pretraining", "sleeping"), "unknown phase 'sleeping'"),
    "binary": (lambda f: (f / "study.toml").write_bytes(b"\xff\xfe\x00"), "study.toml cannot be used"),
    "bad toml": (lambda f: (f / "study.toml").write_text("a = ["), "study.toml cannot be used"),
    "predictions that are none": (
        lambda f: (f / PREDICTIONS).write_bytes(b"{}"),
        "predictions.safetensors cannot be used",
    ),
    "half the predictions": (
        lambda f: (f / PREDICTIONS).write_bytes((f / PREDICTIONS).read_bytes()[:-9]),
        "predictions.safetensors cannot be used",
    ),
    "a file called figures": (lambda f: (f / "figures").write_text(""), "remove it"),
}


DEEP, LONG = "[" * 100_000, "9" * 5000
MEDIAN = json.dumps({"q05": 1, "q25": 1, "median": 1e300, "q75": 1, "q95": 1, "mean": 1, "low": None, "high": None})
TRIAL_20 = {
    "an empty round of a path": (replaced("paths.csv", "amplitude 2,0,", "amplitude 2,,"), "paths.csv"),
    "an infinite round of a path": (replaced("paths.csv", "amplitude 2,0,", "amplitude 2,inf,"), "paths.csv"),
    "half a round": (replaced("trace.csv", "\nmeta_backward,0,1,", "\nmeta_backward,0,1.5,"), "trace.csv"),
    "an empty round of a trace": (replaced("trace.csv", "\nmeta_backward,0,1,", "\nmeta_backward,0,,"), "trace.csv"),
    "a round below 0": (replaced("trace.csv", "\nmeta_backward,0,1,", "\nmeta_backward,0,-1,"), "trace.csv"),
    "endless steps": (
        replaced("evaluation.csv", "\nmaml,0,0,0,", "\nmaml,0,0,inf,"),
        "evaluation.csv",
    ),
    "a place beyond floats": (replaced("paths.csv", "amplitude 2,0,-4.0", "amplitude 2,0,-1e308"), "paths.csv"),
    "joules beyond floats": (replaced("energy.csv", ",24.0,", ",1e308,"), "energy.csv"),
    "bits of 5000 digits": (replaced("energy.csv", ",56352,", f",{LONG},"), "energy.csv"),
    "bits of 400 digits": (replaced("energy.csv", ",56352,", f",{LONG[:400]},"), "energy.csv"),
    "an endless cell": (replaced("energy.csv", "CPU time", "9" * 200_000), "energy.csv"),
    "a deep summary": (lambda f: (f / "summary.json").write_text(DEEP), "summary.json"),
    "a summary that is a list": (lambda f: (f / "summary.json").write_text("[1, 2]"), "summary.json"),
    "weights of 5000 digits": (replaced("summary.json", '"weights": 1761', f'"weights": {LONG}'), "summary.json"),
    "a wrong type": (replaced("summary.json", '"quality": {', '"quality": 3, "was": {'), "summary.json"),
    "no seeds": (replaced("summary.json", '"seeds": [', '"seeds": [], "were": ['), "summary.json"),
    "no agents": (replaced("summary.json", '"agents": [', '"agents": [], "were": ['), "summary.json"),
    "no bandwidth": (replaced("summary.json", '"bandwidth_hz": 5000.0', '"bandwidth_hz": 0'), "summary.json"),
    "a loss beyond floats": (replaced("summary.json", '"loss": {', f'"loss": {MEDIAN}, "was": {{'), "summary.json"),
    "half a character": (replaced("summary.json", '"Meta-Backward"', '"Meta\\ud800"'), "summary.json"),
    "a deep study": (lambda f: (f / "study.toml").write_text("a = " + DEEP), "study.toml"),
    "a study of 5000 digits": (lambda f: (f / "study.toml").write_text("a = " + LONG), "study.toml"),
}


@pytest.mark.parametrize("case", TRIAL_20)
def test_trial_20_damaged_numbers_are_one_line_that_names_the_file(plain: Path, tmp_path: Path, case: str) -> None:
    damage, file = TRIAL_20[case]
    folder = Path(shutil.copytree(plain, tmp_path / "run"))
    damage(folder)
    with pytest.raises(InputError) as refused:
        write_report(folder)
    assert str(folder / file) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_one_line_and_nothing_is_written(
    plain: Path, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, message = DAMAGE[case]
    folder = Path(shutil.copytree(plain, tmp_path / "run"))
    damage(folder)
    before = sorted(folder.rglob("*")) if folder.exists() else []
    monkeypatch.setattr("sys.argv", ["fewjoule", "report", str(folder)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("fewjoule: ")
    assert error.count("\n") == 1
    assert (sorted(folder.rglob("*")) if folder.exists() else []) == before


def test_an_ordinary_file_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError, match="is not a folder"):
        write_report(tmp_path / "notes.txt")
    with pytest.raises(InputError, match=r"is not a run folder: it has no study\.toml"):
        write_report(tmp_path)


def test_the_summary_is_written_as_it_was_read(plain: Path) -> None:
    text = (plain / "summary.json").read_text(encoding="utf-8")
    assert json.loads(Summary.read(plain).to_json()) == json.loads(text)


def test_what_a_summary_never_set_is_not_written(plain: Path) -> None:
    method = next(iter(Summary.read(plain).methods.values()))
    assert "traffic" not in method.model_dump(exclude_unset=True)
    assert method.model_copy(update={"skipped": 0}).model_dump(exclude_unset=True)["skipped"] == 0


def test_a_table_reads_back_what_it_wrote_whatever_the_names(tmp_path: Path, plain: Path) -> None:
    name = 'rate 0.1, "best"'
    summary = Summary.read(plain)
    summary = summary.model_copy(update={"methods": {name: next(iter(summary.methods.values()))}})
    PATHS.write(tmp_path, [(name, "", 0, 0.5, None), (name, "agent, 1", 1, "inf", -2.0)])
    columns = {key: column.tolist() for key, column in PATHS.read(tmp_path, summary).items()}
    assert math.isnan(columns["pc2"].pop(0))
    assert columns == {
        "method": [name, name], "agent": ["", "agent, 1"], "round": [0.0, 1.0], "pc1": [0.5, math.inf], "pc2": [-2.0],
    }  # fmt: skip


def test_the_trace_is_the_median_over_the_seeds_that_have_a_number(tmp_path: Path, plain: Path) -> None:
    rows = [("maml", seed, round_, loss, *[""] * 5) for seed, round_, loss in (
        (0, 1, 3.0), (0, 2, 5.0), (1, 1, 1.0), (1, 2, "inf"), (2, 1, 8.0), (2, 3, ""), (3, 1, 4.0),
    )]  # fmt: skip
    folder = Path(shutil.copytree(plain, tmp_path / "run"))
    TRACE.write(folder, rows)
    found = RunFolder.read(folder).trace["maml"]
    assert found["round"].tolist() == [1, 2, 3]
    assert found["loss"].tolist()[:2] == [3.5, 5.0]
    assert math.isnan(found["loss"][2])
    assert all(math.isnan(value) for value in found["radius"])


@pytest.mark.parametrize("agent", ["kitchen, north", '"hall', "=1+1", "@home", "-5", "'=1"])
def test_trial_16_an_agent_of_any_name_reads_back(plain: Path, tmp_path: Path, agent: str) -> None:
    folder = Path(shutil.copytree(plain, tmp_path / "run"))
    points = [("maml", agent, 0, 0.5, "-0.25"), ("maml", agent, 1, 0.25, "-0.125"), ("maml", "hall", 0, 1.0, 2.0)]
    PATHS.write(folder, points)
    ledger = Ledger.from_csv(folder / "energy.csv")
    ledger.add(method="maml", seed=0, agent=agent, phase="uplink", kind="analytic", source="=x", joules=1.0)
    ledger.to_csv(folder / "energy.csv", force=True)
    run = RunFolder.read(folder)
    assert run.paths["maml"][agent].tolist() == [[0, 0.5, -0.25], [1, 0.25, -0.125]]
    assert set(run.paths["maml"]) == {agent, "hall"}
    assert run.ledger == ledger


def test_the_schema_knows_the_ledger_s_phases_and_kinds_and_the_simulator_s_trace() -> None:
    assert get_args(Phase) == PHASES
    assert get_args(Kind) == KINDS
    assert TRACE.columns[3:] == Trace._fields


@pytest.mark.parametrize("metric", ["loss", "accuracy"])
def test_predictions_read_back_as_they_were_written(tmp_path: Path, metric: str) -> None:
    written = invented_predictions(metric, ["maml", 'rate 0.1, "best"'])
    written.write(tmp_path)
    read = Predictions.read(tmp_path)
    assert read is not None
    assert (read.steps, read.seed, read.classifies) == ([0, 1, 10], 0, metric == "accuracy")
    assert set(read.said) == set(written.said)
    for name in ("support_x", "support_y", "query_x", "query_y"):
        np.testing.assert_array_equal(getattr(read, name), getattr(written, name))
    for name, said in written.said.items():
        np.testing.assert_array_equal(read.said[name], said)
    assert Predictions.read(tmp_path / "elsewhere") is None


def test_predictions_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    good = invented_predictions("loss", ["maml"])
    for wrong in (replace(good, query_y=good.query_y[:, :3]), replace(good, said={"maml": good.query_y})):
        wrong.write(tmp_path)
        with pytest.raises(InputError, match="cannot be used"):
            Predictions.read(tmp_path)
