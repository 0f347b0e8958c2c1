"""Files appear whole or not at all, and never over an existing one unless that is asked for; and the cache folder."""

import csv
import io
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import platformdirs

from fewjoule.errors import InputError


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


def write_atomically(path: str | Path, content: bytes, *, force: bool = False) -> None:
    """Write a file through a temporary neighbour, so that a reader never sees a part of it."""
    path = check_writable(path, force=force)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _open_up(part)
        if force:
            part.replace(path)
        else:
            _place_new(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_csv(
    path: str | Path, columns: Sequence[str], rows: Iterable[Sequence[object]], *, force: bool = True
) -> None:
    """Write a table, over whatever is there unless `force=False`; cells are quoted as needed, None is an empty cell."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_atomically(path, buffer.getvalue().encode(), force=force)


def _open_up(part: Path) -> None:
    # mkstemp makes private files; the result should have the mode that an ordinary open() gives
    mask = os.umask(0)
    os.umask(mask)
    part.chmod(0o666 & ~mask)


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


def use_compile_cache(folder: Path | None = None) -> Path:
    """Have JAX keep compiled programs in `folder` (by default under `cache_dir()`); for the command line only."""
    import jax

    folder = cache_dir() / "jax" if folder is None else folder
    for name, value in (
        ("jax_compilation_cache_dir", str(folder)),
        ("jax_persistent_cache_min_compile_time_secs", 0.0),
        ("jax_persistent_cache_min_entry_size_bytes", 0),
    ):
        jax.config.update(name, value)  # type: ignore[no-untyped-call]
    return folder
