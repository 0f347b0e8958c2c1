"""Small files in the formats of the real data sets, and where the real ones are."""

import gzip
import io
import os
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from fewjoule.tasks.originals import Images

REAL = Path(os.environ.get("FEWJOULE_DATA") or Path(__file__).parents[3] / "shared" / "data")


def real_data(name):
    """The folder of the real data sets, where one of this name is; else the test is skipped."""
    return pytest.mark.skipif(not (REAL / name).is_dir(), reason=f"{name} is not in {REAL} (set FEWJOULE_DATA)")


def idx(array):
    kind = {np.dtype("u1"): 8, np.dtype(">i4"): 12}[array.dtype]
    header = struct.pack(f">HBB{array.ndim}I", 0, kind, array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes())


def images(train, test, seed=0):
    """Random images of ten classes that come in turn; the first pixel is the class."""
    rng = np.random.default_rng(seed)
    parts = []
    for count in (train, test):
        y = (np.arange(count) % 10).astype(np.uint8)
        x = rng.integers(0, 256, (count, 784)).astype(np.uint8)
        x[:, 0] = y
        parts += [x, y]
    return Images(*parts, "made here")


def png(ink, *, filtered=0):
    """A 1-bit PNG of an array of 0 and 1, ink black."""
    rows = np.packbits(1 - ink, axis=1)
    raw = b"".join(bytes([filtered]) + row.tobytes() for row in rows)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", ink.shape[1], ink.shape[0], 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def tar_xz(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:xz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
