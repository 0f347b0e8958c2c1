"""Limits of a number, as data: written once in the type of a field, checked when the link or device is built.

@dataclass(frozen=True, kw_only=True)
class Lamp(Checked):
    watts: Positive             # Lamp(name="lamp", watts=0): "lamp: watts must be above 0, got 0."
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

from fewjoule.errors import InputError


class Limit(NamedTuple):
    """What a number must be, in words and as a test; the cure where the words alone do not say it."""

    words: str
    holds: Callable[[Any], bool]
    cure: str = ""

    def check(self, what: str, value: Any) -> None:
        if not self.holds(value):
            raise InputError(f"{what} must {self.words}, got {value}{self.cure}.")


ABOVE_0 = Limit("be above 0", lambda value: 0 < value < math.inf)
AT_LEAST_0 = Limit("be at least 0", lambda value: 0 <= value < math.inf)
AMOUNT = Limit("be a finite number of at least 0", lambda value: 0 <= value < math.inf and not isinstance(value, bool))

Positive = Annotated[float, ABOVE_0]
PositiveInt = Annotated[int, ABOVE_0]
NotNegative = Annotated[float, AT_LEAST_0]
NotNegativeInt = Annotated[int, AT_LEAST_0]
Share = Annotated[float, Limit("be above 0 and at most 1", lambda value: 0 < value <= 1)]


def amount(what: str, value: float) -> float:
    """An amount of bits, FLOPs, joules or seconds as a float, checked."""
    AMOUNT.check(what, value)
    return float(value)


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A link or device: its name, where its numbers come from, and the check of every number against its type.

    A field that may be None may be None.
    """

    name: str
    source: str = ""

    def __post_init__(self) -> None:
        for field, hint in get_type_hints(type(self), include_extras=True).items():
            value = getattr(self, field)
            for option in (hint, *get_args(hint)):  # the arguments of `Positive | None`
                for limit in getattr(option, "__metadata__", ()):
                    if value is not None or option is hint:
                        limit.check(f"{self.name}: {field}", value)
