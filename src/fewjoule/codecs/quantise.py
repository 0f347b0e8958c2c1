"""Stochastic uniform quantisation, as in Q-GADMM (Elgabli et al. 2020, "Q-GADMM: Quantized Group ADMM for Communication
Efficient Decentralized Machine Learning") and QSGD (Alistarh et al. 2017).

2**b levels lie evenly from -R to R, with R the vector's largest magnitude (rounded up to 8 significant bits):

    level_c = s (2c - L),  c = 0 ... L,  L = 2**b - 1,  s = R / L
    c = floor(t) + 1 with probability t - floor(t), else floor(t),  t = (v / s + L) / 2

so that the mean of what is decoded is v and no weight is off by as much as one spacing, 2 s.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.codecs.frame import frame_bytes, need_length, pack_bits, packed_bytes, unpack_bits
from fewjoule.codecs.interface import Codec, clean, coarse, coarse_bytes, read_coarse
from fewjoule.errors import InputError

HEAD_BYTES = 3


class Quantised(NamedTuple):
    scale: Array  # s
    codes: Array  # [d] int32, c


@dataclass(frozen=True)
class Quantise(Codec):
    """`bits` (1 to 8) a weight, unbiased; the error of each weight is below 2.02 R / (2**bits - 1)."""

    bits: int
    kind: ClassVar[int] = 2
    unbiased: ClassVar[bool] = True

    @property
    def spec(self) -> str:
        return f"quantise:{self.bits}"

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

    def size_bytes(self, packed: Any, size: int) -> Array:
        return jnp.asarray(self.most_bytes(size), jnp.int32)

    def most_bytes(self, size: int) -> int:
        return frame_bytes(size) + HEAD_BYTES + packed_bytes(size, self.bits)

    def body(self, packed: Any, size: int) -> bytes:
        return bytes([self.bits]) + coarse_bytes(packed.scale) + pack_bits(packed.codes, self.bits)

    @classmethod
    def read(cls, body: bytes, size: int) -> np.ndarray[Any, Any]:
        if len(body) < HEAD_BYTES or not 1 <= body[0] <= 8:
            raise InputError("coded message has a bad number of bits; receive it again.")
        bits = body[0]
        need_length(body, HEAD_BYTES + packed_bytes(size, bits))
        scale = read_coarse(body[1:3])[0]
        codes = unpack_bits(body[3:], size, bits)
        table = (2 * np.arange(2**bits) - (2**bits - 1)).astype(np.float32) * scale
        return table[codes]
