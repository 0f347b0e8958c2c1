"""Stochastic uniform quantisation, as in Q-GADMM (Elgabli et al. 2020, "Q-GADMM: Quantized Group ADMM for Communication
Efficient Decentralized Machine Learning") and QSGD (Alistarh et al. 2017).

2**b levels lie evenly from -R to R, with R the vector's largest magnitude (rounded up to 8 significant bits):

    level_c = s (2c - L),  c = 0 ... L,  L = 2**b - 1,  s = R / L
    c = floor(t) + 1 with probability t - floor(t), else floor(t),  t = (v / s + L) / 2

so that the mean of what is decoded is v and no weight is off by as much as one spacing, 2 s.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.codecs.codec import Codec, clean, coarse, coarse_bytes, read_coarse
from fewjoule.codecs.frame import need_length, pack_bits, packed_bytes, unpack_bits
from fewjoule.errors import InputError

BITS = range(1, 9)


class Quantised(NamedTuple):
    scale: Array  # s
    codes: Array  # [d] int32, c


@dataclass(frozen=True)
class Quantise(Codec):
    """`bits` (1 to 8) a weight, unbiased; the error of each weight is below 2.02 R / (2**bits - 1)."""

    bits: int
    name = "quantise"
    written = f"quantise:BITS with {BITS[0]} to {BITS[-1]} bits"
    kind = 2
    unbiased = random = True

    def in_range(self) -> bool:
        return self.bits in BITS

    def pack(self, vector: Array, key: Array) -> Quantised:
        last = 2**self.bits - 1
        vector, top = clean(vector)
        scale = coarse(top / last, up=True)
        # the division may have rounded down to exactly such a number
        scale = jnp.where(scale * last < top, coarse(jnp.nextafter(scale, jnp.inf), up=True), scale)
        t = (vector / jnp.where(scale > 0, scale, 1) + last) * 0.5
        low = jnp.floor(t)
        up = jax.random.uniform(key, vector.shape) < t - low
        codes = jnp.clip(low.astype(jnp.int32) + up, 0, last)
        return Quantised(scale, codes)

    def unpack(self, packed: Quantised, size: int) -> Array:
        return (2 * packed.codes - (2**self.bits - 1)).astype(jnp.float32) * packed.scale

    def most_body_bytes(self, size: int) -> int:
        return 1 + 2 + packed_bytes(size, self.bits)

    def body(self, packed: Any, size: int) -> bytes:
        return bytes([self.bits]) + coarse_bytes(packed.scale) + pack_bits(packed.codes, self.bits)

    @classmethod
    def read(cls, body: bytes, size: int) -> np.ndarray[Any, Any]:
        if len(body) < 3 or body[0] not in BITS:
            raise InputError("coded message has a bad number of bits; receive it again.")
        bits = body[0]
        need_length(body, cls(bits).most_body_bytes(size))
        table = (2 * np.arange(2**bits) - (2**bits - 1)).astype(np.float32) * read_coarse(body[1:3])[0]
        return table[unpack_bits(body[3:], size, bits)]
