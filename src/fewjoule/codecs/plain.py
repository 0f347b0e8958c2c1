"""Floating point on the air: float32 as it is, float16 rounded to nearest (IEEE 754 binary16, ties to even)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.codecs.frame import frame_bytes, need_length
from fewjoule.codecs.interface import Codec
from fewjoule.errors import InputError


@dataclass(frozen=True)
class Float32(Codec):
    """4 bytes a weight, exact."""

    kind: ClassVar[int] = 0
    unbiased: ClassVar[bool] = True

    @property
    def spec(self) -> str:
        return "float32"

    def pack(self, vector: Array, key: Array) -> Array:
        return vector

    def unpack(self, packed: Array, size: int) -> Array:
        return packed

    def size_bytes(self, packed: Any, size: int) -> Array:
        return jnp.asarray(self.most_bytes(size), jnp.int32)

    def most_bytes(self, size: int) -> int:
        return frame_bytes(size) + 4 * size

    def body(self, packed: Any, size: int) -> bytes:
        return np.asarray(packed, "<f4").tobytes()

    @classmethod
    def read(cls, body: bytes, size: int) -> np.ndarray[Any, Any]:
        need_length(body, 4 * size)
        return _finite(np.frombuffer(body, "<f4").astype(np.float32))


@dataclass(frozen=True)
class Float16(Codec):
    """2 bytes a weight: relative error at most 2**-11, absolute at most 2**-25 below 2**-14; held within ±65504."""

    kind: ClassVar[int] = 1

    @property
    def spec(self) -> str:
        return "float16"

    def pack(self, vector: Array, key: Array) -> Array:
        # By hand, not astype: XLA may drop a conversion to half precision and back.
        bits = jax.lax.bitcast_convert_type(vector, jnp.uint32)
        bits = bits + jnp.uint32(0xFFF) + (bits >> 13 & 1)
        normal = jax.lax.bitcast_convert_type(bits & jnp.uint32(0xFFFFE000), jnp.float32)
        small = jnp.round(vector * 2.0**24) * 2.0**-24
        rounded = jnp.where(jnp.abs(vector) < 2.0**-14, small, jnp.clip(normal, -65504, 65504))
        return jnp.where(jnp.isnan(vector), jnp.nan, rounded)

    def unpack(self, packed: Array, size: int) -> Array:
        return packed

    def size_bytes(self, packed: Any, size: int) -> Array:
        return jnp.asarray(self.most_bytes(size), jnp.int32)

    def most_bytes(self, size: int) -> int:
        return frame_bytes(size) + 2 * size

    def body(self, packed: Any, size: int) -> bytes:
        return np.asarray(packed).astype("<f2").tobytes()

    @classmethod
    def read(cls, body: bytes, size: int) -> np.ndarray[Any, Any]:
        need_length(body, 2 * size)
        return _finite(np.frombuffer(body, "<f2").astype(np.float32))


def _finite(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not np.isfinite(values).all():
        raise InputError("coded message has NaN or infinity; the sender's run diverged.")
    return values
