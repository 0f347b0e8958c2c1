"""From the server's results to the run folder."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewjoule import InputError
from fewjoule.federation import blocks
from fewjoule.federation.results import Result, read_result, write_federated_folder
from fewjoule.federation.spec import load_federated_study, specs_of
from fewjoule.federation.state import State, pack, unpack
from fewjoule.studies.prepare import prepare
from fewjoule.studies.settings import Study, make_study
from tests.federation.bench import NAMES, SHORT, Bench


def finished(bench: Bench, name: str, **changes: Any) -> tuple[Study, Result]:
    entry = {"name": name, "method": name, **SHORT[name]}
    table = {"name": "test", "seeds": [0], "model": {"spec": bench.model.spec}, "methods": [entry], "federation": {}}
    server, outcome = bench.run(bench.spec(name, **changes))
    assert outcome.status == "complete"
    return make_study(table, "test"), read_result(server.result())


def summary_of(folder: Path, study: Study, result: Result) -> Any:
    folder.mkdir()
    write_federated_folder(folder, study, [result])
    return json.loads((folder / "summary.json").read_text())["methods"][study.methods[0].name]


@pytest.mark.parametrize(
    ("lines", "loss"),
    [('[model]\nspec = "mlp:1-4-1"', "mse"), ('[model]\nspec = "mlp:2-4-3"\nloss = "cross_entropy"', "cross_entropy")],
)
def test_a_study_file_becomes_one_spec_per_method_and_seed(tmp_path: Path, lines: str, loss: str) -> None:
    path = tmp_path / "study.toml"
    methods = "".join(f'[[methods]]\nname = "{name}"\nmethod = "{name}"\n' for name in ("average", "fedavg"))
    path.write_text(f'name = "test"\nseeds = [0, 5]\n{lines}\n[federation]\npolicy = "stop"\n{methods}')
    specs = specs_of(load_federated_study(str(path)), NAMES)
    assert [(s.method["method"], s.seed) for s in specs] == [(m, s) for m in ("average", "fedavg") for s in (0, 5)]
    assert {(s.policy, s.model["loss"], s.agents) for s in specs} == {("stop", loss, NAMES)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"federation": {"polcy": "skip"}}, r"test: unknown key 'polcy' in \[federation\]; did you mean 'policy'"),
        ({"federation": {"policy": "hope"}}, "test: federation.policy: .*got 'hope'"),
        ({"federation": {}, "family": {"kind": "files", "folder": "x"}}, "in a federation, got 'files'"),
        ({}, "test: family is missing; add it"),
        ({"federation": {}}, "start it with: fewjoule federation run"),
        ({"federation": {}, "family": {"kind": "sinusoid", "amplitudes": [1.0]}}, "start it with: fewjoule federation"),
    ],
)
def test_a_wrong_table_and_a_simulation_without_data_are_refused(changes: dict[str, Any], words: str) -> None:
    entry = {"name": "average", "method": "average"}
    table = {"name": "test", "seeds": [0], "model": {"spec": "mlp:1-4-1"}, "methods": [entry], **changes}
    with pytest.raises(InputError, match=words):
        prepare(make_study(table, "test"))


@pytest.mark.parametrize(("name", "diverged"), [("fedsgd", [0]), ("maml", [])])
def test_trial_3_divergence_is_the_simulators_rule(bench: Bench, name: str, diverged: list[int]) -> None:
    """Only methods with inner steps may raise the agents' loss at the meta-model."""
    study, result = finished(bench, name)
    result = result._replace(losses=np.array([1.4e15, 3.4]))
    assert np.nanmax(result.trace.loss) < 34
    assert summary_of(bench.folder / "run", study, result)["diverged"] == diverged


def test_traffic_and_skipped_rows_name_method_seed_agent_and_round(bench: Bench) -> None:
    study, result = finished(bench, "fedavg")
    left_out = {"exchange": "round", "round": 1, "agent": "south", "reason": "late, and then gone"}
    method = summary_of(bench.folder / "run", study, result._replace(skipped=[left_out]))
    with (bench.folder / "run" / "traffic.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["method"], row["seed"], row["agent"]) for row in rows} == {("fedavg", "0", name) for name in NAMES}
    assert sum(int(row["charged_up"]) for row in rows) == method["traffic"]["charged_up"]
    assert {row["network_up"] for row in rows} == {""}  # no sockets in this process
    with (bench.folder / "run" / "skipped.csv").open() as file:
        assert list(csv.DictReader(file)) == [{"method": "fedavg", "seed": "0", **left_out, "round": "1"}]


@pytest.mark.parametrize("without", ["spec", "meta", "trace"])
def test_what_is_no_result_is_refused(bench: Bench, without: str) -> None:
    server, _ = bench.run(bench.spec("average"))
    values, arrays = unpack(server.result(), blocks.RESULT, None)
    values, arrays = ({k: v for k, v in each.items() if k != without} for each in (values, arrays))
    with pytest.raises(InputError, match=f"result cannot be read: .*{without}"):
        read_result(pack(blocks.RESULT, server.spec.run, State(values, arrays)))
    with pytest.raises(InputError, match="result cannot be read"):
        read_result(b"nothing")
