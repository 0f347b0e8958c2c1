"""The one exception for a user's mistake, and the one warning for a run that diverged.

    ValueError
    └── InputError           a setting, a file or a value that cannot be used; its text ends with the cure
    UserWarning
    └── DivergedWarning      some seeds overflowed or went far astray; they are left out of every statistic

The command line prints an `InputError` as one line and exits with code 2. Any other exception that reaches it is a
bug of this package and keeps its traceback.
"""

import difflib
import inspect
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Annotated, Any

LARGEST_COUNT = 10_000_000
"""Of rounds, steps and the like: more than anybody runs, and few enough to make a list of them."""

LARGEST_REAL = 3e38
"""Of learning rates, radii and the like: float32 holds no more."""


class InputError(ValueError):
    """A user's mistake: names the thing, the rule, the value and the cure, in one line.

    Names out of a file and the texts of other libraries may hold line ends; none reaches the screen.
    """

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())


class DivergedWarning(UserWarning):
    """Some seeds of a run diverged; their meta-models are NaN and no statistic counts them."""


def unknown(thing: str, value: Any, known: Iterable[str]) -> InputError:
    """An `InputError` for a name that is not one of `known`, with the nearest right one and all the others."""
    names = sorted(known)
    renamed = str(value)[:100].removesuffix("step") + "learning_rate"  # settings that were called step in 0.1
    if renamed in names and str(value).endswith("step"):
        return InputError(f"unknown {thing} {value!r}; it is called {renamed!r} now.")
    near = difflib.get_close_matches(str(value)[:100], names, n=1, cutoff=0.5)
    guess = f"did you mean {near[0]!r}? There are" if near else "choose one of"
    return InputError(f"unknown {thing} {value!r}; {guess} {', '.join(names)}.")


def is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_real(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def positive_int(name: str, value: Any, least: int = 1) -> None:
    if not is_whole(value):
        raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}.")
    if value < least:
        raise InputError(f"{name} must be at least {least}, got {value}.")
    if value > LARGEST_COUNT:
        raise InputError(f"{name} must be at most {LARGEST_COUNT}, got {value}.")


def positive(name: str, value: Any) -> None:
    if not is_real(value) or not 0 < value <= LARGEST_REAL:
        raise InputError(f"{name} must be a finite number above 0, got {value!r}.")


def not_negative(name: str, value: Any) -> None:
    if not is_real(value) or not value >= 0:
        raise InputError(f"{name} must be 0 or more, got {value!r}.")
    if LARGEST_REAL < value < math.inf:
        raise InputError(f"{name} must be at most {LARGEST_REAL:g}, or infinity.")


def text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise InputError(f"{name} must be text, got {value!r}.")


def count_or_none(name: str, value: Any) -> None:
    if value is not None:
        positive_int(name, value)


# Types of settings that carry their check, for functions whose arguments `check_settings` checks.
Count = Annotated[int, positive_int]
Positive = Annotated[float, positive]
NotNegative = Annotated[float, not_negative]
Text = Annotated[str, text]
Batch = Annotated[int | None, count_or_none]  # None takes all samples
Epochs = Annotated[int | None, count_or_none]  # None counts in steps
Ways = Annotated[int | None, count_or_none]  # classes of an episode; None takes mini-batches of all samples


def check_settings(signature: inspect.Signature, settings: Mapping[str, Any]) -> None:
    """Check a function's arguments by the types of its signature, such as `rounds: Count = 5`."""
    for name, value in settings.items():
        for check in getattr(signature.parameters[name].annotation, "__metadata__", ()):
            check(name, value)
