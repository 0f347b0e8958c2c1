"""Files appear whole or not at all, and never over an existing one unless that is asked for; and the cache folder."""

import contextlib
import csv
import io
import os
import re
import secrets
import shutil
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import platformdirs

from fewjoule.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LEFTOVER = ".part"
STARTS = frozenset("'=+-@\t")
"""What a text begins with that `FORMULA` may match."""
FORMULA = re.compile(r"'*(?![-+]?(inf|[\d.]+(e[-+]?\d+)?)\Z)[=+\-@\t]")
"""How a text begins that a spreadsheet would run (a number is none), after any apostrophes that guard it already."""


def check_writable(path: str | Path, *, force: bool = False) -> Path:
    """Refuse a path that `write_atomically` would refuse; commands ask this before the work, not after it."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder; give the name of a file in it.")
    if path.exists() and not force:
        raise InputError(f"{path} exists and is not overwritten; choose another name or give --force (force=True).")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist; create it first.")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"{path}: the folder {path.parent} cannot be written to; choose another one.")
    return path


def write_atomically(path: str | Path, content: bytes, *, force: bool = False, mode: int = 0o666) -> None:
    """Write a file through a temporary neighbour, so that a reader never sees a part of it; `mode` less the umask."""
    path = check_writable(path, force=force)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}{LEFTOVER}")
    try:
        with open(part, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if force:
            part.replace(path)
        else:
            _place_new(part, path)
    except OSError as error:  # a full disk, a place that became read-only
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}); free space or choose another place. What was there "
            "before is as it was."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def check_new_folder(folder: Path) -> None:
    """Refuse a folder that `new_folder_atomically` would refuse."""
    if folder.exists():
        raise InputError(f"{folder} exists and is not overwritten; choose another name.")
    check_writable(folder)


@contextlib.contextmanager
def new_folder_atomically(folder: Path) -> Iterator[Path]:
    """A place to write files to, which becomes `folder` with all of them, or nothing."""
    check_new_folder(folder)
    part = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}{LEFTOVER}")
    try:
        part.mkdir()
        yield part
        part.rename(folder)
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written ({error.strerror or error}); free space or choose another place."
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Delete what writers that were killed left behind, in a folder that nobody else writes to now."""
    for part in list(folder.rglob(f".*{LEFTOVER}")):
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold an advisory lock on a file; `InputError` with the text `busy` where another process holds it.

    The lock ends with the process, however that ends. Where the system has no such locks (Windows), nothing is locked.
    """
    try:
        file = path.open("a")
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); choose another place.") from error
    with file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(busy) from None
        yield


def write_csv(
    path: str | Path, columns: Sequence[str], rows: Iterable[Sequence[object]], *, force: bool = True
) -> None:
    """Write a table, over whatever is there unless `force=False`; cells are quoted as needed, None is an empty cell.

    A text that a spreadsheet would run as a formula gets an apostrophe in front, which `read_csv` takes away.
    """
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([f"'{cell}" if isinstance(cell, str) and _is_formula(cell) else cell for cell in row])
    write_atomically(path, buffer.getvalue().encode(), force=force)


def _is_formula(cell: str) -> bool:
    return cell[:1] in STARTS and FORMULA.match(cell) is not None  # the first alone rules out nearly all, and is faster


def read_csv(path: str | Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a table that `write_csv` wrote, by column, each with the number of its line in the file."""
    for line, cells in _rows(path, columns):
        yield line, dict(zip(columns, map(_plain, cells), strict=True))


def read_csv_columns(path: str | Path, columns: Sequence[str]) -> tuple[list[int], dict[str, list[str]]]:
    """The same by columns, which is faster for a hundred thousand rows, with the line number of every row."""
    lines, rows = [], []
    for line, cells in _rows(path, columns):
        lines.append(line)
        rows.append(cells)
    found = {name: [row[i] for row in rows] for i, name in enumerate(columns)}
    return lines, {name: list(map(_plain, cells)) if any("'" in c for c in set(cells)) else cells
                   for name, cells in found.items()}  # fmt: skip


def _rows(path: str | Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        header = next(reader, [])
        if header != list(columns):
            found = ",".join(header)
            raise InputError(
                f"{path}: the first line must be {','.join(columns)}, got {found!r}; write the file again."
            )
        for cells in reader:
            if len(cells) != len(columns):
                raise InputError(
                    f"{path}, line {reader.line_num}: a row has {len(columns)} cells, got {len(cells)}; write the file "
                    "again."
                )
            yield reader.line_num, cells


def _plain(cell: str) -> str:
    """The text that `write_csv` was given."""
    return cell[1:] if cell.startswith("'") and _is_formula(cell) else cell


def _place_new(part: Path, path: Path) -> None:
    # a hard link, unlike a rename, fails where somebody made the file in the meantime
    try:
        os.link(part, path)
    except FileExistsError:
        check_writable(path)
        raise
    except OSError:  # a file system without hard links
        check_writable(path)
        part.replace(path)


def cache_dir() -> Path:
    """Where downloads and compiled programs are kept between runs: `FEWJOULE_CACHE`, or the user's cache folder."""
    return Path(os.environ.get("FEWJOULE_CACHE") or platformdirs.user_cache_dir("fewjoule"))


def cache_folder(name: str) -> Path | None:
    """A folder of `cache_dir()`, made if it is not there; None where it cannot be written, so that nothing is kept."""
    folder = cache_dir() / name
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder if folder.is_dir() and os.access(folder, os.W_OK) else None


NO_CACHE = (
    "compiled programs cannot be kept for the next command, which will start more slowly; free space, or set "
    "FEWJOULE_CACHE to a folder that can be written."
)


_traced: list[Path] = []


def traced_folder() -> Path | None:
    """Where traced programs are kept; None before `use_compile_cache`."""
    return _traced[-1] if _traced else None


def use_compile_cache(folder: Path | None = None) -> Path | None:
    """Have JAX keep compiled programs in `folder` (by default under `cache_dir()`), and traced ones in a folder of it;
    for the command line only. None, and a warning, where nothing can be kept."""
    import jax

    folder = cache_folder("jax") if folder is None else folder
    if folder is None:
        warnings.warn(NO_CACHE, stacklevel=2)
        return None
    for name, value in (
        ("jax_compilation_cache_dir", str(folder)),
        ("jax_persistent_cache_min_compile_time_secs", 0.0),
        ("jax_persistent_cache_min_entry_size_bytes", 0),
    ):
        jax.config.update(name, value)  # type: ignore[no-untyped-call]
    with contextlib.suppress(OSError):
        (folder / "traced").mkdir(exist_ok=True)
        _traced[:] = [folder / "traced"]
    return folder
