"""A population on disk: the samples of more agents than memory holds, one after another in mapped files.

    folder/x.npy        [all samples, ...features] float32
    folder/y.npy        [all samples, outputs] float32, or [all samples] int32 classes
    folder/ends.npy     [agents] int64: where each agent's samples end

From a generator of pairs (x, y), written as they come; to the samples of a few agents, padded to a common size.
"""

import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fewjoule.errors import InputError
from fewjoule.files import new_folder_atomically
from fewjoule.randomness import agent_id
from fewjoule.tasks.samples import AgentData, Pair, Samples, check_classes, check_pair

Numbers = np.ndarray[Any, Any]


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
        self._x, self._y, ends = (MappedRows.opened(folder / f"{name}.npy") for name in ("x", "y", "ends"))
        whole = ends.rows.dtype == np.int64 and ends.rows.ndim == 1 and len(ends.rows) > 0 and self._x.rows.ndim > 1
        self._ends = np.concatenate([[0], ends.rows if whole else [0]])
        if not whole or (self.sizes < 1).any() or not self._ends[-1] == len(self._x.rows) == len(self._y.rows):
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
        starts, counts = self._ends[who], self._ends[who + 1] - self._ends[who]
        real = np.arange(size) < counts[:, None]
        at = starts[:, None] + np.where(real, np.arange(size), 0)
        train = _samples(self._x.read(at), self._y.read(at), real.astype(np.float32))
        return AgentData(train, _samples(train.x[:, :1], train.y[:, :1], np.zeros((len(who), 1), np.float32)))

    def a_sample(self) -> Samples:
        """The first sample; of classes, with the largest class of all: what a model must take."""
        y = self._y.rows[:1] if self._y.rows.dtype.kind == "f" else self._y.rows.max(keepdims=True)
        return _samples(self._x.rows[:1], y, np.ones(1, np.float32))


def _samples(x: Any, y: Any, mask: Any) -> Samples:
    """Samples of NumPy arrays, which go to JAX as they are."""
    return Samples(x, y, mask)


def ids_of(who: Numbers) -> Numbers:
    """The numbers of agents in key derivation, by their positions in a population."""
    return np.fromiter((agent_id(str(i)) for i in who), np.uint32, len(who))


class MappedRows:
    """Rows of a file, read and written in place. Mapped pages are given back, so that they never fill the memory."""

    RELEASE_BYTES = 256 << 20
    FAULT_BYTES = 64 << 10  # what the system maps around a row that is touched

    def __init__(self, rows: Numbers) -> None:
        self.rows, self._touched = rows, 0

    @classmethod
    def opened(cls, path: Path) -> "MappedRows":
        try:
            return cls(np.load(path, mmap_mode="r", allow_pickle=False))
        except (OSError, ValueError, EOFError) as error:
            raise InputError(f"{path} cannot be read as rows of numbers ({error}); write it again.") from error

    @classmethod
    def created(cls, path: Path, shape: Sequence[int], kind: Any) -> "MappedRows":
        """A new file of zeros, which takes space only where something is written."""
        try:
            return cls(np.lib.format.open_memmap(path, "w+", kind, tuple(shape)))
        except OSError as error:
            raise InputError(
                f"{path} cannot be written ({error.strerror}); free space or choose another one."
            ) from error

    def read(self, at: Numbers) -> Numbers:
        rows = np.asarray(self.rows[at])
        self._release(len(at) * self.FAULT_BYTES + rows.nbytes)
        return rows

    def write(self, at: Numbers, rows: Numbers) -> None:
        self.rows[at] = rows
        self._release(len(at) * self.FAULT_BYTES + rows.nbytes)

    def _release(self, touched: int) -> None:
        """Give mapped pages back now and then; what was written to them is in the file."""
        self._touched += touched
        mapped: Any = getattr(self.rows, "_mmap", None)  # an array in memory has none
        if self._touched > self.RELEASE_BYTES and hasattr(mapped, "madvise"):
            mapped.madvise(mmap.MADV_DONTNEED)
            self._touched = 0


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
