"""Files of a run folder that may be damaged: one line that names the file and the fault, and columns of numbers."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from fewjoule.errors import LARGEST_COUNT, InputError

COUNTS = ("task", "steps", "round")
LARGEST = 1e100
"""Of any number that is not infinite: far beyond float32, and sums of such numbers still fit."""

Array = np.ndarray[Any, Any]


def numbers_of(path: Path, lines: list[int], column: str, cells: list[str]) -> Array:
    """A column as numbers; the first cell that breaks a rule is named."""
    known: dict[str, float] = {}
    for cell in set(cells):
        try:
            known[cell] = float(cell or "nan")
        except ValueError:
            raise _wrong(path, lines, column, cells, cell, "be a number") from None
    values = np.array([known[cell] for cell in cells], np.float64)
    faults = {f"lie within {LARGEST:g}": (np.abs(values) > LARGEST) & np.isfinite(values)}
    if column in COUNTS:
        whole = (values >= 0) & (values <= LARGEST_COUNT) & (values == np.floor(values))
        faults[f"be a whole number from 0 to {LARGEST_COUNT}"] = ~whole
    for rule, wrong in faults.items():
        if wrong.any():
            raise _wrong(path, lines, column, cells, cells[int(wrong.argmax())], rule)
    return values


def _wrong(path: Path, lines: list[int], column: str, cells: list[str], cell: str, rule: str) -> InputError:
    return damaged(path, f"line {lines[cells.index(cell)]}: {column} must {rule}, got {cell!r}")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever is wrong with a file becomes one line that names it."""
    try:
        yield
    except InputError:
        raise
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise damaged(path, f"{where}: {first['msg']}") from error
    except RecursionError as error:
        raise damaged(path, "it is nested too deeply") from error
    except (OSError, ValueError, OverflowError, csv.Error) as error:
        raise damaged(path, error) from error


def damaged(path: Path, why: object) -> InputError:
    return InputError(f"{path} cannot be used: {' '.join(str(why).split())}; run the study again.")
