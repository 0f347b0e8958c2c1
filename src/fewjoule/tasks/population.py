"""A population on disk: the samples of more agents than memory holds, one after another in files.

    folder/x.npy        [all samples, ...features] float32
    folder/y.npy        [all samples, outputs] float32, or [all samples] int32 classes
    folder/ends.npy     [agents] int64: where each agent's samples end

From a generator of pairs (x, y), written as they come; to the samples of a few agents, padded to a common size.
"""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fewjoule.errors import InputError
from fewjoule.files import new_folder_atomically
from fewjoule.randomness import agent_id
from fewjoule.tasks.samples import AgentData, Pair, Samples, check_classes, check_pair

Numbers = np.ndarray[Any, Any]
BLOCK = 1_000_000
"""Samples that are looked through at once."""
HAS_OFFSETS = hasattr(os, "preadv")
"""Whether the system reads at a place of a file in one call; Windows needs two."""


def population(source: str | Path | Iterable[Pair], folder: str | Path | None = None) -> "Population":
    """The population in a folder; or one made of pairs (x, y), one per agent, written to a new `folder` as they come.

    An agent is called by its position, 0, 1, ... Integer y means classes, float y means regression.
    """
    if isinstance(source, str | Path):
        if folder is not None:
            raise InputError("population takes a folder that there is, or pairs and the folder to write; not both.")
        return Population(Path(source))
    if folder is None:
        raise InputError("a population of pairs is written to disk; name a new folder, as population(pairs, folder).")
    with new_folder_atomically(Path(folder)) as part:
        _write(source, part)
    return Population(Path(folder))


class Population:
    """Agents whose samples are on disk, called "0", "1", ... by their positions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._x, self._y, ends = (DiskRows(folder / f"{name}.npy") for name in ("x", "y", "ends"))
        whole = ends.dtype == np.int64 and len(ends.shape) == 1 and ends.shape[0] > 0 and len(self._x.shape) > 1
        known = self._x.dtype == np.float32 and self._y.dtype in (np.float32, np.int32)
        self._ends = np.concatenate([[0], ends.read(np.zeros(1, int), ends.shape[0])[0] if whole else [0]])
        if (
            not (whole and known)
            or (self.sizes < 1).any()
            or not self._ends[-1] == self._x.shape[0] == self._y.shape[0]
        ):
            raise InputError(f"{folder} is no population: its files do not belong together; write it again.")
        longest = int(self.sizes.max())
        powers = 2 ** np.arange(longest.bit_length() + 1)
        edges = np.unique(np.minimum(powers[np.searchsorted(powers, np.unique(self.sizes))], longest))
        self.buckets: tuple[int, ...] = tuple(int(e) for e in edges)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __repr__(self) -> str:
        sizes = self.sizes
        return f"Population({self.folder}: {len(self)} agents, {sizes.min()} to {sizes.max()} samples each)"

    @property
    def sizes(self) -> Numbers:
        """Number of samples per agent."""
        return np.diff(self._ends)

    def bucket_of(self, who: Numbers) -> Numbers:
        """The position in `buckets` of the size that each agent is padded to: the next power of two, at most the
        largest size of all."""
        return np.searchsorted(self.buckets, self._ends[who + 1] - self._ends[who])

    def data(self, who: Numbers, size: int) -> AgentData:
        """Samples of the agents at these positions, padded to `size`, in NumPy arrays; none to validate with."""
        real = np.arange(size) < (self._ends[who + 1] - self._ends[who])[:, None]

        def padded(file: DiskRows) -> Numbers:
            rows = file.read(self._ends[who], size)
            if not real.all():
                rows[~real] = np.broadcast_to(rows[:, :1], rows.shape)[~real]  # padding repeats the first sample
            return rows

        train = _samples(padded(self._x), padded(self._y), real.astype(np.float32))
        return AgentData(train, _samples(train.x[:, :1], train.y[:, :1], np.zeros((len(who), 1), np.float32)))

    def a_sample(self) -> Samples:
        """The first sample; of classes, with the largest class of all: what a model must take."""
        x, y = (file.read(np.zeros(1, int))[0] for file in (self._x, self._y))
        if self._y.dtype.kind == "i":
            blocks = range(0, self._y.shape[0], BLOCK)
            y = np.asarray([max(int(self._y.read(np.array([at]), BLOCK).max()) for at in blocks)], np.int32)
        return _samples(x, y, np.ones(1, np.float32))


def _samples(x: Any, y: Any, mask: Any) -> Samples:
    """Samples of NumPy arrays, which go to JAX as they are."""
    return Samples(x, y, mask)


def ids_of(who: Numbers) -> Numbers:
    """The numbers of agents in key derivation, by their positions in a population."""
    return np.fromiter((agent_id(str(i)) for i in who), np.uint32, len(who))


class DiskRows:
    """Rows of an .npy file, read and written in place, one call of the system each: a mapped file would fill the memory
    with pages that nobody needs again, and took twice the time for rows far apart."""

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        fault = InputError(f"{path} cannot be read as rows of numbers; write it again.")
        try:
            self._file = open(path, "r+b" if writable else "rb", buffering=0)  # noqa: SIM115 - for as long as the object
            np.lib.format.read_magic(self._file)
            self.shape, is_fortran, self.dtype = np.lib.format.read_array_header_1_0(self._file)
        except (OSError, ValueError, EOFError) as error:
            raise fault from error
        self._start, self._row_bytes = self._file.tell(), self.dtype.itemsize * math.prod(self.shape[1:])
        whole = self._start + self._row_bytes * math.prod(self.shape[:1])
        if self.dtype.hasobject or is_fortran or not self.shape or path.stat().st_size < whole:
            raise fault

    @classmethod
    def created(cls, path: Path, shape: Sequence[int], dtype: Any) -> "DiskRows":
        """A new file of zeros, which takes space only where something is written."""
        try:
            with open(path, "wb") as file:
                _header(file, tuple(shape[1:]), np.dtype(dtype).str, shape[0])
                file.truncate(file.tell() + math.prod(shape) * np.dtype(dtype).itemsize)
        except OSError as error:
            raise InputError(f"{path} cannot be written ({error.strerror}); choose another place.") from error
        return cls(path, writable=True)

    def read(self, at: Numbers, length: int = 1, *, wanted: Numbers | None = None) -> Numbers:
        """`length` rows from each of these positions on: [positions, length, ...]; zeros after the last row, and for
        positions that are not `wanted` [positions]."""
        rows = np.zeros((len(at), length, *self.shape[1:]), self.dtype)
        for offset, part in self._parts(at, rows, length, wanted):
            if HAS_OFFSETS:
                os.preadv(self._file.fileno(), [part], offset)
            else:
                self._file.seek(offset)
                self._file.readinto(part)
        return rows

    def write(self, at: Numbers, rows: Numbers) -> None:
        """One row to each of these positions."""
        for offset, part in self._parts(at, np.ascontiguousarray(rows, self.dtype)):
            try:
                if not HAS_OFFSETS:
                    self._file.seek(offset)
                written = os.pwrite(self._file.fileno(), part, offset) if HAS_OFFSETS else self._file.write(part)
            except OSError:
                written = 0
            if written != len(part):
                raise InputError(f"{self._file.name} cannot be written; free space on the disk.")

    def _parts(
        self, at: Numbers, rows: Numbers, length: int = 1, wanted: Numbers | None = None
    ) -> Iterator[tuple[int, memoryview]]:
        """Where the wanted positions are in the file, and the bytes of `rows` that belong there, `length` rows a
        position. Positions that follow each other are one part."""
        whole: Any = rows.reshape(-1).view(np.uint8).data
        size, offsets = length * self._row_bytes, (self._start + at * self._row_bytes).tolist()
        goes_on = np.concatenate([[False], np.diff(at) == length])
        if wanted is not None:
            goes_on[1:] &= wanted[1:] == wanted[:-1]
        begins = np.flatnonzero(~goes_on[: len(at)]).tolist()
        for begin, end in pairwise([*begins, len(at)]):
            if wanted is None or wanted[begin]:
                yield offsets[begin], whole[begin * size : end * size]


def _write(pairs: Iterable[Pair], folder: Path) -> None:
    """The files of a population, each pair as it comes; the headers are written again when the numbers are known."""
    kinds: list[tuple[tuple[int, ...], str]] = []
    ends: list[int] = []
    with open(folder / "x.npy", "wb") as xs, open(folder / "y.npy", "wb") as ys:
        for number, (x, y) in enumerate(pairs):
            x, y = check_pair(f"agent {number}", x, y)
            y = check_classes(f"agent {number}", y)
            kind = [(a.shape[1:], a.dtype.str) for a in (x, y)]
            if kinds and kind != kinds:
                raise InputError(f"agent {number} has inputs and targets {kind}, but those before it have {kinds}.")
            for file, array in ((xs, x), (ys, y)):
                if not kinds:
                    _header(file, array.shape[1:], array.dtype.str, 0)
                file.write(np.ascontiguousarray(array).data)
            kinds = kind
            ends.append((ends[-1] if ends else 0) + len(x))
        if not ends:
            raise InputError("a population needs at least one agent, got none.")
        for file, (shape, dtype) in zip((xs, ys), kinds, strict=True):
            file.seek(0)
            _header(file, shape, dtype, ends[-1])
    np.save(folder / "ends.npy", np.asarray(ends, np.int64))


def _header(file: BinaryIO, shape: tuple[int, ...], dtype: str, rows: int) -> None:
    """The head of an .npy file, which leaves room for any number of rows."""
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": (rows, *shape)})
