"""One file of samples -> plain arrays: npz, CSV or Parquet. Every complaint names the file and the cure.

    NAME.npz       arrays x [samples, ...] and y [samples] or [samples, outputs]; x_test and y_test are optional
    NAME.csv       a first line of column names; one or more columns are the target, all others the inputs
    NAME.parquet   as CSV (extra `parquet`)

Pickled objects are never loaded.
"""

import csv
import re
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewjoule.errors import InputError
from fewjoule.tasks.samples import finite_floats

SUFFIXES = (".npz", ".csv", ".parquet")
PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".joblib")
_NPZ_NAMES = ("x", "y", "x_test", "y_test")
Values = np.ndarray[Any, Any]


class Table(NamedTuple):
    """What one file holds. Targets are numbers or text; text and whole numbers can be classes."""

    path: Path
    train: tuple[Values, Values]  # x [n, ...] float32; y [n] or [n, outputs], or [n, 0] where no target is needed
    test: tuple[Values, Values] | None = None  # the same of held-out samples, where the file has them
    columns: tuple[str, ...] = ()  # names of the inputs, where the file has them

    @property
    def pairs(self) -> list[tuple[Values, Values]]:
        return [self.train, self.test] if self.test else [self.train]


def read_table(path: str | Path, *, target: str = "y", needs_target: bool = True) -> Table:
    """Read one file; `target` names the target column (several with commas between them) of CSV and Parquet."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist or is not a file; check the name.")
    if path.suffix in PICKLES:
        raise InputError(f"{path} is a pickle, which is never loaded because it can run code; {_npz_cure(path)}")
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: samples are read from {', '.join(SUFFIXES)}, not {path.suffix or 'a bare name'!r}.")
    if path.suffix == ".npz":
        table = _read_npz(path, needs_target)
    else:
        columns = _read_csv(path) if path.suffix == ".csv" else _read_parquet(path)
        table = _from_columns(path, columns, [name.strip() for name in target.split(",")], needs_target)
    inputs = table.train[0].shape[1:]
    for suffix, (x, y) in zip(("", "_test"), table.pairs, strict=False):
        if len(x) == 0:
            raise InputError(f"{path} has no samples in x{suffix}; leave the file out or give it at least one.")
        if len(x) != len(y):
            raise InputError(f"{path}: x{suffix} and y{suffix} must have the same length, got {len(x)} and {len(y)}.")
        if x.shape[1:] != inputs:
            raise InputError(
                f"{path}: x_test has inputs of shape {list(x.shape[1:])}, x of {list(inputs)}; make them equal."
            )
    return table


def _npz_cure(path: Path) -> str:
    return f"write it with numpy.savez({path.stem + '.npz'!r}, x=..., y=...)."


def _read_npz(path: Path, needs_target: bool) -> Table:
    with path.open("rb") as file:
        start = file.read(2)
    if start[:1] == b"\x80":
        raise InputError(f"{path} is a pickle, which is never loaded because it can run code; {_npz_cure(path)}")
    if start != b"PK":
        raise InputError(f"{path} is not an npz file; {_npz_cure(path)}")
    arrays = {}
    try:
        with np.load(path, allow_pickle=False) as file:
            names = list(file.files)
            for name in names:
                if name in _NPZ_NAMES:
                    arrays[name] = file[name]
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        if "pickle" in str(error):
            raise InputError(
                f"{path} holds pickled objects, which are never loaded because they can run code; make x and y arrays "
                f"of numbers and {_npz_cure(path)}"
            ) from error
        raise InputError(f"{path} is truncated or damaged ({error}); copy or write it again.") from error
    if "x" not in arrays:
        raise InputError(f"{path} has no array named x (it has {', '.join(names) or 'none'}); {_npz_cure(path)}")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise InputError(f"{path}: x_test and y_test go together, got only one of them; write both or none.")
    x = _numbers(path, "x", arrays["x"])
    if needs_target and "y" not in arrays:
        raise InputError(f"{path} has no targets: an array named y is missing; {_npz_cure(path)}")
    y = _target(path, "y", arrays["y"]) if "y" in arrays else _no_targets(x)
    if "x_test" not in arrays:
        return Table(path, (x, y))
    test = _numbers(path, "x_test", arrays["x_test"]), _target(path, "y_test", arrays["y_test"])
    return Table(path, (x, y), test)


def _no_targets(x: Values) -> Values:
    return np.zeros((len(x), 0), np.float32)


def _numbers(path: Path, name: str, values: Values) -> Values:
    """Inputs as float32 [n, ...]; refuses text, complex numbers, NaN and what float32 cannot hold."""
    if values.dtype.kind not in "fiub":
        raise InputError(f"{path}: {name} must be numbers, got {values.dtype}; turn them into numbers.")
    if values.ndim == 0:
        raise InputError(f"{path}: {name} must have one row per sample, got a single number.")
    return finite_floats(str(path), name, values[:, None] if values.ndim == 1 else values)


def _target(path: Path, name: str, values: Values) -> Values:
    if values.ndim == 0:
        raise InputError(f"{path}: {name} must have one row per sample, got a single value.")
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.dtype.kind == "f":
        return _numbers(path, name, values)
    if values.dtype.kind in "US":
        return values.astype(str)
    if values.dtype.kind in "iub":
        return values.astype(np.int64)
    raise InputError(f"{path}: {name} must be numbers or text, got {values.dtype}; turn it into one of these.")


def _from_columns(path: Path, columns: dict[str, Values], targets: Sequence[str], needs_target: bool) -> Table:
    missing = [name for name in targets if name not in columns]
    if missing and needs_target:
        known = ", ".join(list(columns)[:12]) + (", …" if len(columns) > 12 else "")
        raise InputError(f"{path} has no column {missing[0]!r} (it has {known}); name the target by --target.")
    inputs = {name: column for name, column in columns.items() if name not in targets}
    if not inputs:
        raise InputError(f"{path} has no columns beside its target, so no inputs; add some.")
    for name, column in inputs.items():
        if column.dtype.kind not in "fiub":
            value = next(v for v in column if not _is_number(v))
            raise InputError(
                f"{path}: column {name!r} must be numbers, got {str(value)!r}; drop it or turn it into numbers."
            )
    x = _numbers(path, "the inputs", np.stack([column.astype(np.float64) for column in inputs.values()], axis=1))
    y = _no_targets(x)
    if not missing:
        y = _target(path, f"the target {targets[0]!r}", np.stack([columns[name] for name in targets], axis=1))
    return Table(path, (x, y), columns=tuple(inputs))


def _is_number(text: Any) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_csv(path: Path) -> dict[str, Values]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            header = [name.strip() for name in next(reader, [])]
            rows = []
            for row in reader:
                if not row:
                    continue
                if len(row) != len(header):
                    raise InputError(
                        f"{path}, line {reader.line_num}: {len(row)} cells, but the first line names {len(header)} "
                        "columns; repair that line."
                    )
                if "" in row:
                    column = header[row.index("")]
                    raise InputError(
                        f"{path}, line {reader.line_num}: column {column!r} is empty; fill it or drop the line."
                    )
                rows.append(row)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a CSV file in UTF-8 ({error}); save it again as one.") from error
    if not header:
        raise InputError(f"{path} is empty; its first line must name the columns.")
    _check_header(path, header)
    cells = np.array(rows, dtype=str).reshape(len(rows), len(header))
    return {name: _typed(cells[:, i]) for i, name in enumerate(header)}


def _check_header(path: Path, header: Sequence[str]) -> None:
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise InputError(f"{path}: the column {twice[0]!r} is there more than once; give every column its own name.")


def _typed(cells: Values) -> Values:
    """Text cells as whole numbers where all are, else as real numbers where all are, else as they came."""
    if all(re.fullmatch(r"\s*[+-]?\d{1,18}\s*", cell) for cell in cells):
        return cells.astype(np.int64)
    try:
        return cells.astype(np.float64)
    except ValueError:
        return np.char.strip(cells)


def _read_parquet(path: Path) -> dict[str, Values]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise InputError(f"{path}: reading Parquet needs pyarrow; pip install 'fewjoule[parquet]'.") from error
    try:
        table = pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a readable Parquet file ({error}); write it again.") from error
    _check_header(path, table.column_names)
    columns = {}
    for name in table.column_names:
        column = table[name]
        if column.null_count:
            raise InputError(
                f"{path}: column {name!r} has {column.null_count} empty cells; fill them or drop the rows."
            )
        values = column.to_pylist()
        array = np.asarray(values) if values else np.zeros(0)
        if array.ndim != 1 or array.dtype.kind == "O":
            raise InputError(f"{path}: column {name!r} must be numbers or text, got {column.type}; leave it out.")
        columns[name] = array
    return columns
