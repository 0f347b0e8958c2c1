"""Make the MNIST subset that the package carries: `python tools/embed_mnist.py FOLDER_OF_THE_FOUR_FILES`.

The first 600 training images of every digit, in the order of the original, and the whole test set.
"""

import sys
from pathlib import Path

import numpy as np

from fewjoule.tasks.mnist import read_folder

PER_CLASS = 600
full = read_folder(Path(sys.argv[1]))
rows = np.sort(np.concatenate([np.flatnonzero(full.train_y == digit)[:PER_CLASS] for digit in range(10)]))
target = Path(__file__).parents[1] / "src/fewjoule/data/mnist-subset.npz"
np.savez_compressed(
    target,
    train_x=full.train_x[rows], train_y=full.train_y[rows], train_rows=rows.astype(np.uint16),
    test_x=full.test_x, test_y=full.test_y,
)  # fmt: skip
print(f"{target.name}: {len(rows)} training and {len(full.test_y)} test images, {target.stat().st_size} bytes")
