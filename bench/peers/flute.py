"""FLUTE's published task: MNIST logistic regression, 1000 clients, 10 a round, 100 rounds; compilation included.

    python bench/peers/flute.py --data-dir FOLDER     the four original files of MNIST

Every client owns 60 of the 60 000 training images, drawn at random; a round is one epoch in mini-batches of 10 of each
of its 10 clients. The clock runs from the arrays to the accuracy on all 10 000 test images.
Writes docs/performance.json.
"""

import argparse
import datetime
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

import jax
import numpy as np

import fewjoule as fj
from fewjoule.files import write_atomically
from fewjoule.tasks.originals import Images

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs/performance.json"
CLIENTS, EACH_ROUND, ROUNDS = 1000, 10, 100


def scaled(pixels: np.ndarray) -> np.ndarray:
    return np.multiply(pixels, np.float32(1 / 255), dtype=np.float32)


def run(images: Images) -> tuple[float, float]:
    """Seconds and accuracy."""
    before = time.perf_counter()
    order = np.random.default_rng(0).permutation(len(images.train_y))
    parts = np.array_split(order, CLIENTS)
    agents = fj.make_agents([(scaled(images.train_x[rows]), images.train_y[rows]) for rows in parts])
    model = fj.logistic(images.train_x.shape[1], 10)
    method = fj.fedavg(rounds=ROUNDS, epochs=1, batch=10, learning_rate=0.03, start="random")
    meta = fj.simulate(method, model, agents, participation=EACH_ROUND / CLIENTS).meta
    scores = np.asarray(jax.jit(model.apply)(meta, scaled(images.test_x)))
    accuracy = float((scores.argmax(-1) == images.test_y).mean())
    return time.perf_counter() - before, accuracy


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True)
    images = fj.mnist.load(parser.parse_args().data_dir)
    seconds, accuracy = run(images)
    again, _ = run(images)
    print(f"{seconds:.2f} s with compilation, {again:.2f} s without, accuracy {accuracy:.3f}")
    numbers = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    numbers["flute"] = {
        "seconds": seconds, "again_seconds": again, "accuracy": accuracy, "cores": len(os.sched_getaffinity(0)),
        "date": str(datetime.date.today()),
    }  # fmt: skip
    write_atomically(FILE, (json.dumps(numbers, indent=1) + "\n").encode(), force=True)


if __name__ == "__main__":
    main()
