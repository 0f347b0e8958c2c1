"""What every codec offers: a vector to few bits and back, the same in the simulator and between real machines; and the
codecs that send floating point, float32 as it is and float16 rounded.

    pack(vector, key)      JAX: whole numbers and a few scales, all that is sent            simulator and device
    unpack(packed, size)   JAX: the vector that the receiver decodes                        simulator
    size_bytes(...)        JAX: the exact length of `to_bytes`, frame included              simulator
    to_bytes(packed, ...)  NumPy: the message                                               device
    decode(data, size)     NumPy: the vector again                                          server

`unpack(pack(v))` equals `decode(encode(v))` bit for bit, in whatever program XLA fuses it into: scales and levels have
8 significant bits (bfloat16) and factors at most 16, so that products are exact with or without fused multiply-add.
Sums that decide about a scale are taken in a fixed order (`tree_sum`).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.codecs.frame import LARGEST_SIZE, frame, frame_bytes, need_length, read_frame
from fewjoule.errors import InputError

LARGEST = 2.0**126
"""Larger magnitudes belong to a run that diverged: `encode` refuses them, `unpack` gives NaN."""
SMALLEST = 2.0**-100
"""Lossy codecs send smaller magnitudes as 0, and so those below 2**-60 of the vector's largest."""


@dataclass(frozen=True)
class Codec(ABC):
    """A way to send a vector. Equal settings make equal codecs, and `spec` names them in study files."""

    name: ClassVar[str]
    written: ClassVar[str]  # how a study file writes it
    kind: ClassVar[int]  # in the frame
    unbiased: ClassVar[bool] = False  # the mean of what is decoded is what was sent
    random: ClassVar[bool] = False  # rounds at random, so that `encode` needs a key

    @classmethod
    def from_spec(cls, spec: str) -> Self:
        """The codec from its name and its settings in the order of its fields, such as `top-k:0.1:2`."""
        parts = spec.split(":")[1:]
        try:
            known: Any = fields(cls)[: len(parts)]
            return cls(*(field.type(part) for field, part in zip(known, parts, strict=True)))
        except (TypeError, ValueError) as error:  # too few settings; too many, not numbers or out of range
            raise InputError(f"codec {spec!r} cannot be read; write {cls.written}.") from error

    def __post_init__(self) -> None:
        if not self.in_range():
            raise InputError(f"codec {self.spec!r} cannot be made; write {self.written}.")

    def in_range(self) -> bool:
        """Whether the settings are ones that it can send with."""
        return True

    @property
    def spec(self) -> str:
        """The codec in the words of a study file, such as `quantise:3`."""
        return ":".join([self.name, *(f"{getattr(self, field.name):g}" for field in fields(self))])

    @abstractmethod
    def pack(self, vector: Array, key: Array) -> Any:
        """What is sent, as arrays of fixed shape. The key is used by stochastic rounding only."""

    @abstractmethod
    def unpack(self, packed: Any, size: int) -> Array:
        """The vector [size] that the receiver decodes."""

    @abstractmethod
    def most_body_bytes(self, size: int) -> int:
        """The length that no body of `size` weights exceeds."""

    def most_bytes(self, size: int) -> int:
        """The length that no message of `size` weights exceeds, frame included."""
        return frame_bytes(size) + self.most_body_bytes(size)

    def size_bytes(self, packed: Any, size: int) -> Array:
        """Length of the message in bytes, frame included; int32. That of most codecs depends on the size alone."""
        return jnp.asarray(self.most_bytes(size), jnp.int32)

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
            if self.random:
                raise InputError(f"{self.spec} rounds at random; give encode(vector, jax.random.key(seed)).")
            key = jax.random.key(0)
        return self.to_bytes(_pack(self, v, key), len(v))

    def decode(self, data: bytes, size: int) -> np.ndarray[Any, Any]:
        """The vector of a message of this codec; `size` is the number of weights to expect."""
        kind, body = read_frame(data, size)
        if kind != self.kind:
            raise InputError(f"coded message has kind {kind}, {self.spec} is kind {self.kind}; both ends must agree.")
        return self.received(body, size)

    @classmethod
    def received(cls, body: bytes, size: int) -> np.ndarray[Any, Any]:
        """What `read` gives, all finite: a sender may choose a scale whose levels overflow."""
        with np.errstate(over="ignore"):
            values = cls.read(body, size)
        if not np.isfinite(values).all():
            raise InputError("coded message has NaN or infinity; the sender's run diverged.")
        return values

    @partial(jax.jit, static_argnums=0)  # a program has it up to seven times, and traces it once
    def apply(self, vector: Array, key: Array) -> tuple[Array, Any, Array]:
        """What the receiver decodes, what is sent, and its length in bytes."""
        packed = self.pack(vector, key)
        return self.unpack(packed, vector.size), packed, self.size_bytes(packed, vector.size)


@partial(jax.jit, static_argnums=0)
def _pack(codec: Codec, vector: Array, key: Array) -> Any:
    return codec.pack(vector, key)


class Float(Codec):
    """The numbers themselves, little-endian."""

    dtype: ClassVar[str]

    def unpack(self, packed: Array, size: int) -> Array:
        return packed

    def most_body_bytes(self, size: int) -> int:
        return size * np.dtype(self.dtype).itemsize

    def body(self, packed: Any, size: int) -> bytes:
        return np.asarray(packed).astype(self.dtype).tobytes()

    @classmethod
    def read(cls, body: bytes, size: int) -> np.ndarray[Any, Any]:
        need_length(body, cls().most_body_bytes(size))
        return np.frombuffer(body, cls.dtype).astype(np.float32)


@dataclass(frozen=True)
class Float32(Float):
    """4 bytes a weight, exact."""

    name = written = "float32"
    kind = 0
    unbiased = True
    dtype = "<f4"

    def pack(self, vector: Array, key: Array) -> Array:
        return vector


@dataclass(frozen=True)
class Float16(Float):
    """2 bytes a weight, rounded to nearest (IEEE 754 binary16, ties to even).

    Relative error at most 2**-11, absolute at most 2**-25 below 2**-14; held within ±65504.
    """

    name = written = "float16"
    kind = 1
    dtype = "<f2"

    def pack(self, vector: Array, key: Array) -> Array:
        # By hand, not astype: XLA may drop a conversion to half precision and back.
        bits = jax.lax.bitcast_convert_type(vector, jnp.uint32)
        bits = bits + jnp.uint32(0xFFF) + (bits >> 13 & 1)
        normal = jax.lax.bitcast_convert_type(bits & jnp.uint32(0xFFFFE000), jnp.float32)
        small = jnp.round(vector * 2.0**24) * 2.0**-24
        rounded = jnp.where(jnp.abs(vector) < 2.0**-14, small, jnp.clip(normal, -65504, 65504))
        return jnp.where(jnp.isnan(vector), jnp.nan, rounded)


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
