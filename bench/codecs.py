"""Time to encode and decode 1 million weights beside their time on the air, on every preset link.

    python bench/codecs.py [weights]

The best of five runs, after one that compiles. A message takes `link.seconds(bits)` to send: the coded message, and
the same weights as float32. The coding must be faster than the radio on every link.
"""

import sys
import time

import jax
import numpy as np

from fewjoule.codecs import codec, decode
from fewjoule.energy import LINKS

SPECS = (
    "float32", "float16", "quantise:8", "quantise:3", "quantise:1", "lloyd-max:3", "lloyd-max:1",
    "top-k:0.25:3", "top-k:0.1:2", "top-k:0.1:1", "top-k:0.01:1",
)  # fmt: skip


def best(job, times=5):
    """Seconds of the fastest of some runs, and the result."""
    seconds, result = float("inf"), None
    for _ in range(times):
        begin = time.perf_counter()
        result = job()
        seconds = min(seconds, time.perf_counter() - begin)
    return seconds, result


def main() -> None:
    weights = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    vector = np.random.default_rng(0).laplace(size=weights).astype(np.float32)
    key = jax.random.key(0)
    print(f"{weights} weights; milliseconds to encode and decode; radio seconds of the coded message, by link")
    print(f"{'codec':14} {'Mbit':>8} {'encode':>8} {'decode':>8}  " + "  ".join(f"{name:>10}" for name in LINKS))
    slower = []
    for spec in SPECS:
        chosen = codec(spec)
        decode(chosen.encode(vector, key), weights)
        encoding, message = best(lambda chosen=chosen: chosen.encode(vector, key))
        decoding, _ = best(lambda message=message: decode(message, weights))
        bits = 8 * len(message)
        air = {name: link.seconds(bits) for name, link in LINKS.items()}
        slower += [(spec, name) for name, s in air.items() if encoding + decoding > s]
        row = "  ".join(f"{s:10.3g}" for s in air.values())
        print(f"{spec:14} {bits / 1e6:8.3f} {1e3 * encoding:8.1f} {1e3 * decoding:8.1f}  {row}")
    row = "  ".join(f"{link.seconds(32 * weights):10.3g}" for link in LINKS.values())
    print(f"{'plain float32':14} {32 * weights / 1e6:8.3f} {'':8} {'':8}  {row}")
    print("slower than the radio: " + (", ".join(f"{s} on {n}" for s, n in slower) or "none"))


if __name__ == "__main__":
    main()
