"""Rules for single settings; NumPy's numbers are as good as Python's."""

import math
from numbers import Integral, Real
from typing import Any

from fewjoule.errors import InputError


def is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def positive_int(name: str, value: Any, least: int = 1) -> None:
    if not is_whole(value):
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    if value < least:
        raise InputError(f"{name} must be at least {least}, got {value}.")


def positive(name: str, value: Any) -> None:
    if not is_real(value) or not value > 0 or math.isinf(value):
        raise InputError(f"{name} must be a finite number above 0, got {value!r}.")
