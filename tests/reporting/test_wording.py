"""Numbers as people read them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewjoule.energy.show import PREFIXES
from fewjoule.reporting.wording import counted, joules_text, kinds_text, listing, percent_text, seconds_text


@pytest.mark.parametrize(
    ("joules", "text"),
    [
        (0, "0 J"),
        (1485.32, "1.49 kJ"),
        (29.124, "29.1 J"),
        (0.165, "165 mJ"),
        (172.27e-6, "172 µJ"),
        (9.999, "10.0 J"),
        (999.6, "1.00 kJ"),
        (150, "150 J"),
        (1.5e15, "1,500 TJ"),
        (2e-15, "0.00200 pJ"),
    ],
)
def test_joules_have_three_digits_and_a_prefix(joules: float, text: str) -> None:
    assert joules_text(joules) == text


@given(st.floats(1e-11, 1e14))
def test_joules_read_back_within_half_a_unit_of_the_third_digit(value: float) -> None:
    number, unit = joules_text(value).split(" ")
    power = next(power for power, prefix in PREFIXES.items() if prefix + "J" == unit)
    assert math.isclose(float(number) * 10.0**power, value, rel_tol=5.01e-3)


@pytest.mark.parametrize(("seconds", "text"), [(0.012, "12.0 ms"), (59, "59.0 s"), (90, "1.50 min"), (7200, "2.00 h")])
def test_seconds_become_minutes_and_hours(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0 %"), (1, "100 %"), (0.5, "50.0 %"), (0.0004, "< 0.1 %"), (0.9996, "> 99.9 %")]
)
def test_a_small_share_is_not_nothing_and_a_large_one_not_all(share: float, text: str) -> None:
    assert percent_text(share) == text


def test_lists_counts_and_kinds() -> None:
    assert listing(["a"]) == "a"
    assert listing(["a", "b", "c"]) == "a, b and c"
    assert (counted(1, "seed"), counted(5, "seed")) == ("1 seed", "5 seeds")
    assert kinds_text(("modelled", "analytic")) == "modelled + analytic"
    assert kinds_text(()) == "nothing spent"
