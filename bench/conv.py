"""Forward and backward pass of conv4 for several agents, in six forms.

    python bench/conv.py [--agents 5] [--batch 32] [--filters 64] [--repeat 5]

    at once      jax.vmap over the agents, each with its own weights: XLA's grouped convolutions
    in turn      jax.lax.map over the agents: a plain convolution each
    shared       equal weights: one batch of all agents' samples
    products     the same three with every convolution as a product of its nine shifted inputs, as in the package

Seconds are the best of the repeats, on all cores that the process may use.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import fewjoule as fj
from fewjoule.models import nets
from fewjoule.tasks.samples import Samples


def by_xla(x: Any, weight: Any) -> Any:
    """XLA's own convolution in the place of the package's."""
    return jax.lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def gradient(vector: Any, samples: Samples, model: fj.Model, convolution: Callable[..., Any]) -> Any:
    """The gradient of conv4's loss with this convolution."""
    own, nets.convolution = nets.convolution, convolution
    try:
        return jax.grad(model.loss)(vector, samples)
    finally:
        nets.convolution = own


def seconds(function: Callable[..., Any], *arrays: Any, repeat: int) -> float:
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(*arrays))  # type: ignore[no-untyped-call]
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(*arrays))  # type: ignore[no-untyped-call]
        times.append(time.perf_counter() - begin)
    return min(times)


def in_turn(one: Callable[..., Any], vectors: Any, samples: Samples) -> Any:
    return jax.lax.map(lambda both: one(*both), (vectors, samples))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("agents", 5), ("batch", 32), ("filters", 64), ("repeat", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    model = fj.conv4([28, 28, 1], 5, filters=asked.filters)
    count, batch = asked.agents, asked.batch
    vectors = jnp.stack([model.init(jax.random.key(i)) for i in range(count)])
    x = jax.random.normal(jax.random.key(9), (count, batch, 28, 28, 1))
    samples = Samples(x, jnp.zeros((count, batch), jnp.int32), jnp.ones((count, batch)))
    joined = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), samples)
    xla, products = (partial(gradient, model=model, convolution=c) for c in (by_xla, nets.convolution))
    forms: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
    for name, one in (("", xla), ("products ", products)):
        forms[f"{name}at once"] = (jax.vmap(one), (vectors, samples))
        forms[f"{name}in turn"] = (partial(in_turn, one), (vectors, samples))
        forms[f"{name}shared"] = (one, (vectors[0], joined))
    taken = {}
    for name, (function, arrays) in forms.items():
        taken[name] = seconds(function, *arrays, repeat=asked.repeat)
        ratio = taken["at once"] / taken[name]
        print(f"{name:18} {1e3 * taken[name]:9.1f} ms   {ratio:5.2f} times as fast as at once", flush=True)
    far = jnp.abs(xla(vectors[0], joined) - products(vectors[0], joined)).max()
    print(f"largest difference of the gradients: {float(far):.2g}")


if __name__ == "__main__":
    main()
