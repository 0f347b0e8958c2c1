"""docs/benchmarks.md says what its file of numbers says; other shots and links are judged and priced as a run would."""

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from bench import benchmarks
from bench.benchmark_tables import LINKS, percent, tables
from bench.federations import FEDERATIONS, PUBLISHED, Federation, Judged, named
from fewjoule.energy import link
from fewjoule.reporting.run_folder import RunFolder
from fewjoule.studies.settings import load_study, make_study

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pages_tables_are_of_the_numbers():
    page = (DOCS / "benchmarks.md").read_text("utf-8")
    shown = page.split(benchmarks.MARKS[0])[1].split(benchmarks.MARKS[1])[0]
    assert shown.strip() == tables(json.loads((DOCS / "benchmarks.json").read_text("utf-8"))).strip()


def test_every_published_number_is_of_a_federation_and_says_what_differs():
    for row in PUBLISHED:
        federation = FEDERATIONS[row.federation]
        assert row.judged is None or row.judged in federation.judged
        assert row.ours in [entry.name for entry in load_study(federation.study).methods]
        assert row.source
        assert row.differs
        assert 50 < row.percent < 100


def test_a_studys_name_stands_for_its_federations():
    assert named([]) == list(FEDERATIONS)
    assert named(["omniglot"]) == ["omniglot-964", "omniglot-1200"]
    assert named(["hapt", "fashion-dirichlet"]) == ["hapt", "fashion-dirichlet"]


METHODS = [
    {"name": "average", "method": "average"},
    {"name": "random", "method": "random"},
    {"name": "fedavg", "method": "fedavg", "rounds": 2, "local_steps": 3, "batch": 10, "codec": "quantise:4"},
    {"name": "protonet", "method": "protonet", "rounds": 2, "ways": 2, "shots": 2, "queries": 2},
]


def study_of():
    table = {
        "name": "small",
        "seeds": [0, 1, 2],
        "family": {"kind": "mnist", "digits": [[0, 1], [2, 3]], "samples": 40, "validation": 0, "ways": 3},
        "model": {"spec": "mlp:784-4-10"},
        "local": {"max_steps": 20, "batch": 20, "learning_rate": 0.1},
        "evaluation": {"tasks": 4, "shots": 2, "queries": 5, "steps": [0, 3], "headline": 3, "own_test": 0.25,
                       "statistic": "mean", "learning_rate": 0.1},
        "energy": {"meter": "operations"},
        "methods": METHODS,
    }  # fmt: skip
    return make_study(table, "small")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A federation run in two goes: first two methods, then the others."""
    place = tmp_path_factory.mktemp("benchmarks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmarks, "load_study", lambda name, **settings: study_of())
        patch.setattr(benchmarks, "NUMBERS", place / "numbers.json")
        judged = (Judged(1), Judged(2), Judged(1, 2))
        patch.setitem(FEDERATIONS, "hapt", Federation("hapt", {}, judged, "Activities from phones (HAPT)", 7))
        asked = Namespace(seeds=None, quick=True, data_dir=None, again=False, estimate=False, runs=place / "runs")
        benchmarks.measure("hapt", Namespace(**vars(asked), methods=["average", "random"]))
        first = benchmarks.read_numbers()["hapt"]
        benchmarks.measure("hapt", Namespace(**vars(asked), methods=None))
        yield first, RunFolder.read(place / "runs" / "hapt"), benchmarks.read_numbers()["hapt"]


@pytest.mark.slow
def test_what_is_done_is_kept_and_says_how_it_was_made(small):
    first, run, found = small
    assert list(first["methods"]) == ["average", "random"]
    assert list(run.summary.methods) == ["fedavg", "protonet"]  # the second go ran what was left
    assert {name: found["methods"][name] for name in first["methods"]} == first["methods"]
    assert found["new_alone"] == first["new_alone"]
    assert all(row["how"]["when"] and row["how"]["version"] for row in found["methods"].values())
    assert len({row["how"]["key"] for row in found["methods"].values()}) == 4


@pytest.mark.slow
def test_the_studys_own_shots_give_the_numbers_of_its_run(small):
    _, run, found = small
    for name, method in run.summary.methods.items():
        mine, theirs = found["methods"][name]["new_devices"]["2"], method.quality[3].accuracy
        assert mine["mean"] == pytest.approx(theirs.mean, abs=1e-6)
        assert mine["low"] == pytest.approx(theirs.low, abs=1e-6)
    assert found["devices"] == {"1": 4, "2": 4, "2-way 1": 20}
    assert found["alone"]["mean"] == run.summary.alone.mean
    assert found["new_alone"].keys() == found["devices"].keys()
    # both agents keep ten test samples, so that means over images and over agents are one
    assert found["methods"]["fedavg"]["over_images"] == pytest.approx(found["methods"]["fedavg"]["agents"]["0"]["mean"])


@pytest.mark.slow
def test_every_message_is_priced_on_every_link(small):
    _, run, found = small
    assert found["methods"]["random"]["uplink_bits"] == 0
    average = found["methods"]["average"]
    bits = 32 * run.summary.weights
    assert average["uplink_bits"] == bits
    assert average["joules"] == {name: pytest.approx(link(name).energy_joules(bits)) for name in LINKS}
    fedavg = found["methods"]["fedavg"]
    sizes = [row.bits for row in run.ledger if row.method == "fedavg" and row.phase == "uplink" and row.seed == 0]
    assert fedavg["uplink_bits"] == pytest.approx(sum(sizes) / 2)
    expected = sum(link("lte").energy_joules(size) for size in sizes) / 2
    assert fedavg["joules"]["lte"] == pytest.approx(expected)


@pytest.mark.slow
def test_a_table_has_every_method_once_and_marks_small_runs(small):
    *_, found = small
    text = tables({"hapt": found})
    part = text.split("### Activities")[1].split("###")[0]
    for label in ("average", "random", "fedavg", "protonet", "alone (own local model)", "a new device alone"):
        assert part.count(f"| {label}") == 1
    assert "small run" in part
    assert text.count("Not run yet.") == len(FEDERATIONS) - 1
    assert "| FedRep | agents, mean over images | 99.56 | – | – | PFLlib |" in text


def test_too_few_seeds_give_an_interval_over_devices():
    """Its half is t(0.975, 3) = 3.182 times the standard error; three seeds have one over seeds."""
    one = np.array([[0.2, 0.4, 0.6, 0.8]])
    found = benchmarks.bounded(one)
    half = 3.182446 * one.std(ddof=1) / 2
    assert found["over_devices"] == pytest.approx((0.5 - half, 0.5 + half), abs=1e-6)
    assert percent(found) == "50.0 (8.9, 91.1)"
    assert percent(found, short=True) == "50.0"
    three = benchmarks.bounded(np.array([[0.4], [0.5], [0.6]]))
    assert "over_devices" not in three
    assert percent(three) == "50.0 [25.2, 74.8]"
    assert percent(benchmarks.bounded(one[:, :2])) == "30.0"  # two devices say nothing either


def test_ours_stand_beside_the_published_numbers():
    share = {"mean": 0.985, "low": None, "high": None, "worst_tenth": 0.9}
    row = {
        "label": "FedRep",
        "new_devices": {},
        "agents": {"0": share},
        "over_images": 0.984,
        "uplink_bits": 8.0,
        "how": None,
    }
    row |= {"joules": dict.fromkeys(LINKS, 1.0)}
    facts = {"seeds": [0], "agents": 20, "model": "mlp", "weights": 9, "steps": 10, "devices": {}, "alone": None}
    text = tables({"fashion-classes": {**facts, "new_alone": {}, "quick": False, "methods": {"fedrep": row}}})
    assert "| FedRep | agents, mean over images | 99.56 | 98.4 | -1.2 | PFLlib |" in text


def row_of(label, seeds, per_seed):
    after = {"mean": sum(per_seed) / len(per_seed), "low": None, "high": None, "per_seed": per_seed}
    nothing = {"agents": {}, "uplink_bits": 8.0, "how": None, "joules": dict.fromkeys(LINKS, 1.0)}
    return {"label": label, "seeds": seeds, "new_devices": {"1": after}, "more_steps": {"1": after}, **nothing}


def test_a_gain_is_of_the_same_seeds_and_a_row_of_other_seeds_says_so():
    alone = {"1": {"mean": 0.7, "low": None, "high": None, "per_seed": [0.6, 0.7, 0.8]}}
    random = row_of("Random start", [0, 1, 2], [0.5, 0.5, 0.5])
    random.pop("more_steps")
    rows = {"random": random, "all": row_of("All", [0, 1, 2], [0.7, 0.8, 0.9]), "one": row_of("One", [2], [0.9])}
    facts = {"seeds": [2], "agents": 2, "model": "mlp", "weights": 9, "steps": 3, "devices": {"1": 4}, "alone": None}
    facts |= {"new_alone": alone, "alone_steps": 7, "more_steps": 5, "quick": False, "methods": rows}
    text = tables({"hapt": facts})
    assert "seeds 0, 1, 2; accuracy" in text
    # the seeds' own values are far apart, their differences are all 10 points
    assert "| All | 80.0 | +10.0 [+10.0, +10.0] |" in text
    assert "| One (seed 2) | 90.0 | +10.0 |" in text
