"""Fashion-MNIST between agents that each have some classes only: the two splits of the PFLlib benchmark.

Data: H. Xiao, K. Rasul, R. Vollgraf 2017, "Fashion-MNIST". Splits: J. Zhang et al. 2023, "PFLlib". Training and test
images are one pool of 70 000; a share is set aside for new devices, which PFLlib does not have; the rest is split:

    classes      every agent has two classes. Agents take them in order, so that four agents of twenty share a pair; a
                 class goes to its agents in parts of random size, from a tenth to all of an even part, the last
                 agent taking the rest
    dirichlet    every class is shared out by proportions from a Dirichlet distribution; an agent that has its even part
                 of all images gets no more; drawn again until every agent has LEAST_SAMPLES

Which agent has which images is drawn once (`partition_seed`), as in PFLlib, and not by the seeds of a study.
"""

from pathlib import Path
from typing import Any

import numpy as np

from fewjoule.errors import InputError, positive, positive_int
from fewjoule.tasks.originals import Images, Originals, as_pixels, read_images
from fewjoule.tasks.samples import Agents, Pair, Tasks, generator_of_tasks, make_agents, make_tasks
from fewjoule.tasks.ways import Rows, few_shot

FILES = {
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
ORIGINALS = Originals(
    "fashion-mnist",
    FILES,
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    ),
    f"get {', '.join(FILES)} of Fashion-MNIST (github.com/zalandoresearch/fashion-mnist) and give their folder to "
    "load(folder) (--data-dir).",
)
CLASSES = 10
SPLITS = ("classes", "dirichlet")
LEAST_SAMPLES = 40
"""Of an agent: a quarter of them, its test samples, are a batch of ten."""
MOST_DRAWS = 500


class Pool:
    """All images with their labels, and the rows that are set aside for new devices."""

    def __init__(self, images: Images, reserved: float, partition_seed: int) -> None:
        if not 0 < reserved < 1:
            raise InputError(f"reserved must be a share above 0 and below 1, got {reserved}.")
        self.x = np.concatenate([images.train_x, images.test_x])
        self.y = np.concatenate([images.train_y, images.test_y])
        self.rng = np.random.default_rng([partition_seed, 0])
        by_class = [self.rng.permutation(np.flatnonzero(self.y == c)) for c in range(CLASSES)]
        cuts = [round(reserved * len(rows)) for rows in by_class]
        self.new: list[Rows] = [rows[:cut] for rows, cut in zip(by_class, cuts, strict=True)]
        self.owned: list[Rows] = [rows[cut:] for rows, cut in zip(by_class, cuts, strict=True)]

    def pair(self, rows: Rows) -> Pair:
        return as_pixels(self.x[rows]), self.y[rows].astype(np.int32)


def load(folder: str | Path | None = None) -> Images:
    """The whole of Fashion-MNIST from a folder of its four files, or downloaded."""
    return read_images(ORIGINALS, folder, "the whole of Fashion-MNIST, from its four original files (SHA-256 checked)")


def agents(
    images: Images,
    *,
    split: str = "classes",
    count: int = 20,
    classes_each: int = 2,
    concentration: float = 0.1,
    samples: int | None = None,
    validation: float = 0.0,
    reserved: float = 0.1,
    partition_seed: int = 1,
) -> Agents:
    """`count` agents named `agent 00`, ...; of each at most `samples` images, a share `validation` of them apart."""
    positive_int("count", count)
    pool = Pool(images, reserved, partition_seed)
    if split == "classes":
        parts = _by_classes(pool, count, classes_each)
    elif split == "dirichlet":
        parts = _by_dirichlet(pool, count, concentration)
    else:
        raise InputError(f"split must be {' or '.join(SPLITS)}, got {split!r}.")
    kept = [pool.rng.permutation(rows)[:samples] for rows in parts]
    cuts = [round(validation * len(rows)) for rows in kept]
    train = [pool.pair(rows[cut:]) for rows, cut in zip(kept, cuts, strict=True)]
    held = [pool.pair(rows[:cut]) for rows, cut in zip(kept, cuts, strict=True)]
    return make_agents(train, held, names=[f"agent {i:02d}" for i in range(count)])


def new_tasks(
    count: int,
    images: Images,
    *,
    ways: int = 5,
    shots: int = 10,
    queries: int = 50,
    reserved: float = 0.1,
    partition_seed: int = 1,
    seed: int = 0,
) -> Tasks:
    """New devices with `ways` random classes of the images that no agent has."""
    rng = generator_of_tasks(seed, count=count, shots=shots, queries=queries, ways=ways)
    pool = Pool(images, reserved, partition_seed)
    drawn = [few_shot(rng, pool.new, ways=ways, shots=shots, queries=queries) for _ in range(count)]
    return make_tasks([pool.pair(task.support) for task in drawn], [pool.pair(task.query) for task in drawn])


def _by_classes(pool: Pool, count: int, classes_each: int) -> list[Rows]:
    positive_int("classes_each", classes_each)
    if classes_each > CLASSES or count * classes_each < CLASSES:
        raise InputError(
            f"classes_each must be at most {CLASSES} and give every class an owner, got {classes_each} for {count}."
        )
    sharing = -(-count * classes_each // CLASSES)
    left = np.full(count, classes_each)
    parts: list[list[Any]] = [[] for _ in range(count)]
    for rows in pool.owned:
        takers = np.flatnonzero(left)[:sharing]
        if not len(takers):
            break
        even = len(rows) / len(takers)
        sizes = pool.rng.integers(int(max(even / 10, LEAST_SAMPLES / CLASSES)), max(int(even), 1), len(takers) - 1)
        for taker, part in zip(takers, np.split(rows, np.cumsum(sizes)), strict=True):
            parts[taker].append(part)
        left[takers] -= 1
    return [np.concatenate(part) for part in parts]


def _by_dirichlet(pool: Pool, count: int, concentration: float) -> list[Rows]:
    positive("concentration", concentration)
    even = sum(map(len, pool.owned)) / count
    for _ in range(MOST_DRAWS):
        parts: list[Rows] = [np.zeros(0, np.intp)] * count
        for rows in pool.owned:
            shares = pool.rng.dirichlet(np.full(count, concentration)) * [len(part) < even for part in parts]
            if not shares.sum() > 0:  # so few agents had room that none of them was given any
                break
            cuts = (np.cumsum(shares / shares.sum())[:-1] * len(rows)).astype(int)
            parts = [np.concatenate(both) for both in zip(parts, np.split(rows, cuts), strict=True)]
        else:
            if min(map(len, parts)) >= LEAST_SAMPLES:
                return parts
    raise InputError(
        f"no split of {count} agents at concentration {concentration:g} gave everyone {LEAST_SAMPLES} images; give "
        "fewer agents or a larger concentration."
    )
