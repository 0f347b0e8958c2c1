"""docs/performance.md says what docs/performance.json says, and every side does the same job."""

import copy
import json
import sys

import numpy as np
import pytest

from bench.measure import ROOT, filled
from bench.peers.show import PAGE, words

sys.path.append(str(ROOT / "bench/peers"))  # workers run as scripts, in environments that have no fewjoule


@pytest.fixture(scope="module")
def numbers():
    return json.loads((ROOT / "docs/performance.json").read_text("utf-8"))


def test_the_page_is_made_of_the_numbers(numbers):
    text = PAGE.read_text("utf-8")
    assert filled(text, words(numbers)) == text
    other = copy.deepcopy(numbers)
    row = next(iter(other["jobs"].values()))["sides"]["fewjoule"]
    row["per_second"] *= 1.1
    assert filled(text, words(other)) != text


def test_a_lost_job_is_said(numbers):
    lost = copy.deepcopy(numbers)
    sides = next(iter(lost["jobs"].values()))["sides"]
    sides["torch"] = {**sides["fewjoule"], "times": 0.9, "answer_off": 0.0}
    assert "torch is **faster** than fewjoule" in words(lost)["left out"]


def test_rates_count_only_for_the_same_answer():
    from bench.peers.compare import distance

    start, ours = np.zeros(4), np.ones(4)
    assert distance(ours, ours, start) == 0
    assert distance(ours + 0.01, ours, start) == pytest.approx(0.01)
    losses = np.ones(1000)
    assert distance(np.where(np.arange(1000) < 1, 1.5, losses), losses, start) == 0.5  # one task in 1000 is enough


class OtherAnswer:
    """A side that stops a share short of what fewjoule's does, after every number of rounds."""

    def __init__(self, short):
        from bench.peers.jobs import JOBS

        self.short, self.job, self.rounds, self.asked = short, JOBS["J4"], 50, []

    def answer(self, folder, rounds):
        self.asked.append(rounds)
        return np.full(500, rounds * (1 - self.short))


def test_another_answer_is_left_out(tmp_path):
    from bench.peers.compare import apart

    ours, arrays = OtherAnswer(0), {"start": np.zeros(1761)}
    same, other = OtherAnswer(1e-4), OtherAnswer(1e-2)
    assert "left_out" not in apart(same, ours, arrays, tmp_path)
    assert set(same.asked) == {5, 50}  # compared after the first steps, said after all
    assert "another answer: 0.01" in apart(other, ours, arrays, tmp_path)["left_out"]


def test_what_was_measured_before_stays(monkeypatch, tmp_path):
    """A run of some peers replaces their rows alone, in the file as well; --missing measures none twice."""
    from bench.peers import compare

    rows = {"fewjoule": {"per_second": 2.0, "date": "2026-01-01 00:00"}, "torch": {"date": "2026-01-01 00:00"}}
    numbers = {"jobs": {"J5-2": {"sides": dict(rows)}}, "flute": {"seconds": 1}}
    fresh = {"per_second": 3.0, "date": "2026-01-02 00:00"}
    monkeypatch.setattr(compare, "FILE", tmp_path / "numbers.json")
    monkeypatch.setattr(compare, "measured", lambda name, job, peers: dict.fromkeys(["fewjoule", *peers], fresh))
    monkeypatch.setattr(compare, "limit_per_second", lambda job: 10.0)
    compare.compared(numbers, "J5-2", ["pfl"], False)
    written = json.loads((tmp_path / "numbers.json").read_text("utf-8"))
    assert written["jobs"]["J5-2"]["sides"] == {**rows, "pfl": fresh}
    assert written["flute"] == {"seconds": 1}
    compare.compared(numbers, "J5-2", ["torch"], False)
    assert numbers["jobs"]["J5-2"]["sides"] == {"fewjoule": fresh, "torch": fresh, "pfl": fresh}
    monkeypatch.setattr(compare, "measured", None)  # a call would fail
    compare.compared(numbers, "J5-2", ["torch", "pfl"], True)


@pytest.mark.slow
def test_the_rows_that_peers_get_are_those_that_fewjoule_draws():
    """A round of FedAvg by hand on them gives fewjoule's model."""
    import jax

    import fewjoule as fj
    from bench.peers.fewjoule_side import j5
    from bench.peers.jobs import DIGITS, digits

    data = {key: np.asarray(value) for key, value in digits(2)(1).items()}
    models = []
    for x, y, rows in zip(data["x"], data["y"], data["rows"][0], strict=True):
        samples = fj.Samples(x[rows], y[rows], np.ones(len(rows), np.float32))
        models.append(data["start"] - 0.01 * jax.grad(DIGITS.loss)(data["start"], samples))
    np.testing.assert_allclose(j5(data)(1), np.mean(models, 0), atol=1e-6)
