"""docs/answers.md and answers-limits.md say what their files of numbers say, and the claims hold in them."""

import json
from pathlib import Path

import numpy as np
import pytest

from bench import answers, answers_privacy, answers_reach

DOCS = Path(__file__).parents[2] / "docs"


def read(name: str):
    return json.loads((DOCS / f"{name}.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def numbers():
    return read("answers")


@pytest.mark.parametrize(
    ("name", "where", "marks", "table"),
    [
        ("answers", "answers.md", answers.MARKS, answers.tables),
        ("answers_reach", "answers-limits.md", answers_reach.MARKS, answers_reach.table),
        ("answers_privacy", "answers-limits.md", answers_privacy.MARKS, answers_privacy.table),
    ],
)
def test_the_pages_tables_are_of_the_numbers(name, where, marks, table):
    page = (DOCS / where).read_text("utf-8")
    shown = page.split(marks[0])[1].split(marks[1])[0]
    assert shown.strip() == table(read(name)).strip()


def test_the_claims_that_hold(numbers):
    """The must-holds, from the numbers alone; docs/answers-limits.md says what falls short."""
    sinusoid = numbers["sinusoid"]["rows"]
    assert len(numbers["sinusoid"]["seeds"]) == len(numbers["mnist"]["seeds"]) == 10
    assert sinusoid["answers 20 x 6"]["uplink_bits_per_agent"] <= 200
    assert sinusoid["answers 20 x 6"]["quality"] <= 0.03
    assert sinusoid["meta_backward"]["uplink_bits_per_agent"] / 200 > 14_000
    against = {(row["of"], row["to"]): row for name in numbers for row in numbers[name]["against"]}
    assert against["answers 20 x 6", "meta_backward"]["worst_seed"] <= 0.1
    assert against["answers 20 x 6", "ceiling"]["mean"] <= 1.8
    nets = [f"answers 20 x 6, {which} architectures, own starts" for which in ("three", "equal")]
    assert against[tuple(nets)]["mean"] <= 1.3
    mnist = numbers["mnist"]["rows"]
    for label, most in (("answers 300 x 3 x 4", 4100), ("answers 100 x 3 x 4", 1300)):
        assert mnist[label]["uplink_bits_per_agent"] <= most
        assert against[label, "meta_backward"]["mean"] >= 0.03
        assert against[label, "meta_backward"]["low"] > 0
        assert against[label, "fedsgd"]["mean"] >= 0
        assert against[label, "invented"]["low"] > 0


def test_the_attacks_scores_are_what_they_are_called():
    """The area under the curve of a score: by pairs, one by one; and references that take a sample's difficulty out."""
    rng = np.random.default_rng(0)
    members, others = rng.integers(0, 6, 40), rng.integers(-1, 5, 30)
    pairs = [(m > o) + 0.5 * (m == o) for m in members for o in others]
    assert answers_privacy.auc(members, others) == pytest.approx(np.mean(pairs))
    assert answers_privacy.auc(others, members) == pytest.approx(1 - np.mean(pairs))
    hard = rng.uniform(0, 100, 50)  # every sample's own difficulty hides that the target's members are a bit easier
    losses = [np.stack([hard[:25] - 1, hard[:25], hard[:25]]), np.stack([hard[25:], hard[25:], hard[25:]])]
    plain, sharper = answers_privacy.membership(losses)
    assert plain < 0.8
    assert sharper == 1
