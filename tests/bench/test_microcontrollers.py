"""docs/microcontrollers.md says what its file of numbers says, and what was asked of the C holds."""

import json
from pathlib import Path

import pytest

from bench.microcontrollers import MARKS, tables
from fewjoule.energy import device

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def numbers():
    return json.loads((DOCS / "microcontrollers.json").read_text("utf-8"))


def test_the_pages_tables_are_of_the_numbers(numbers):
    page = (DOCS / "microcontrollers.md").read_text("utf-8")
    shown = page.split(MARKS[0])[1].split(MARKS[1])[0]
    assert shown.strip() == tables(numbers).strip()


def test_the_models_fit_and_equal_jax(numbers):
    limits = {
        ("sinusoid", "float32"): (24e3, 32e3),
        ("mnist", "float32"): (64e3, 64e3),
        ("mnist", "int8"): (32e3, 64e3),
    }
    for (name, weights), (flash, ram) in limits.items():
        program = numbers[name]["rows"][weights]["programs"]["and fine_tune"]
        assert program["flash"] < flash
        assert program["ram"] + program["stack"] < ram
    for study in numbers.values():
        for row in study["rows"].values():
            assert all(costs["apart"] <= 1e-5 for costs in row["chips"].values())


def test_the_ledgers_model_is_within_a_factor_of_2_of_what_was_counted(numbers):
    for study in numbers.values():
        for chips in (*(row["chips"] for row in study["rows"].values()), study["control"]):
            for chip, costs in chips.items():
                assert costs["ledger_joules"] == pytest.approx(device(chip).energy_joules(costs["flops"]))
                assert 1 / 2 < costs["ledger_joules"] / costs["joules"] < 2
