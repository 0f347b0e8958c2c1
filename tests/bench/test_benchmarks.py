"""docs/benchmarks.md says what its file of numbers says; other shots and links are judged and priced as a run would."""

import json
from pathlib import Path

import pytest

from bench import benchmarks
from fewjoule.energy import link
from fewjoule.reporting.run_folder import RunFolder
from fewjoule.studies.settings import make_study

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pages_tables_are_of_the_numbers():
    page = (DOCS / "benchmarks.md").read_text("utf-8")
    shown = page.split(benchmarks.MARKS[0])[1].split(benchmarks.MARKS[1])[0]
    assert shown.strip() == benchmarks.tables(json.loads((DOCS / "benchmarks.json").read_text("utf-8"))).strip()


def test_every_published_number_is_of_a_federation_and_says_what_differs():
    for row in benchmarks.PUBLISHED:
        assert row.shots is None or row.shots in benchmarks.FEDERATIONS[row.federation].shots
        assert row.source
        assert row.differs
        assert 50 < row.percent < 100


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    table = {
        "name": "small",
        "seeds": [0, 1, 2],
        "family": {"kind": "mnist", "digits": [[0, 1], [2, 3]], "samples": 40, "validation": 0, "ways": 3},
        "model": {"spec": "mlp:784-4-10"},
        "local": {"max_steps": 20, "batch": 20, "learning_rate": 0.1},
        "evaluation": {"tasks": 4, "shots": 2, "queries": 5, "steps": [0, 3], "headline": 3, "own_test": 0.25,
                       "statistic": "mean", "learning_rate": 0.1},
        "energy": {"meter": "operations"},
        "methods": [
            {"name": "average", "method": "average"},
            {"name": "random", "method": "random"},
            {"name": "fedavg", "method": "fedavg", "rounds": 2, "local_steps": 3, "batch": 10, "codec": "quantise:4"},
        ],
    }  # fmt: skip
    study = make_study(table, "small")
    run = study.run(tmp_path_factory.mktemp("benchmarks") / "run")
    return study, run, benchmarks.figures(study, run, (1, 2))


@pytest.mark.slow
def test_the_studys_own_shots_give_the_numbers_of_its_run(small):
    _, run, found = small
    for name, method in run.summary.methods.items():
        mine, theirs = found["methods"][name]["new_devices"][2], method.quality[3].accuracy
        assert mine["mean"] == pytest.approx(theirs.mean, abs=1e-6)
        assert mine["low"] == pytest.approx(theirs.low, abs=1e-6)
        assert mine["longest"]["mean"] == mine["mean"]  # the headline is the last number of steps
    assert found["devices"] == {1: 4, 2: 4}
    assert found["alone"]["mean"] == run.summary.alone.mean


@pytest.mark.slow
def test_every_message_is_priced_on_every_link(small):
    _, run, found = small
    assert isinstance(run, RunFolder)
    assert found["methods"]["random"]["uplink_bits"] == 0
    average = found["methods"]["average"]
    bits = 32 * run.summary.weights
    assert average["uplink_bits"] == bits
    assert average["joules"] == {name: pytest.approx(link(name).energy_joules(bits)) for name in benchmarks.LINKS}
    fedavg = found["methods"]["fedavg"]
    sizes = [row.bits for row in run.ledger if row.method == "fedavg" and row.phase == "uplink" and row.seed == 0]
    assert fedavg["uplink_bits"] == pytest.approx(sum(sizes) / 2)
    expected = sum(link("lte").energy_joules(size) for size in sizes) / 2
    assert fedavg["joules"]["lte"] == pytest.approx(expected)


@pytest.mark.slow
def test_a_table_has_every_method_once_and_marks_small_runs(small):
    *_, found = small
    text = benchmarks.tables(json.loads(json.dumps({"hapt": found | {"quick": True}})))
    part = text.split("### Activities")[1].split("###")[0]
    for label in ("average", "random", "fedavg", "alone (own local model)", "a new device alone"):
        assert part.count(f"| {label}") == 1
    assert "small run" in part
    assert text.count("Not run yet.") == len(benchmarks.FEDERATIONS) - 1
    assert "| FedRep | – | 99.56 | PFLlib |" in text
