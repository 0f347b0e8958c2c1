"""The frontier: what is chosen on one half is reported on the other, and the tables say what the points say."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from bench.frontier import (
    Point,
    _joules,
    frontier_folder,
    frontier_studies,
    grid,
    pareto,
    picture,
    said,
    sweep,
    targets,
    write_tables,
)
from fewjoule import InputError, method
from fewjoule.energy import link
from fewjoule.studies.settings import load_study


def point(joules, chosen, reported=None, method="fedavg", setting="rounds 1", study="sinusoid", **more):
    reported = chosen if reported is None else reported
    more = {"low": reported * 0.9, "high": reported * 1.1, "diverged": 0, "paper": False, **more}
    return Point(
        study=study, method=method, setting=setting, uplink_bits_per_weight=1.0, uplink_joules=joules,
        downlink_joules=None, arithmetic_joules=0.0, chosen=chosen, reported=reported, **more,
    )  # fmt: skip


POINTS = [
    point(500.0, 0.40, method="meta_backward", setting="", paper=True),
    point(500.0, 0.30, method="fedsgd", setting="step 0.01"),
    point(1.0, 0.41),
    point(2.0, 0.20, reported=0.25, setting="rounds 2"),
    point(3.0, 0.22, setting="rounds 3"),
    point(9.0, 0.10, setting="rounds 9"),
    point(0.5, float("nan"), setting="diverged"),
]


def test_the_frontier_has_no_setting_that_a_cheaper_one_betters():
    assert [p.joules for p in pareto(POINTS, True)] == [1.0, 2.0, 9.0]
    rising = [replace(p, chosen=1 - p.chosen) for p in POINTS]
    assert [p.joules for p in pareto(rising, False)] == [1.0, 2.0, 9.0]


def test_targets_take_the_cheapest_that_reaches_on_the_choosing_half():
    found = {(t.name, t.method): t for t in targets(POINTS, True)}
    assert found["Meta-Backward's", "fedavg"].point == POINTS[3]
    assert found["a third of Meta-Backward's", "fedavg"].point == POINTS[5]
    assert found["a third of Meta-Backward's", "fedsgd"].point is None
    accuracies = [replace(p, chosen=1 - p.chosen) for p in POINTS]
    found = {(t.name, t.method): t for t in targets(accuracies, False)}
    assert found["FedSGD's less 0.02", "fedavg"].point == accuracies[3]


def test_tables_and_words(tmp_path):
    reached = targets(POINTS, True)
    write_tables(tmp_path, POINTS, reached, {2, 3, 5})
    rows = list(csv.DictReader((tmp_path / "frontier.csv").open()))
    assert [row["frontier"] for row in rows] == ["0", "0", "1", "1", "0", "1", "0"]
    assert float(rows[3]["reported"]) == 0.25
    wanted = list(csv.DictReader((tmp_path / "targets.csv").open()))
    fedavg = next(row for row in wanted if row["method"] == "fedavg")
    assert float(fedavg["times_less_uplink"]) == 250
    text = "\n".join(said(reached))
    assert "FedSGD         not reached" in text
    assert "0.25 [0.225, 0.275]" in text


def test_the_picture_shows_both_studies():
    studies = {name: load_study(name) for name in ("sinusoid", "mnist")}
    both = [*POINTS, *(replace(p, study="mnist") for p in POINTS)]
    svg, png = picture(both, {2, 3, 5}, studies)
    assert b"Sinusoid regression" in svg
    assert b"MNIST classification" in svg
    assert png.startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["sinusoid", "mnist"])
def test_every_setting_of_the_grid_builds(name):
    for quick in (True, False):
        entries = grid(load_study(name), quick)
        assert sum(paper for *_, paper in entries) == 1
        for chosen, given, _ in entries:
            method(chosen, **given)
        assert len({str(entry) for entry in entries}) == len(entries)


def test_energy_is_the_sum_over_messages_and_the_mean_over_agents_and_seeds():
    bits = np.array([[[100, 0], [8, 8]], [[100, 0], [16, 16]]])  # [seeds, rounds + 1, agents]
    price = link("lora-sf7").energy_joules
    wanted = np.mean([price(100) + price(8), price(8), price(100) + price(16), price(16)])
    assert _joules(bits, price) == pytest.approx(wanted)


def test_folder_and_studies(tmp_path):
    assert frontier_folder(str(tmp_path / "new")).is_dir()
    (tmp_path / "file").write_text("taken")
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(InputError, match="choose another"):
            frontier_folder(str(taken))
    both = frontier_studies(settings={"energy.link": "lora-sf7"}, seeds=None, quick=False, data_dir=None)
    assert [s.name for s in both] == ["sinusoid", "mnist"]
    assert all(len(s.seeds) == 10 and s.energy.link == "lora-sf7" for s in both)
    with pytest.raises(InputError, match="at least 2"):
        sweep(load_study("sinusoid", settings={"evaluation.tasks": 1}))


@pytest.mark.slow
def test_a_small_sweep_from_end_to_end(tmp_path, monkeypatch):
    from bench import frontier

    short = [("meta_backward", {"rounds": 3}, True), ("fedsgd", {"rounds": 3}, False), ("lean", {}, False)]
    monkeypatch.setattr(frontier, "grid", lambda study, quick: short)
    study = load_study(
        "sinusoid",
        settings={"evaluation.tasks": 20, "local.max_steps": 500, "energy.link": "lora-sf7"},
        seeds=[0, 1, 2],
    )
    points = sweep(study)
    assert [p.method for p in points] == ["meta_backward", "fedsgd", "lean"]
    assert all(p.low <= p.reported * 2 and p.high >= p.reported / 2 and p.diverged == 0 for p in points)
    assert points[2].joules < 0.1 * points[0].joules
    assert points[0].downlink_joules > 0
    assert points[0].uplink_bits_per_weight == pytest.approx(4 * 32, rel=0.01)
