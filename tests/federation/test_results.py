"""From the server's results to the run folder."""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewjoule import InputError
from fewjoule.federation import blocks
from fewjoule.federation.agent import AgentRunner
from fewjoule.federation.drive import Answers, drive
from fewjoule.federation.results import Result, read_result, traffic, write_federated_folder
from fewjoule.federation.spec import load_federated_study, specs_of
from fewjoule.federation.state import State, pack, unpack
from fewjoule.studies.prepare import prepare
from fewjoule.studies.settings import Study, make_study
from tests.federation.bench import NAMES, SHORT, Bench, LocalChannel


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
    assert {row["exchange"] for row in rows} == {"agreement", "upload", "round", "close"}
    assert {(row["method"], row["seed"], row["agent"]) for row in rows} == {("fedavg", "0", name) for name in NAMES}
    assert sum(int(row["charged_up"]) for row in rows) == method["traffic"]["charged_up"]
    assert {row["network_up"] for row in rows} == {""}  # no sockets in this process
    with (bench.folder / "run" / "skipped.csv").open() as file:
        assert list(csv.DictReader(file)) == [{"method": "fedavg", "seed": "0", **left_out, "round": "1"}]


class Counting(LocalChannel):
    """Counts what crosses it: bytes to and from each agent."""

    def __init__(self, agents: Mapping[str, AgentRunner]) -> None:
        super().__init__(agents)
        self.up, self.down = Counter[str](), Counter[str]()

    def agree(self, names: Iterable[str], spec: str, timeout_seconds: float) -> Answers:
        requests = dict.fromkeys(names, spec.encode())
        return self._count(requests, super().agree(requests, spec, timeout_seconds))

    def call(self, requests: Mapping[str, bytes], timeout_seconds: float) -> Answers:
        return self._count(requests, super().call(requests, timeout_seconds))

    def _count(self, requests: Mapping[str, bytes], answers: Answers) -> Answers:
        for name, request in requests.items():
            self.down[name] += len(request)
            self.up[name] += len(answers.replies[name])
        return answers


@pytest.mark.parametrize(
    ("name", "settings"),
    [("fedavg", {"weighting": "samples"}), ("meta_backward", {"codec": "quantise:3"})],
    ids=["samples", "coded"],
)
def test_traffic_holds_every_byte_that_crossed_agreement_included(
    bench: Bench, name: str, settings: dict[str, Any]
) -> None:
    """What a channel carried, what sockets counted (each agent's reads one more at every answer), what the ledger
    charges: the rows add up to each. The run is stopped on the way, so everybody agrees twice."""
    moved = dict.fromkeys(NAMES, 5.0)

    def counter(of: str) -> Any:
        def read() -> tuple[float, float]:
            moved[of] += 1
            return moved[of], 10 * moved[of]

        return read

    channel = Counting({n: bench.agent(n, traffic=counter(n)) for n in NAMES})
    spec = bench.spec(name, settings=settings)
    server = bench.server(spec)
    assert drive(server, channel, asked_to_stop=lambda: "enough" if server.exchange == 2 else "").status == "paused"
    stopped = server.status()["payload_bytes"]
    again, outcome = bench.run(spec, channel=channel)
    assert outcome.status == "complete"
    result = read_result(again.result())
    rows = traffic(result)
    for i, agent in enumerate(NAMES):
        own = [row for row in rows if row["agent"] == agent]
        assert (own[0]["exchange"], own[0]["round"], own[0]["network_down"]) == ("agreement", 0, None)
        assert sum(row["payload_up"] for row in own) == channel.up[agent]
        assert sum(row["payload_down"] for row in own) == channel.down[agent]
        assert sum(row["network_up"] or 0 for row in own) == moved[agent] - 6  # from its first answer to its last
        assert sum(row["network_down"] or 0 for row in own) == 10 * (moved[agent] - 6)
        for way in ("charged_up", "charged_down"):
            assert 8 * sum(row[way] for row in own) == result.bits(way)[:, i].sum()
    crossed = sum(channel.up.values()) + sum(channel.down.values())
    assert again.status()["payload_bytes"] == crossed > stopped > 0


@pytest.mark.parametrize("without", ["spec", "meta", "trace"])
def test_what_is_no_result_is_refused(bench: Bench, without: str) -> None:
    server, _ = bench.run(bench.spec("average"))
    values, arrays = unpack(server.result(), blocks.RESULT, None)
    values, arrays = ({k: v for k, v in each.items() if k != without} for each in (values, arrays))
    with pytest.raises(InputError, match=f"result cannot be read: .*{without}"):
        read_result(pack(blocks.RESULT, server.spec.run, State(values, arrays)))
    with pytest.raises(InputError, match="result cannot be read"):
        read_result(b"nothing")
