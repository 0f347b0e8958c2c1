"""Uniform quantisation over a vector's own range, rounded to the nearest level: for values that are sent once.

2**b levels lie evenly where the values are, not around 0, so that a temperature of 20 to 25 degrees loses nothing:

    level_c = (k + c) s,  c = 0 ... L,  L = 2**b - 1,  s >= (high - low) / L
    k = floor((low + high) / 2 s) - floor(L / 2),   c = round(v / s) - k

No value is off by more than s / 2. `s` has 8 significant bits and `k` is a whole number of at most 14, so that the
product is exact on every machine.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.codecs.codec import Codec, clean, coarse, coarse_bytes, read_coarse
from fewjoule.codecs.frame import need_length, pack_bits, packed_bytes, read_varint, unpack_bits, varint
from fewjoule.errors import InputError

BITS = range(1, 9)
FARTHEST = 8191
"""The largest k: values that are all alike and far from 0 get a spacing of a 4000th of themselves."""


class Ranged(NamedTuple):
    spacing: Array  # s
    offset: Array  # k, int32
    codes: Array  # [d] int32, c


@dataclass(frozen=True)
class Uniform(Codec):
    """`bits` (1 to 8) a value and 3 or 4 bytes for the range; the error is at most 0.504 (high - low) / (2**bits - 1),
    or a 15 000th of the largest magnitude where that is more."""

    bits: int
    name = "uniform"
    written = f"uniform:BITS with {BITS[0]} to {BITS[-1]} bits"
    kind = 5

    def in_range(self) -> bool:
        return self.bits in BITS

    def pack(self, vector: Array, key: Array) -> Ranged:
        last = 2**self.bits - 1
        vector, top = clean(vector)
        low, high = vector.min(), vector.max()
        spacing = jnp.maximum((high - low) / last, top / (FARTHEST - 2**8))
        spacing = jnp.where(jnp.isnan(top), jnp.nan, coarse(spacing, up=True))
        # the division may have rounded down to exactly such a number
        spacing = jnp.where(spacing * last < high - low, coarse(jnp.nextafter(spacing, jnp.inf), up=True), spacing)
        unit = jnp.where(spacing > 0, spacing, 1)
        # A power of two brings the spacing to 2 ... 4 exactly, so that no reciprocal is flushed to 0.
        scale = jax.lax.bitcast_convert_type(
            jnp.uint32(255 << 23) - (jax.lax.bitcast_convert_type(unit, jnp.uint32) & 0x7F800000), jnp.float32
        )
        inverse = 1 / (unit * scale)
        middle = (low * 0.5 + high * 0.5) * scale * inverse
        offset = jnp.where(spacing > 0, jnp.floor(middle).astype(jnp.int32) - last // 2, 0)
        codes = jnp.clip(jnp.round(vector * scale * inverse).astype(jnp.int32) - offset, 0, last)
        return Ranged(spacing, offset, codes)

    def unpack(self, packed: Ranged, size: int) -> Array:
        return (packed.offset + packed.codes).astype(jnp.float32) * packed.spacing

    def size_bytes(self, packed: Ranged, size: int) -> Array:
        short = (packed.offset >= -64) & (packed.offset < 64)  # one byte of LEB128
        return self.most_bytes(size) - short.astype(jnp.int32)

    def most_body_bytes(self, size: int) -> int:
        return 1 + 2 + len(varint(_zigzag(FARTHEST))) + packed_bytes(size, self.bits)

    def body(self, packed: Any, size: int) -> bytes:
        head = bytes([self.bits]) + coarse_bytes(packed.spacing) + varint(_zigzag(int(packed.offset)))
        return head + pack_bits(packed.codes, self.bits)

    @classmethod
    def read(cls, body: bytes, size: int) -> np.ndarray[Any, Any]:
        if len(body) < 4 or body[0] not in BITS:
            raise InputError("coded message has a bad number of bits; receive it again.")
        bits, spacing = body[0], read_coarse(body[1:3])[0]
        zigzag, at = read_varint(body, 3, "offset")
        if zigzag > _zigzag(-FARTHEST):
            raise InputError("coded message has an offset that is out of range; receive it again.")
        need_length(body, at + packed_bytes(size, bits))
        offset = zigzag >> 1 if zigzag % 2 == 0 else -(zigzag + 1 >> 1)
        return (offset + unpack_bits(body[at:], size, bits).astype(np.int32)).astype(np.float32) * spacing


def _zigzag(offset: int) -> int:
    """0, -1, 1, -2, ... as 0, 1, 2, 3, ...: small magnitudes are short."""
    return 2 * abs(offset) - (offset < 0)
