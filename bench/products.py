"""The gradient of a dense layer's weights, x' d, as XLA computes it and of a transposed copy of x (models/product.py).

python bench/products.py            # both in turns, a line for every size; a ratio above 1 is for the copy
"""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from fewjoule.models.product import product

SIZES = [  # agents at once, samples, inputs, outputs
    (25, 10, 40, 40), (17, 40, 40, 40), (3, 100, 40, 40), (1, 100, 40, 40), (8, 50, 8, 8), (100, 20, 20, 20),
    (21, 50, 51, 32), (8, 100, 64, 10), (20, 20, 784, 64), (30, 20, 128, 128), (1, 32, 512, 512),
]  # fmt: skip
TURNS, FLOPS = 25, 1e8


def weight_gradient(multiply: Callable[..., jax.Array], times: int) -> Callable[..., jax.Array]:
    """So many gradients one after another, each with inputs that depend on the one before."""

    def one(x: jax.Array, d: jax.Array, w: jax.Array) -> jax.Array:
        gradient: jax.Array = jax.vjp(lambda weights: multiply(x, weights), w)[1](d)[0]
        return gradient

    def all_of_them(x: jax.Array, d: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, times, lambda _, c: jax.vmap(one)(x + c, d, w)[0, 0, 0] * 1e-20, jnp.float32(0))

    return jax.jit(all_of_them)


def main() -> None:
    rng = np.random.default_rng(0)
    for agents, samples, inputs, outputs in SIZES:
        shapes = (agents, samples, inputs), (agents, samples, outputs), (agents, inputs, outputs)
        given = [rng.random(shape, np.float32) for shape in shapes]
        flops = 2 * agents * samples * inputs * outputs
        times = max(3, round(FLOPS / flops))
        programs = [weight_gradient(multiply, times) for multiply in (jnp.matmul, product)]
        seconds = np.zeros((TURNS + 1, 2))
        for turn in range(TURNS + 1):
            for i, program in enumerate(programs):
                began = time.perf_counter()
                jax.block_until_ready(program(*given))
                seconds[turn, i] = time.perf_counter() - began
        plain, copy = np.median(seconds[1:], 0) / times * 1e6  # the first turn compiles
        name = f"{agents:3} x {samples:3} samples, {inputs}-{outputs}"
        print(f"{name:30} XLA's own {plain:8.1f} us   of a copy {copy:8.1f} us   {plain / copy:.2f} times")


if __name__ == "__main__":
    main()
