"""MNIST by its writers: every agent is a person with their own handwriting, and so is every new device.

The writers are in the labels of QMNIST (C. Yadav and L. Bottou 2019, "Cold Case: the Lost MNIST Digits"): row i of its
training file describes MNIST's training image i, the first 10 000 rows of its test file the test images. 539 people
wrote the training images and 297 others the test images. Pixels are in 0..1, flat [784].
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewjoule.errors import InputError, positive_int
from fewjoule.tasks import mnist
from fewjoule.tasks.originals import Images, Originals, as_pixels, read_idx, read_images
from fewjoule.tasks.samples import Agents, Pair, Tasks, generator_of_tasks, make_agents, make_tasks

LABELS = {
    "qmnist-train-labels-idx2-int.gz": "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
    "qmnist-test-labels-idx2-int.gz": "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
}
CURE = (
    "get MNIST's four files and, of github.com/facebookresearch/qmnist, "
    f"{' and '.join(LABELS)}; give their folder to load(folder) (--data-dir)."
)
DIGITS = mnist.ORIGINALS._replace(cure=CURE)
ORIGINALS = Originals("qmnist", LABELS, ("https://raw.githubusercontent.com/facebookresearch/qmnist/master/",), CURE)
CLASS_COLUMN, WRITER_COLUMN = 0, 2
Ids = np.ndarray[Any, np.dtype[np.integer[Any]]]


class Written(NamedTuple):
    """MNIST's images, and who wrote each of them."""

    images: Images
    train_writers: Ids
    test_writers: Ids

    @property
    def source(self) -> str:
        return "the whole of MNIST by its writers (QMNIST), from original files (SHA-256 checked)"


def load(folder: str | Path | None = None) -> Written:
    """The four files of MNIST and the two of QMNIST's labels, from a folder or downloaded."""
    labels = [read_idx(name, ORIGINALS.read(name, folder)) for name in LABELS]
    return with_writers(read_images(DIGITS, folder, "the whole of MNIST"), *labels)


def with_writers(images: Images, train_labels: Ids, test_labels: Ids) -> Written:
    """Images with the rows of QMNIST's labels that describe them."""
    writers = []
    for y, labels in ((images.train_y, train_labels), (images.test_y, test_labels)):
        if len(labels) < len(y) or not np.array_equal(labels[: len(y), CLASS_COLUMN], y):
            raise InputError(f"the writers' labels are of other images: their classes are not MNIST's. {CURE}")
        writers.append(labels[: len(y), WRITER_COLUMN])
    return Written(images, *writers)


def agents(written: Written, *, count: int | None = None, least: int = 10, validation: float = 0.0) -> Agents:
    """One agent per writer of the training images, named `writer 0102`, ...: the first `count`, or all.

    A writer with fewer than `least` images is left out. A share `validation` of the images is apart.
    """
    positive_int("least", least)
    images, train, held = written.images, [], []
    ids, sizes = np.unique(written.train_writers, return_counts=True)
    chosen = ids[sizes >= least][:count]
    if not len(chosen):
        raise InputError(f"no writer has {least} images, the most is {sizes.max()}; lower least.")
    for writer in chosen:
        rows = np.random.default_rng([int(writer)]).permutation(np.flatnonzero(written.train_writers == writer))
        cut = round(validation * len(rows))
        held.append(_pair(images.train_x, images.train_y, rows[:cut]))
        train.append(_pair(images.train_x, images.train_y, rows[cut:]))
    return make_agents(train, held, names=[f"writer {writer:04d}" for writer in chosen])


def new_tasks(count: int, written: Written, *, shots: int = 1, seed: int = 0) -> Tasks:
    """At most `count` writers of the test images as new devices, each with the digits of which it has enough.

    These are the digits that the writer wrote more than `shots` times: `shots` images to adapt on, all others to judge
    on. A writer with fewer than two such digits is left out; more shots leave fewer writers.
    """
    rng = generator_of_tasks(seed, count=count, shots=shots)
    images = written.images
    support: list[Any] = []
    query: list[Any] = []
    for writer in rng.permutation(np.unique(written.test_writers)):
        rows = np.flatnonzero(written.test_writers == writer)
        each = [rng.permutation(rows[images.test_y[rows] == digit]) for digit in range(10)]
        enough = [digit for digit in each if len(digit) > shots]
        if len(enough) >= 2 and len(support) < count:
            support.append(np.concatenate([digit[:shots] for digit in enough]))
            query.append(np.concatenate([digit[shots:] for digit in enough]))
    if not support:
        raise InputError(f"no writer wrote two digits more than {shots} times; ask for fewer shots.")
    adapted, judged = ([_pair(images.test_x, images.test_y, rows) for rows in part] for part in (support, query))
    return make_tasks(adapted, judged)


def _pair(x: Any, y: Any, rows: Any) -> Pair:
    return as_pixels(x[rows]), y[rows].astype(np.int32)
