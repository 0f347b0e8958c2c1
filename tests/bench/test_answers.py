"""docs/answers.md says what its file of numbers says."""

import json
from pathlib import Path

import pytest

from bench.answers import MARKS, tables

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def numbers():
    return json.loads((DOCS / "answers.json").read_text("utf-8"))


def test_the_pages_tables_are_of_the_numbers(numbers):
    page = (DOCS / "answers.md").read_text("utf-8")
    shown = page.split(MARKS[0])[1].split(MARKS[1])[0]
    assert shown.strip() == tables(numbers).strip()


def test_the_claims_that_hold(numbers):
    """Those of the must-holds that were reached, from the numbers alone; docs/answers.md says what falls short."""
    sinusoid = numbers["sinusoid"]["rows"]
    assert len(numbers["sinusoid"]["seeds"]) == 10
    assert sinusoid["answers 20 x 6"]["uplink_bits_per_agent"] <= 200
    assert sinusoid["answers 20 x 6"]["quality"] <= 0.03
    assert sinusoid["meta_backward"]["uplink_bits_per_agent"] / 200 > 14_000
    against = {(row["of"], row["to"]): row for name in numbers for row in numbers[name]["against"]}
    assert against["answers 20 x 6", "meta_backward"]["high"] <= 0.1
    mnist, few = numbers["mnist"]["rows"], "answers 100 x 3 x 4"
    assert mnist["answers 100 x 10 x 4"]["uplink_bits_per_agent"] <= 4100
    assert mnist[few]["uplink_bits_per_agent"] <= 1300
    assert against[few, "meta_backward"]["mean"] >= 0.03
    assert against[few, "meta_backward"]["low"] > 0
    assert against[few, "fedsgd"]["mean"] >= 0
