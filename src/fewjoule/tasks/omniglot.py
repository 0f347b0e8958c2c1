"""Omniglot: an agent is an alphabet, a new task is a few characters that nobody has, with a few drawings of each.

Data: B. Lake, R. Salakhutdinov, J. Tenenbaum 2015, "Human-level concept learning through probabilistic program
induction": 1623 characters of 50 alphabets, each drawn by 20 people. Two ways to keep characters for new tasks:

    alphabets    the publishers' own: agents are the 30 background alphabets (964 characters), new tasks are characters
                 of the 20 others (659)
    vinyals      the one of Vinyals et al. 2016 that results are published for: 1200 characters of all alphabets to
                 train on, 423 for new tasks

With `rotations`, each turn by 90 degrees is a character of its own, as in Santoro et al. 2016. Drawings of 105 x 105
pixels become 28 x 28 by the mean over the area of each new pixel; ink is 1, paper 0; flat [784].
"""

import lzma
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewjoule.errors import InputError
from fewjoule.tasks.originals import Bytes, Originals, as_pixels
from fewjoule.tasks.samples import Agents, Pair, Tasks, generator_of_tasks, make_agents, make_tasks
from fewjoule.tasks.ways import Rows, few_shot

REPACKED = "omniglot_png.tar.xz"
ZIPS = ("images_background.zip", "images_evaluation.zip")
TEST_CHARACTERS = "splits/vinyals/test.txt"
CURE = f"get {' and '.join(ZIPS)} of github.com/brendenlake/omniglot; give their folder to load(folder) (--data-dir)."
ORIGINALS = Originals(
    "omniglot",
    {
        REPACKED: "5b84376bc659c30f7dded0c75c2b0314855f67060d6e6540bc25cfa4b27f31b0",
        ZIPS[0]: "ad41ab679c8b5d90b271ef46be6987cc81211774a695c29dcc5367b2b26ee640",
        ZIPS[1]: "1f61a8f3366785b057fc117d9228e78a16e3d976c8953b2a10fcc74cf0609cee",
    },
    ("https://raw.githubusercontent.com/brendenlake/omniglot/master/python/",),
    CURE,
)
VINYALS = Originals(
    "omniglot",
    {TEST_CHARACTERS: "845264cc5c156180828ccf17915668b17ee21424d0170df6e7d81676aa5d1204"},
    ("https://raw.githubusercontent.com/jakesnell/prototypical-networks/master/data/omniglot/",),
    f"get {TEST_CHARACTERS} of github.com/jakesnell/prototypical-networks (data/omniglot) and put it into that "
    "folder, or use split 'alphabets'.",
)
SPLITS = ("alphabets", "vinyals")
DRAWING = re.compile(r"images_(background|evaluation)\w*/([\w()-]+)/(character\d\d)/\d+_(\d\d)\.png")
DRAWERS, SIDE, FINE_SIDE = 20, 28, 105
LARGEST_PNG_BYTES = 10_000
PNG_HEADER = b"\x89PNG\r\n\x1a\n"
ONE_BIT_GREY = (FINE_SIDE, FINE_SIDE, 1, 0, 0, 0, 0)


class Character(NamedTuple):
    alphabet: str
    name: str
    background: bool  # in the publishers' training set


class Omniglot(NamedTuple):
    """Drawings [characters, 20, 784] as bytes, ink 255, and what each character is."""

    drawings: Bytes
    characters: tuple[Character, ...]
    source: str


def load(folder: str | Path | None = None) -> Omniglot:
    """All drawings, from a folder (the two original zip files or their content as one tar.xz) or downloaded."""
    if folder is not None and ORIGINALS.find(REPACKED, Path(folder)) is not None:
        return decode(_in_tar(ORIGINALS.read(REPACKED, folder)), "Omniglot, repacked (SHA-256 checked)")
    contents = [ORIGINALS.read(name, folder) for name in ZIPS]
    files = (file for content in contents for file in _in_zip(content))
    return decode(files, "Omniglot, from its two original files (SHA-256 checked)")


def decode(files: Iterator[tuple[str, bytes]], source: str) -> Omniglot:
    """The drawings among files (name, content): images_background/ALPHABET/characterNN/NNNN_DRAWER.png, ..."""
    shares = _area_shares()
    found: dict[Character, dict[int, Bytes]] = {}
    for name, content in files:
        if match := DRAWING.fullmatch(name):
            character = Character(match[2], match[3], match[1] == "background")
            small = shares @ decode_png(name, content) @ shares.T
            found.setdefault(character, {})[int(match[4])] = np.round(255 * small).astype(np.uint8).reshape(-1)
    for character, drawn in found.items():
        if sorted(drawn) != list(range(1, DRAWERS + 1)):
            raise InputError(f"{character.alphabet}/{character.name} has {len(drawn)} drawings, not {DRAWERS}; {CURE}")
    if not found:
        raise InputError(f"there are no drawings of Omniglot; {CURE}")
    ordered = sorted(found)
    drawings = np.stack([[found[c][drawer] for drawer in range(1, DRAWERS + 1)] for c in ordered])
    return Omniglot(drawings, tuple(ordered), source)


def decode_png(name: str, content: bytes) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Ink [105, 105] of a 1-bit PNG file without filters, which is how all of Omniglot's are; others are refused."""
    at, packed = len(PNG_HEADER), b""
    header: tuple[int, ...] = ()
    try:
        while at < len(content):
            size, kind = struct.unpack_from(">I4s", content, at)
            chunk = content[at + 8 : at + 8 + size]
            if kind == b"IHDR":
                header = struct.unpack(">IIBBBBB", chunk)
            elif kind == b"IDAT":
                packed += chunk
            at += 12 + size
        width = -(-FINE_SIDE // 8) + 1  # a byte that names the filter, then eight pixels a byte
        raw = zlib.decompressobj().decompress(packed, FINE_SIDE * width)
        rows = np.frombuffer(raw, np.uint8).reshape(FINE_SIDE, width)
        if header != ONE_BIT_GREY or not content.startswith(PNG_HEADER) or rows[:, 0].any():
            raise ValueError("it must be 105 x 105 pixels of 1 bit, not filtered")
    except (struct.error, zlib.error, ValueError) as error:
        raise InputError(f"{name} is no drawing of Omniglot ({error}); {CURE}") from error
    return 1 - np.unpackbits(rows[:, 1:], axis=1)[:, :FINE_SIDE].astype(np.float32)


def kept_characters(
    data: Omniglot, split: str, folder: str | Path | None = None
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which characters are kept for new tasks; `folder` may hold the list of the split 'vinyals'."""
    if split == "alphabets":
        return np.array([not c.background for c in data.characters])
    if split != "vinyals":
        raise InputError(f"split must be {' or '.join(SPLITS)}, got {split!r}.")
    lines = VINYALS.read(TEST_CHARACTERS, folder).decode().split()
    listed = {line.rpartition("/")[0] for line in lines}
    return np.array([f"{c.alphabet}/{c.name}" in listed for c in data.characters])


def classes_needed(data: Omniglot, kept: Any, *, rotations: bool) -> int:
    """The outputs that a model needs: as many as the largest agent has characters."""
    return max(len(rows) for rows in _alphabets(data, kept).values()) * (4 if rotations else 1)


def agents(
    data: Omniglot,
    kept: Any,
    classes: int,
    *,
    rotations: bool = False,
    drawers: int = DRAWERS,
    validation: float = 0.0,
) -> Agents:
    """One agent per alphabet with the characters that are not `kept` for new tasks: classes 0, 1, ... of its own.

    `classes` are the model's outputs, of which an agent's softmax may choose its own. Of every character there are the
    drawings of the first `drawers` people; those of the last share `validation` of them are apart.
    """
    if not 1 <= drawers <= DRAWERS:
        raise InputError(f"drawers must be from 1 to {DRAWERS}, got {drawers}.")
    cut = drawers - round(validation * drawers)
    train, held, allowed = [], [], []
    alphabets = _alphabets(data, kept)
    for rows in alphabets.values():
        drawings = data.drawings[rows][:, :drawers]
        every = _rotated(drawings) if rotations else drawings
        if len(every) > classes:
            raise InputError(
                f"the largest alphabet has {len(every)} characters, the model {classes} outputs; add some."
            )
        train.append(_pair(every[:, :cut]))
        held.append(_pair(every[:, cut:]))
        allowed.append(range(len(every)))
    names = [name.replace("_", " ") for name in alphabets]
    return make_agents(train, held, names=names, allowed=allowed, classes=classes)


def new_tasks(
    count: int,
    data: Omniglot,
    kept: Any,
    classes: int,
    *,
    ways: int = 5,
    shots: int = 1,
    queries: int = 15,
    rotations: bool = False,
    one_alphabet: bool = False,
    seed: int = 0,
) -> Tasks:
    """Tasks of `ways` characters that are `kept`, of any alphabets or of `one_alphabet`; classes 0, 1, ... in each."""
    rng = generator_of_tasks(seed, count=count, shots=shots, queries=queries, ways=ways)
    turns = 4 if rotations else 1
    groups: list[Rows] = [np.flatnonzero(kept)]
    if one_alphabet:
        groups = [rows for rows in _alphabets(data, ~kept).values() if len(rows) * turns >= ways]
    if ways > classes or not groups:
        raise InputError(
            f"ways must be at most {classes}, the model's outputs, and an alphabet's characters, got {ways}."
        )
    support: list[Pair] = []
    query: list[Pair] = []
    for _ in range(count):
        group = groups[rng.integers(len(groups))]
        drawn = few_shot(
            rng, [np.arange(DRAWERS)] * (len(group) * turns), ways=ways, shots=shots, queries=queries, what="characters"
        )
        chosen = data.drawings[group[np.array(drawn.classes) // turns]]
        turned = [_turned(one, i % turns) for one, i in zip(chosen, drawn.classes, strict=True)]
        for part, drawers in ((support, drawn.support), (query, drawn.query)):
            part.append(_pair(np.stack([one[who] for one, who in zip(turned, drawers.reshape(ways, -1), strict=True)])))
    return make_tasks(support, query, allowed=[range(ways)] * count, classes=classes)


def _alphabets(data: Omniglot, kept: Any) -> dict[str, Rows]:
    """The rows of each alphabet's characters that are not kept; alphabets that have none are left out."""
    names = sorted({c.alphabet for c, k in zip(data.characters, kept, strict=True) if not k})
    own = np.array([c.alphabet for c in data.characters])
    return {name: np.flatnonzero((own == name) & ~kept) for name in names}


def _turned(drawings: Bytes, quarters: int) -> Bytes:
    """Drawings [..., 784] turned by quarters of a circle."""
    square = drawings.reshape(*drawings.shape[:-1], SIDE, SIDE)
    return np.rot90(square, quarters, axes=(-2, -1)).reshape(drawings.shape)


def _rotated(drawings: Bytes) -> Bytes:
    """Characters [n, drawers, 784] as four each, one for every quarter: [4 n, drawers, 784]."""
    turned = np.stack([_turned(drawings, quarters) for quarters in range(4)], 1)
    return turned.reshape(-1, *drawings.shape[1:])


def _pair(drawings: Bytes) -> Pair:
    """Drawings [classes, n, 784] as samples."""
    classes, each, pixels = drawings.shape
    return as_pixels(drawings.reshape(-1, pixels)), np.repeat(np.arange(classes, dtype=np.int32), each)


def _area_shares() -> np.ndarray[Any, np.dtype[np.float32]]:
    """[28, 105]: which share of each new pixel is covered by an old one, along one side."""
    old, new = np.arange(FINE_SIDE + 1) / FINE_SIDE, np.arange(SIDE + 1) / SIDE
    covered = np.minimum(old[1:], new[1:, None]) - np.maximum(old[:-1], new[:-1, None])
    return (np.maximum(covered, 0) * SIDE).astype(np.float32)


def _in_tar(content: bytes) -> Iterator[tuple[str, bytes]]:
    """The small files of an archive by name; nothing is unpacked."""
    try:
        with tarfile.open(fileobj=BytesIO(content), mode="r:xz") as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() and member.size <= LARGEST_PNG_BYTES else None
                if file is not None:
                    yield member.name, file.read()
    except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
        raise InputError(f"{REPACKED} is damaged ({error}); {CURE}") from error


def _in_zip(content: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(BytesIO(content)) as archive:
            for member in archive.infolist():
                if not member.is_dir() and member.file_size <= LARGEST_PNG_BYTES:
                    yield member.filename, archive.read(member)
    except (zipfile.BadZipFile, EOFError, zlib.error) as error:
        raise InputError(f"a zip file of Omniglot is damaged ({error}); {CURE}") from error
