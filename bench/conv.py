"""Forward and backward pass of conv4 for several agents, in nine forms.

    python bench/conv.py [--agents 5] [--batch 32] [--filters 64] [--repeat 5]

    at once      jax.vmap over the agents, each with its own weights: XLA's grouped convolutions
    in turn      jax.lax.map over the agents: a plain convolution each
    shared       equal weights: one batch of all agents' samples
    products     the same three with every convolution as a product of its nine shifted inputs, as in the package
    at one go    products, shared, without groups of images that stay in the cache
    sums         at one go, and means by XLA's reduction, as they were before
    XLA's pools  sums, and pooling by XLA's reduce_window

Seconds are the best of the repeats, on all cores that the process may use, of one of several gradients in a loop: a
program that is called once takes as long again to get its memory.
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


def summed(x: Any) -> Any:
    """Normalisation with XLA's own means."""
    mean = x.mean((1, 2, 3), keepdims=True)
    return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean((1, 2, 3), keepdims=True) + 1e-5)


def xla_pooled(x: Any, window: Any) -> Any:
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, *window, 1), (1, *window, 1), "VALID")


def gradient(vector: Any, samples: Samples, model: fj.Model, **parts: Any) -> Any:
    """The gradient of conv4's loss with these parts in the place of the package's."""
    own = {name: getattr(nets, name) for name in parts}
    try:
        for name, part in parts.items():
            setattr(nets, name, part)
        return jax.grad(model.loss)(vector, samples)
    finally:
        for name, part in own.items():
            setattr(nets, name, part)


LOOPS = 4


def seconds(function: Callable[..., Any], vectors: Any, samples: Samples, repeat: int) -> float:
    arrays = (vectors, samples)
    compiled = jax.jit(lambda v, s: jax.lax.fori_loop(0, LOOPS, lambda _, w: w - 1e-4 * function(w, s), v))
    jax.block_until_ready(compiled(*arrays))  # type: ignore[no-untyped-call]
    times = []
    for _ in range(repeat):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(*arrays))  # type: ignore[no-untyped-call]
        times.append((time.perf_counter() - begin) / LOOPS)
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
    xla, products = partial(gradient, model=model, convolution=by_xla), partial(gradient, model=model)
    forms: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
    for name, one in (("", xla), ("products ", products)):
        forms[f"{name}at once"] = (jax.vmap(one), (vectors, samples))
        forms[f"{name}in turn"] = (partial(in_turn, one), (vectors, samples))
        forms[f"{name}shared"] = (one, (vectors[0], joined))
    slower = {"IN_CACHE": 1}
    for name, part in (("at one go", {}), ("sums", {"normalised": summed}), ("XLA's pools", {"pooled": xla_pooled})):
        slower |= part
        forms[name] = (partial(products, **slower), (vectors[0], joined))
    taken = {}
    for name, (function, arrays) in forms.items():
        taken[name] = seconds(function, *arrays, repeat=asked.repeat)
        ratio = taken["at once"] / taken[name]
        print(f"{name:18} {1e3 * taken[name]:9.1f} ms   {ratio:5.2f} times as fast as at once", flush=True)
    far = jnp.abs(xla(vectors[0], joined) - products(vectors[0], joined)).max()
    print(f"largest difference of the gradients: {float(far):.2g}")


if __name__ == "__main__":
    main()
