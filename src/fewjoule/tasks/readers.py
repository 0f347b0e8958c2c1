"""One file of samples -> plain arrays: npz, CSV or Parquet. Every complaint names the file and the cure.

    NAME.npz       arrays x [samples, ...] and y [samples] or [samples, outputs]; x_test and y_test are optional
    NAME.csv       a first line of column names; one or more columns are the target, all others the inputs
    NAME.parquet   as CSV

CSV and Parquet are read in blocks, and equal texts of a block are kept once. What a file unpacks to is checked before
memory is taken for it. Pickled objects are never loaded.
"""

import csv
import math
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from fewjoule.errors import InputError
from fewjoule.tasks.format import Values
from fewjoule.tasks.parquet_pages import page_sizes
from fewjoule.tasks.samples import check_pair

SUFFIXES = (".npz", ".csv", ".parquet")
PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".joblib")
BLOCK_BYTES = 2**24  # of a CSV file; no line may be longer
LARGEST_UNPACKED = 2**26  # bytes; a file may unpack to more only where it is itself large
LARGEST_RATIO = 50
ARRAYS = ("x", "y", "x_test", "y_test")
OTHER_SEPARATORS = (";", "\t", "|")
INDEX_NAMES = ("", "Unnamed: 0", "__index_level_0__")  # what pandas calls the column of its index
CSV_TARGETS = (pa.int64(), pa.float64(), pa.dictionary(pa.int32(), pa.string()))
"""Targets are whole numbers where all are, else real numbers where all are, else text."""


class Table(NamedTuple):
    """What one file holds. Targets are numbers or text; text and whole numbers can be classes."""

    path: Path
    train: tuple[Values, Values]  # x [n, ...] float32; y [n] or [n, outputs], zeros where no target is needed
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
    if ending(path) in PICKLES:
        raise InputError(f"{path} is a pickle, which is never loaded because it can run code; {_npz_cure(path)}")
    if ending(path) not in SUFFIXES:
        raise InputError(f"{path}: samples are read from {', '.join(SUFFIXES)}, not {path.suffix or 'a bare name'!r}.")
    columns: tuple[str, ...] = ()
    try:
        if ending(path) == ".npz":
            arrays = _read_npz(path, needs_target)
        else:
            arrays, columns = _read_columns(path, [name.strip() for name in target.split(",")], needs_target)
    except InputError:
        raise
    except Exception as error:  # for damaged bytes zipfile, NumPy and pyarrow raise a dozen kinds, not all documented
        reason = _one_line(error) or type(error).__name__
        raise InputError(f"{path} is truncated or damaged ({reason}); copy or write it again.") from error
    if not needs_target:
        arrays = {"x": arrays["x"], "y": np.zeros(arrays["x"].shape[:1])}
    train, *test = [
        check_pair(str(path), arrays["x" + suffix], arrays["y" + suffix], suffix, may_be_text=True)
        for suffix in ("", "_test")
        if "x" + suffix in arrays
    ]
    for x, _ in test:
        if x.shape[1:] != train[0].shape[1:]:
            shapes = f"{list(x.shape[1:])}, x of {list(train[0].shape[1:])}"
            raise InputError(f"{path}: x_test has inputs of shape {shapes}; make them equal.")
    return Table(path, train, test[0] if test else None, columns)


def ending(path: Path) -> str:
    """What a file's name says that it holds, also where some system wrote it in capitals."""
    return path.suffix.lower()


def _npz_cure(path: Path) -> str:
    return f"write it with numpy.savez({path.stem + '.npz'!r}, x=..., y=...)."


def _read_npz(path: Path, needs_target: bool) -> dict[str, Values]:
    with path.open("rb") as file:
        start = file.read(2)
    if start[:1] == b"\x80":
        raise InputError(f"{path} is a pickle, which is never loaded because it can run code; {_npz_cure(path)}")
    if start != b"PK":
        raise InputError(f"{path} is not an npz file; {_npz_cure(path)}")
    with zipfile.ZipFile(path) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
        wanted = {name: member for name, member in members.items() if name in ARRAYS}
        _check_unpacked(path, sum(member.file_size for member in wanted.values()))
        arrays = {name: _read_npy(path, archive, member) for name, member in wanted.items()}
    if "x" not in arrays:
        raise InputError(
            f"{path} has no array named x (it has {_one_line(', '.join(members)) or 'none'}); {_npz_cure(path)}"
        )
    if needs_target and "y" not in arrays:
        raise InputError(f"{path} has no targets: an array named y is missing; {_npz_cure(path)}")
    if needs_target and ("x_test" in arrays) != ("y_test" in arrays):
        raise InputError(f"{path}: x_test and y_test go together, got only one of them; write both or none.")
    return arrays


def _read_npy(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Values:
    """One array. NumPy takes the memory that its header asks for, so that must be what the archive holds."""
    with archive.open(member) as file:
        first = np.lib.format.read_magic(file) == (1, 0)
        read_header = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
        shape, _, kind = read_header(file)
        if kind.hasobject:
            raise InputError(
                f"{path} holds pickled objects, which are never loaded because they can run code; make x and y arrays "
                f"of numbers and {_npz_cure(path)}"
            )
        claimed, held = math.prod(shape) * kind.itemsize, member.file_size - file.tell()
        if claimed != held or kind.itemsize == 0:
            raise ValueError(f"{member.filename} claims {claimed} bytes of {kind} and holds {held}")
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _one_line(text: Any) -> str:
    return " ".join(str(text).split())


def _check_unpacked(path: Path, size: int) -> None:
    """Refuse a small file that unpacks to far more memory than anybody expects of it."""
    if size > (most := max(LARGEST_UNPACKED, LARGEST_RATIO * path.stat().st_size)):
        raise InputError(
            f"{path} unpacks to {size / 1e9:.3g} GB, at most {most / 1e9:.3g} GB are read from a file of its size; "
            "write it without compression (numpy.savez)."
        )


def _read_columns(path: Path, targets: list[str], needs_target: bool) -> tuple[dict[str, Values], tuple[str, ...]]:
    """Inputs x and targets y of a CSV or Parquet file, and the names of the inputs."""
    is_csv = ending(path) == ".csv"
    header = _csv_header(path) if is_csv else pa.parquet.read_schema(path).names
    if index := [name for name in header if name in INDEX_NAMES]:
        raise InputError(
            f"{path}: the column {index[0]!r} looks like the numbers of the rows, as pandas writes them; write it with "
            "index=False, or give the column a name."
        )
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise InputError(f"{path}: the column {twice[0]!r} is there more than once; give every column its own name.")
    if needs_target and (missing := [name for name in targets if name not in header]):
        known = ", ".join(header[:12]) + (", …" if len(header) > 12 else "")
        raise InputError(
            f"{path} has no column {missing[0]!r} (it has {_one_line(known)}); name the target by target (--target)."
        )
    inputs = [name for name in header if name not in targets]
    if not inputs:
        raise InputError(f"{path} has no columns beside its target, so no inputs; add some.")
    targets = targets if needs_target else []
    if not is_csv:
        # a long text that stands in every row is kept once
        for size in page_sizes(path, {*inputs, *targets}):
            _check_unpacked(path, size)
        file = pa.parquet.ParquetFile(path, read_dictionary=targets)
        return _collect(path, file.iter_batches(), inputs, targets), tuple(inputs)
    for kind in CSV_TARGETS:
        try:
            types = dict.fromkeys(inputs, pa.float64()) | dict.fromkeys(targets, kind)
            return _collect(path, _csv_batches(path, header, types), inputs, targets), tuple(inputs)
        except pa.ArrowException as error:
            failed = error
    raise _csv_complaint(path, header, set(inputs), failed) from failed


def _collect(
    path: Path, batches: Iterable[pa.RecordBatch], inputs: Sequence[str], targets: Sequence[str]
) -> dict[str, Values]:
    x, y = [np.zeros((0, len(inputs)), np.float32)], []
    rows = 0
    for batch in batches:
        rows += len(batch)
        _check_unpacked(path, 4 * rows * len(inputs))
        columns = {name: _values(path, name, batch.column(name)) for name in (*inputs, *targets)}
        for name in inputs:
            if columns[name].dtype.kind == "O":
                raise _not_a_number(str(path), name, columns[name][0])
        with np.errstate(over="ignore"):  # beyond float32 becomes infinity, which is refused later
            x.append(np.stack([columns[name].astype(np.float64) for name in inputs], 1).astype(np.float32))
        y.append(np.stack([columns[name] for name in targets], 1) if targets else np.zeros((len(batch), 0)))
    return {"x": np.concatenate(x), "y": np.concatenate(y or x)}


def _values(path: Path, name: str, column: pa.Array) -> Values:
    """Numbers, or text as objects, of which equal ones are the same object."""
    if column.null_count:
        raise InputError(f"{path}: column {name!r} has {column.null_count} empty cells; fill them or drop the rows.")
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        words = np.asarray([word.strip() for word in column.dictionary.to_pylist()], object)
        return words[column.indices.to_numpy(zero_copy_only=False)]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return column.to_numpy(zero_copy_only=False)
    raise InputError(f"{path}: column {name!r} must be numbers or text, got {column.type}; leave it out.")


def _not_a_number(where: str, column: str, value: Any) -> InputError:
    return InputError(f"{where}: column {column!r} must be numbers, got {value!r}; drop it or turn it into numbers.")


def _csv_header(path: Path) -> list[str]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header = [name.strip() for name in next(csv.reader(file), [])]
    except (UnicodeDecodeError, csv.Error) as error:
        raise _not_csv(path, error) from error
    if not header:
        raise InputError(f"{path} is empty; its first line must name the columns.")
    if len(header) == 1 and (others := [mark for mark in OTHER_SEPARATORS if mark in header[0]]):
        raise InputError(
            f"{path} has {others[0]!r} between its columns, and CSV files are read with commas; save it with commas, "
            "and points in decimal numbers."
        )
    # pandas numbers columns without names from 0
    if all(map(_is_number, header)) and header != [str(i) for i in range(len(header))]:
        raise InputError(
            f"{path}: its first line must name the columns, got numbers ({', '.join(header[:3])}); add a line such as "
            "a,b,y on top."
        )
    return header


def _csv_batches(path: Path, header: list[str], types: dict[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
    batches = pa.csv.open_csv(
        path,
        pa.csv.ReadOptions(block_size=BLOCK_BYTES, column_names=header, skip_rows_after_names=1),
        pa.csv.ParseOptions(newlines_in_values=True),
        pa.csv.ConvertOptions(
            column_types=types, include_columns=list(types), null_values=[""], strings_can_be_null=True
        ),
    )
    for batch in batches:
        if any(column.null_count for column in batch.columns):
            raise pa.ArrowInvalid("a cell is empty")
        yield batch


def _csv_complaint(path: Path, header: list[str], inputs: set[str], failed: Exception) -> InputError:
    """What is wrong with a file that pyarrow refused. It does not tell the line, so this slow pass looks for it."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            next(reader)
            for row in filter(None, reader):
                where = f"{path}, line {reader.line_num}"
                if len(row) != len(header):
                    named = f"{len(row)} cells, but the first line names {len(header)} columns"
                    return InputError(f"{where}: {named}; repair that line.")
                for name, cell in zip(header, row, strict=True):
                    if cell == "":
                        return InputError(f"{where}: column {name!r} is empty; fill it or drop the line.")
                    if name in inputs and not _is_number(cell):
                        return _not_a_number(where, name, cell)
    except (UnicodeDecodeError, csv.Error) as error:
        return _not_csv(path, error)
    return _not_csv(path, failed)


def _not_csv(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} is not a CSV file in UTF-8 ({_one_line(error)}); save it again as one.")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
