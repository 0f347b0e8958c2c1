"""Publishers' original data files: from a folder, or downloaded once, and only ever with the right SHA-256 sum.

A file is looked for in the folder that the user gives and in that folder's subfolder of the data set's name, so that
one folder may hold several data sets. Without a folder it is downloaded from the first mirror that has it.
"""

import hashlib
import math
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewjoule.errors import InputError
from fewjoule.files import cache_dir

LARGEST_FILE_BYTES = 64 * 2**20
LARGEST_ARRAY_BYTES = 2**28
IDX_TYPES: dict[int, np.dtype[Any]] = {8: np.dtype("u1"), 12: np.dtype(">i4")}
IMAGE_FILES = tuple(f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Originals(NamedTuple):
    """A data set's files by name, with their SHA-256 sums and where to get them; each mirror ends in a slash."""

    name: str
    files: Mapping[str, str]
    mirrors: tuple[str, ...]
    cure: str  # what to do where a file is missing

    def read(self, name: str, folder: str | Path | None) -> bytes:
        """A file's content, from the folder or, without one, from the mirrors."""
        path = self._downloaded(name) if folder is None else self.find(name, Path(folder))
        if path is None:
            raise InputError(f"{Path(str(folder)) / name} does not exist; {self.cure}")
        return read_checked(path, self.files[name])

    def find(self, name: str, folder: Path) -> Path | None:
        """Where the file is, if it is in the folder or in its subfolder of the data set's name."""
        return next((p for p in (folder / name, folder / self.name / name) if p.is_file()), None)

    def _downloaded(self, name: str) -> Path:
        import pooch

        place, failures = cache_dir() / self.name / name, []
        for mirror in self.mirrors:
            try:
                known = f"sha256:{self.files[name]}"
                return Path(pooch.retrieve(mirror + name, known_hash=known, fname=place.name, path=place.parent))
            except (OSError, ValueError) as error:
                failures.append(f"{mirror}: {type(error).__name__}")
        raise InputError(f"{name} could not be downloaded ({'; '.join(failures)}); {self.cure}")


def read_checked(path: Path, digest: str) -> bytes:
    """A file's content, once it is known to be the original."""
    if (size := path.stat().st_size) > LARGEST_FILE_BYTES:
        raise InputError(f"{path} has {size} bytes, far more than the original; download it again.")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise InputError(f"{path} is not the original file: its SHA-256 sum differs; download it again.")
    return content


def read_idx(name: str, content: bytes) -> np.ndarray[Any, Any]:
    """The array in a gzipped idx file (big-endian: 0, 0, type, axes; the sizes of the axes; the values)."""
    try:
        raw = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(content, LARGEST_ARRAY_BYTES)
        zero, kind, axes = struct.unpack_from(">HBB", raw)
        shape = struct.unpack_from(f">{axes}I", raw, 4)
        values = np.frombuffer(raw, IDX_TYPES[kind], offset=4 + 4 * axes)
        if zero or math.prod(shape) != len(values):
            raise ValueError(f"{len(values)} values do not fill {list(shape)}")
        return values.reshape(shape)
    except (zlib.error, struct.error, KeyError, ValueError) as error:
        raise InputError(f"{name} is no idx file ({error}); download it again.") from error


class Images(NamedTuple):
    """Images [n, pixels] and labels [n] as bytes, of the training and the test files, and where they came from."""

    train_x: Bytes
    train_y: Bytes
    test_x: Bytes
    test_y: Bytes
    source: str


def read_images(originals: Originals, folder: str | Path | None, source: str) -> Images:
    """The four files that MNIST and its relatives come in; `source` is for people."""
    train_x, train_y, test_x, test_y = (read_idx(name, originals.read(name, folder)) for name in IMAGE_FILES)
    return Images(train_x.reshape(len(train_x), -1), train_y, test_x.reshape(len(test_x), -1), test_y, source)


def as_pixels(x: Bytes) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Bytes as numbers from 0 to 1."""
    return x.astype(np.float32) / np.float32(255)
