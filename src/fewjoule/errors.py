"""The one exception for a user's mistake.

    ValueError
    └── InputError      a setting, a file or a value that cannot be used; its text ends with the cure

The command line prints an `InputError` as one line and exits with code 2. Any other exception that reaches it is a
bug of this package and keeps its traceback.
"""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """A user's mistake: names the thing, the rule, the value and the cure."""


def unknown(thing: str, value: str, known: Iterable[str]) -> InputError:
    """An `InputError` for a name that is not one of `known`, with the nearest right one."""
    names = sorted(known)
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    cure = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(names)}."
    return InputError(f"unknown {thing} {value!r}; {cure}")
