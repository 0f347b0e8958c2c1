"""Causes that pass: a full disk, a read-only one, too little memory. Work that fails for one is tried again, with a
line that says what would help, until it can be done; it must change nothing before it succeeds."""

import errno
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 60.0
_CURES = {
    errno.ENOSPC: "free space on its disk",
    errno.EDQUOT: "free space, or have its quota raised",
    errno.EFBIG: "have its limit on the size of files raised",
    errno.EROFS: "mount its disk for writing again",
    errno.EIO: "check its disk",
    errno.ENOMEM: "end other programs or give it more memory",
    errno.EMFILE: "have its limit on open files raised",
    errno.ENFILE: "have its limit on open files raised",
}


class Asked(Exception):  # noqa: N818 - a wish, not a mistake
    """Somebody asked the work to stop here."""


def passing(error: BaseException) -> str | None:
    """One line about an error that passes once its cause is gone, with what helps; None for any other error."""
    if isinstance(error, OSError) and error.errno in _CURES:
        return f"paused: {error.strerror}; {_CURES[error.errno]}, it goes on by itself"
    if isinstance(error, MemoryError) or str(error).startswith("RESOURCE_EXHAUSTED"):  # JAX has a type of its own
        return f"paused: too little memory; {_CURES[errno.ENOMEM]}, it goes on by itself"
    return None


def patiently(
    work: Callable[[], Result],
    report: Callable[[str], None],
    *,
    asked_to_stop: Callable[[], str] = lambda: "",
    sleep: Callable[[float], None] = time.sleep,
) -> Result:
    """Do the work, as often as it takes; `Asked` where somebody wants it to stop meanwhile."""
    pause, told = FIRST_PAUSE_SECONDS, False
    while True:
        try:
            result = work()
        except Exception as error:
            line = passing(error)
            if line is None:
                raise
            report(line)
            told = True
        else:
            if told:
                report("going on")
            return result
        for _ in range(round(pause)):  # a wish to stop is heard within a second
            if reason := asked_to_stop():
                raise Asked(reason)
            sleep(1.0)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
