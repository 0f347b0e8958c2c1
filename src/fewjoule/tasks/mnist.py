"""MNIST digits as few-shot tasks: an agent owns a few digits, a new task is some digits with a few samples each.

Images come from the four original files (a folder, or downloaded with checksums) or from the subset in the package;
they leave as agents and tasks with pixels in 0..1, flat [784]. Agents draw from the first half of the training
images of a digit, new tasks their support from the second half and their query from the test set: no image is shared.
"""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from fewjoule.errors import InputError
from fewjoule.tasks.originals import Bytes, Images, Originals, as_pixels, read_images
from fewjoule.tasks.samples import Agents, Pair, Tasks, draw_agents, generator_of_tasks, make_tasks

FILES = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}
ORIGINALS = Originals(
    "mnist",
    FILES,
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    f"the folder must hold {', '.join(FILES)}: give it with "
    "load(folder) (--data-dir), or use the subset in the package (source 'embedded').",
)


def load(folder: str | Path | None = None, *, download: bool = False) -> Images:
    """MNIST from a folder of the four original files, from the mirrors, or (by default) the subset in the package."""
    if folder is not None or download:
        return read_images(ORIGINALS, folder, "the whole of MNIST, from its four original files (SHA-256 checked)")
    with resources.files("fewjoule.tasks.data").joinpath("mnist-subset.npz").open("rb") as file:
        part = np.load(file, allow_pickle=False)
        images = Images(part["train_x"], part["train_y"], part["test_x"], part["test_y"], "")
    count = len(images.train_y)
    return images._replace(source=f"the MNIST subset in the package ({count} training images, whole test set)")


def agents(
    images: Images | None = None,
    digits: Sequence[Sequence[int]] = ((0, 1, 2), (7, 8, 9)),
    *,
    samples: int = 400,
    validation: int = 100,
    only_own_digits: bool = False,
    seed: int | Sequence[int] = 0,
) -> Agents:
    """One agent per group of digits, named `digits 012`, ...; a sequence of seeds gives a leading axis of seeds.

    With `only_own_digits` an agent's softmax may choose among its own digits only.
    """
    images = load() if images is None else images
    names, pools = [], []
    for group in digits:
        _check_digits(group)
        names.append("digits " + "".join(map(str, group)))
        pools.append(np.concatenate([_halves(images, digit)[0] for digit in group]))
        if samples + validation > len(pools[-1]):
            raise InputError(
                f"{names[-1]} has {len(pools[-1])} images, fewer than {samples} + {validation}; ask for fewer."
            )

    def pair(i: int, rng: np.random.Generator) -> Pair:
        return _as_samples(images.train_x, images.train_y, rng.permutation(pools[i])[: samples + validation])

    allowed = list(digits) if only_own_digits else None
    return draw_agents(names, pair, samples, validation, seed, allowed=allowed, classes=10)


def new_tasks(
    count: int,
    images: Images | None = None,
    *,
    ways: int = 5,
    shots: int = 10,
    queries: int = 50,
    only_own_digits: bool = False,
    seed: int = 0,
) -> Tasks:
    """New tasks of `ways` random digits: `shots` support and `queries` test images per digit."""
    images = load() if images is None else images
    rng = generator_of_tasks(seed, count=count, shots=shots, queries=queries, ways=ways)
    if ways > 10:
        raise InputError(f"ways must be at most 10, the number of digits, got {ways}.")
    pools = [_halves(images, digit)[1] for digit in range(10)]
    tests = [np.flatnonzero(images.test_y == digit) for digit in range(10)]
    for what, wanted, have in (("shots", shots, min(map(len, pools))), ("queries", queries, min(map(len, tests)))):
        if wanted > have:
            raise InputError(f"{what} must be at most {have}, the images of the rarest digit, got {wanted}.")
    support, query, chosen = [], [], []
    for _ in range(count):
        group = np.sort(rng.permutation(10)[:ways])
        chosen.append([int(d) for d in group])
        rows = np.concatenate([rng.permutation(pools[d])[:shots] for d in group])
        support.append(_as_samples(images.train_x, images.train_y, rows))
        rows = np.concatenate([rng.permutation(tests[d])[:queries] for d in group])
        query.append(_as_samples(images.test_x, images.test_y, rows))
    allowed = chosen if only_own_digits else None
    return make_tasks(support, query, allowed=allowed, classes=10)


def _halves(images: Images, digit: int) -> tuple[Any, Any]:
    rows = np.flatnonzero(images.train_y == digit)
    return rows[: len(rows) // 2], rows[len(rows) // 2 :]


def _as_samples(x: Bytes, y: Bytes, rows: Any) -> Pair:
    return as_pixels(x[rows]), y[rows].astype(np.int32)


def _check_digits(group: Sequence[int]) -> None:
    if not group or len(set(group)) != len(group) or any(d not in range(10) for d in group):
        raise InputError(f"digits of an agent must be different numbers from 0 to 9, got {list(group)}.")
