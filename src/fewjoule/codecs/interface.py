"""What every codec offers: a vector to few bits and back, the same in the simulator and between real machines.

    pack(vector, key)      JAX: whole numbers and a few scales, all that is sent            simulator and device
    unpack(packed, size)   JAX: the vector that the receiver decodes                        simulator
    size_bytes(...)        JAX: the exact length of `to_bytes`, frame included              simulator
    to_bytes(packed, ...)  NumPy: the message                                               device
    decode(data)           NumPy: the vector again                                          server

`unpack(pack(v))` equals `decode(encode(v))` bit for bit, in whatever program XLA fuses it into: scales and levels have
8 significant bits (bfloat16) and factors at most 16, so that products are exact with or without fused multiply-add.
Sums that decide about a scale are taken in a fixed order (`tree_sum`).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.codecs.frame import LARGEST_SIZE, frame, read_frame
from fewjoule.errors import InputError

LARGEST = 2.0**126
"""Larger magnitudes belong to a run that diverged: `encode` refuses them, `unpack` gives NaN."""
SMALLEST = 2.0**-100
"""Lossy codecs send smaller magnitudes as 0, and so those below 2**-60 of the vector's largest."""


@dataclass(frozen=True)
class Codec(ABC):
    """A way to send a vector. Equal settings make equal codecs, and `spec` names them in study files."""

    kind: ClassVar[int]
    unbiased: ClassVar[bool] = False

    @property
    @abstractmethod
    def spec(self) -> str:
        """The codec in the words of a study file, such as `quantise:3`."""

    @abstractmethod
    def pack(self, vector: Array, key: Array) -> Any:
        """What is sent, as arrays of fixed shape. The key is used by stochastic rounding only."""

    @abstractmethod
    def unpack(self, packed: Any, size: int) -> Array:
        """The vector [size] that the receiver decodes."""

    @abstractmethod
    def size_bytes(self, packed: Any, size: int) -> Array:
        """Length of the message in bytes, frame included; int32."""

    @abstractmethod
    def most_bytes(self, size: int) -> int:
        """The length that no message of `size` weights exceeds, frame included."""

    @abstractmethod
    def body(self, packed: Any, size: int) -> bytes:
        """The codec's part of the message."""

    @classmethod
    @abstractmethod
    def read(cls, body: bytes, size: int) -> np.ndarray[Any, Any]:
        """The vector from a body, or `InputError`."""

    def to_bytes(self, packed: Any, size: int) -> bytes:
        """The message of what `pack` gave."""
        return frame(self.kind, size, self.body(jax.tree.map(np.asarray, packed), size))

    def encode(self, vector: Any, key: Array | None = None) -> bytes:
        """The message of a vector. A stochastic codec needs a key of `jax.random.key`."""
        v = np.asarray(vector)
        if v.ndim != 1 or not 1 <= len(v) <= LARGEST_SIZE or v.dtype.kind != "f":
            raise InputError(f"a codec sends one vector of real numbers, got {v.dtype} of shape {list(v.shape)}.")
        v = v.astype(np.float32)
        if not (np.abs(v) <= LARGEST).all():
            raise InputError(f"a codec sends finite numbers up to {LARGEST:.2g}, got larger or NaN; the run diverged.")
        if key is None:
            if self.unbiased and self.kind > 1:
                raise InputError(f"{self.spec} rounds at random; give encode(vector, jax.random.key(seed)).")
            key = jax.random.key(0)
        return self.to_bytes(_pack(self, v, key), len(v))

    def decode(self, data: bytes, size: int | None = None) -> np.ndarray[Any, Any]:
        """The vector of a message of this codec; `size` is the number of weights to expect."""
        kind, count, body = read_frame(data)
        if kind != self.kind:
            raise InputError(f"coded message has kind {kind}, {self.spec} is kind {self.kind}; both ends must agree.")
        if size is not None and count != size:
            raise InputError(f"coded message must have {size} weights, got {count}; both ends must agree on the model.")
        return self.read(body, count)

    def apply(self, vector: Array, key: Array) -> tuple[Array, Any, Array]:
        """What the receiver decodes, what is sent, and its length in bytes."""
        packed = self.pack(vector, key)
        return self.unpack(packed, vector.size), packed, self.size_bytes(packed, vector.size)


@partial(jax.jit, static_argnums=0)
def _pack(codec: Codec, vector: Array, key: Array) -> Any:
    return codec.pack(vector, key)


def clean(vector: Array) -> tuple[Array, Array]:
    """The vector with its negligible magnitudes set to 0, and its largest magnitude: NaN where it cannot be sent."""
    magnitude = jnp.abs(vector)
    top = magnitude.max()
    top = jnp.where(top <= LARGEST, top, jnp.nan)
    return jnp.where(magnitude < jnp.maximum(SMALLEST, top * 2.0**-60), 0, vector), jnp.where(top < SMALLEST, 0, top)


def coarse(x: Array, up: bool = False) -> Array:
    """Positive numbers to 8 significant bits (bfloat16), to the nearest or upwards."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    bits = bits + (jnp.uint32(0xFFFF) if up else jnp.uint32(0x7FFF) + (bits >> 16 & 1))
    rounded = jax.lax.bitcast_convert_type(bits & jnp.uint32(0xFFFF0000), jnp.float32)
    return jnp.where(jnp.isnan(x), x, rounded)


def coarse_bytes(values: np.ndarray[Any, Any]) -> bytes:
    """Two bytes for each number of 8 significant bits."""
    return (np.atleast_1d(values).astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()


def read_coarse(data: bytes) -> np.ndarray[Any, Any]:
    values = (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    if not ((values >= 0) & (values <= 2 * LARGEST)).all():
        raise InputError("coded message has a scale that is negative or not finite; receive it again.")
    return values


def tree_sum(x: Array) -> Array:
    """The sum over the last axis in an order that no program can change: halves are added, again and again."""
    length = 1 << max(x.shape[-1] - 1, 0).bit_length()
    x = jnp.concatenate([x, jnp.zeros((*x.shape[:-1], length - x.shape[-1]), x.dtype)], -1)
    while length > 1:
        length //= 2
        x = x[..., :length] + x[..., length:]
    return x[..., 0]
