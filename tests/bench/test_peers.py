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
    sides["torch"] = {**sides["fewjoule"], "times": 0.9}
    assert "torch is **faster** than fewjoule" in words(lost)["left out"]


def test_rates_count_only_for_the_same_answer():
    from bench.peers.compare import distance

    start, ours = np.zeros(4), np.ones(4)
    assert distance(ours, ours, start) == 0
    assert distance(ours + 0.01, ours, start) == pytest.approx(0.01)
    losses = np.ones(1000)
    assert distance(np.where(np.arange(1000) < 2, 9.0, losses), losses, start) == 0  # two in 1000 are chaotic
    assert distance(losses * 1.01, losses, start) == pytest.approx(0.01)


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
    np.testing.assert_allclose(j5(data)(), np.mean(models, 0), atol=1e-6)
