"""Codecs that send a sign and one of a few magnitudes, the magnitudes fitted to the vector and sent along.

    lloyd-max   every weight: the levels of least squared error (Lloyd 1982; Max 1960), 2**(b-1) magnitudes
    top-k       the k largest magnitudes only, with their positions; the rest is 0. One magnitude (b = 1) is the sparse
                ternary compression of Sattler et al. 2019, "Robust and Communication-Efficient Federated Learning from
                Non-IID Data"

Positions are sent as gaps in a Golomb-Rice code: g >> m in unary, then the m low bits of g, with the m that makes the
message shortest. Its length has a closed form, sum_i (g_i >> m) + k (1 + m), so the simulator knows it exactly.

Both are biased (they shrink the error, not the mean) and never make the squared error larger than that of sending
nothing: sum (v - decoded)² <= sum v². Over rounds, use them with error feedback.
"""

from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.codecs import frame
from fewjoule.codecs.codec import Codec, clean, coarse, coarse_bytes, read_coarse, tree_sum
from fewjoule.errors import InputError

BITS = range(1, 7)
LLOYD_ROUNDS = 12
SAMPLE = 8192  # weights that the levels are fitted to before one pass over all of them
RICE_PARAMETERS = 24


class Signed(NamedTuple):
    """Signs and magnitudes: `codes` are 2 * (position in levels) + (1 where negative)."""

    levels: Array  # [2**(bits - 1)] rising
    codes: Array  # [d] int32


class Sparse(NamedTuple):
    """As `Signed`, for the `number` weights at rising `positions`; behind them both arrays are padding."""

    levels: Array
    codes: Array  # [k] int32
    positions: Array  # [k] int32
    number: Array  # of weights sent
    rice: Array  # m
    stream_bits: Array  # of gaps and codes


@dataclass(frozen=True)
class LloydMax(Codec):
    """`bits` (1 to 6) a weight and 2 bytes for each of the 2**(bits - 1) magnitudes."""

    bits: int
    name = "lloyd-max"
    written = f"lloyd-max:BITS with {BITS[0]} to {BITS[-1]} bits"
    kind = 3

    def in_range(self) -> bool:
        return self.bits in BITS

    def pack(self, vector: Array, key: Array) -> Signed:
        vector, top = clean(vector)
        levels, codes = fit(jnp.abs(vector), jnp.ones(vector.shape, bool), top, 2 ** (self.bits - 1))
        return Signed(levels, 2 * codes + (vector < 0))

    def unpack(self, packed: Signed, size: int) -> Array:
        return _signed(packed.levels, packed.codes)

    def most_body_bytes(self, size: int) -> int:
        return 1 + 2**self.bits + frame.packed_bytes(size, self.bits)

    def body(self, packed: Any, size: int) -> bytes:
        return bytes([self.bits]) + coarse_bytes(packed.levels) + frame.pack_bits(packed.codes, self.bits)

    @classmethod
    def read(cls, body: bytes, size: int) -> np.ndarray[Any, Any]:
        if not body or body[0] not in BITS:
            raise InputError("coded message has a bad number of bits; receive it again.")
        bits, at = body[0], 1 + 2 ** body[0]
        frame.need_length(body, cls(bits).most_body_bytes(size))
        return _table(read_coarse(body[1:at]))[frame.unpack_bits(body[at:], size, bits)]


@dataclass(frozen=True)
class TopK(Codec):
    """The share of the weights with the largest magnitudes, `bits` (1 to 6) each beside their positions."""

    share: float
    bits: int = 1
    name = "top-k"
    written = f"top-k:SHARE:BITS with a share above 0 and at most 1, and {BITS[0]} to {BITS[-1]} bits"
    kind = 4

    def in_range(self) -> bool:
        return 0 < self.share <= 1 and self.bits in BITS

    def kept(self, size: int) -> int:
        """Number of weights sent, of `size`; fewer where fewer are not 0."""
        return min(size, max(1, round(self.share * size)))

    def pack(self, vector: Array, key: Array) -> Sparse:
        size, k = vector.size, self.kept(vector.size)
        vector, top = clean(vector)
        positions = largest(jnp.abs(vector), k)
        valid = positions < size
        values = jnp.where(valid, vector[jnp.minimum(positions, size - 1)], 0)
        levels, codes = fit(jnp.abs(values), valid, top, 2 ** (self.bits - 1))
        codes = jnp.where(valid, 2 * codes + (values < 0), 0)
        gaps = jnp.where(valid, jnp.diff(positions, prepend=-1) - 1, 0)
        count = valid.sum(dtype=jnp.int32)
        parameters = jnp.arange(RICE_PARAMETERS)
        lengths = jax.vmap(lambda m: (gaps >> m).sum())(parameters) + count * (1 + parameters)
        best = lengths.argmin().astype(jnp.int32)
        return Sparse(levels, codes, positions, count, best, lengths.min() + count * self.bits)

    def unpack(self, packed: Sparse, size: int) -> Array:
        values = _signed(packed.levels, packed.codes)
        empty = jnp.zeros(size) + jnp.where(jnp.isnan(packed.levels[0]), jnp.nan, 0)
        return empty.at[packed.positions].set(values, mode="drop")

    def size_bytes(self, packed: Sparse, size: int) -> Array:
        count = 1 + sum((packed.number >= 1 << 7 * i).astype(jnp.int32) for i in range(1, 5))
        fixed = frame.frame_bytes(size) + 2 + 2**self.bits
        return fixed + count + (packed.stream_bits.astype(jnp.int32) + 7) // 8

    def most_body_bytes(self, size: int) -> int:
        # The gaps add up to at most size - k, so their unary parts to at most (size - k) >> m.
        k = self.kept(size)
        stream = min(k * (1 + m + self.bits) + ((size - k) >> m) for m in range(RICE_PARAMETERS))
        return 2 + 2**self.bits + len(frame.varint(k)) + frame.packed_bytes(stream, 1)

    def body(self, packed: Any, size: int) -> bytes:
        count, m = int(packed.number), int(packed.rice)
        gaps = np.diff(packed.positions[:count].astype(np.int64), prepend=-1) - 1
        unary = np.zeros(int((gaps >> m).sum()) + count, np.uint8)
        unary[np.cumsum((gaps >> m) + 1) - 1] = 1
        stream = np.concatenate([unary, frame.bits_of(gaps, m), frame.bits_of(packed.codes[:count], self.bits)])
        head = bytes([self.bits, m]) + frame.varint(count) + coarse_bytes(packed.levels)
        return head + np.packbits(stream, bitorder="little").tobytes()

    @classmethod
    def read(cls, body: bytes, size: int) -> np.ndarray[Any, Any]:
        if len(body) < 2 or body[0] not in BITS or body[1] >= RICE_PARAMETERS:
            raise InputError("coded message has a bad number of bits; receive it again.")
        bits, m = body[0], body[1]
        count, at = frame.read_varint(body, 2, "number of positions")
        table, at = body[at : at + 2**bits], at + 2**bits
        if count > size or len(body) < at:
            raise InputError("coded message has more positions than weights or ends early; receive it again.")
        stream = np.unpackbits(np.frombuffer(body[at:], np.uint8), bitorder="little")
        ends = np.flatnonzero(stream)[:count]
        used = (int(ends[-1]) + 1 if count else 0) + count * (m + bits) if len(ends) == count else -1
        if used < 0 or frame.packed_bytes(used, 1) != len(body) - at or stream[used:].any():
            raise InputError("coded message has positions that do not fit its length; receive it again.")
        first = used - count * (m + bits)
        low = frame.values_of(stream[first : first + count * m], m) if m else np.zeros(count, np.int64)
        gaps = ((np.diff(ends, prepend=-1) - 1) << m) + low
        positions = np.cumsum(gaps + 1) - 1
        if count and positions[-1] >= size:
            raise InputError("coded message has a position beyond its weights; receive it again.")
        out = np.zeros(size, np.float32)
        out[positions] = _table(read_coarse(table))[frame.values_of(stream[first + count * m : used], bits)]
        return out


def largest(magnitudes: Array, k: int) -> Array:
    """Rising positions of the k largest of a vector, equal ones by position, never one that is 0; padded by its size.

    The k-th largest is found bit by bit, by counting: for non-negative floats the order of the bits is the order of
    the numbers. The chosen are then looked up in words of 32 marks. Both are many times faster than sorting.
    """
    size, bits = magnitudes.size, jax.lax.bitcast_convert_type(magnitudes, jnp.uint32)

    def one(i: Array, at: Array) -> Array:
        higher = at | jnp.uint32(1) << (30 - i).astype(jnp.uint32)
        return jnp.where((bits >= higher).sum() >= k, higher, at)

    bound = jax.lax.fori_loop(0, 31, one, jnp.zeros((), jnp.uint32))
    above, equal = _words(bits > bound), _words((bits == bound) & (bits > 0))
    ties = _ones(equal)
    room = jnp.clip(k - _ones(above).sum() - (jnp.cumsum(ties) - ties), 0, ties)
    first = jnp.where(room < ties, (jnp.uint32(1) << _nth_one(equal, room)) - 1, equal) & equal
    chosen = above | first
    number = _ones(chosen)
    ends, i = jnp.cumsum(number), jnp.arange(k)
    word = jnp.minimum(jnp.searchsorted(ends, i, side="right"), len(ends) - 1)
    within = _nth_one(chosen[word], i - (ends - number)[word])
    return jnp.where(i < ends[-1], 32 * word + within.astype(jnp.int32), size).astype(jnp.int32)


def _words(marks: Array) -> Array:
    """Marks [d] as words of 32 bits, the first mark lowest."""
    rows = jnp.pad(marks, (0, -marks.size % 32)).reshape(-1, 32).astype(jnp.uint32)
    return (rows << jnp.arange(32, dtype=jnp.uint32)).sum(-1, dtype=jnp.uint32)


def _ones(words: Array) -> Array:
    return jax.lax.population_count(words).astype(jnp.int32)


def _nth_one(words: Array, n: Array) -> Array:
    """The position of each word's n-th set bit, n from 0 to the number of its set bits less 1."""
    at = jnp.zeros_like(words)
    for width in (16, 8, 4, 2, 1):
        low = _ones(words & jnp.uint32(2**width - 1))
        upper = n >= low
        at = at + jnp.where(upper, jnp.uint32(width), jnp.uint32(0))
        n = jnp.where(upper, n - low, n)
        words = jnp.where(upper, words >> width, words)
    return at


def fit(magnitudes: Array, valid: Array, top: Array, count: int) -> tuple[Array, Array]:
    """`count` levels near those of least squared error, and each magnitude's position among them.

    Lloyd's iteration on a sample, from quantiles that suit an exponential tail, then one pass over all weights, so that
    every level is the mean of what it stands for.
    """
    unit = jax.lax.bitcast_convert_type(jax.lax.bitcast_convert_type(top, jnp.uint32) & 0x7F800000, jnp.float32)
    unit = jnp.where(top > 0, unit, 1)  # a power of two: dividing by it is exact and keeps sums from overflowing
    scaled = magnitudes / unit
    stride = ceil(magnitudes.size / SAMPLE)
    sample, real = scaled[::stride], valid[::stride]
    shares = 1 - (1 - (np.arange(count) + 0.5) / count) ** 3
    drawn = real.sum()
    at = jnp.clip(jnp.floor(jnp.asarray(shares, jnp.float32) * drawn).astype(jnp.int32), 0, jnp.maximum(drawn - 1, 0))
    levels = jnp.sort(jnp.where(real, sample, jnp.inf))[at]
    levels = jnp.where(jnp.isfinite(levels), levels, 0)

    def codes(levels: Array, x: Array) -> Array:
        middles = (levels[1:] + levels[:-1]) * 0.5
        return (x[:, None] > middles).sum(-1, dtype=jnp.int32)

    def means(levels: Array, x: Array, real: Array) -> Array:
        mine = (codes(levels, x) == jnp.arange(count)[:, None]) & real
        number = mine.sum(-1)
        return jnp.where(number > 0, tree_sum(jnp.where(mine, x, 0)) / jnp.maximum(number, 1), levels)

    rounds = LLOYD_ROUNDS + (stride == 1)  # where the sample is all weights, the last pass is one more round
    levels = jax.lax.fori_loop(0, rounds, lambda _, levels: means(levels, sample, real), levels)
    levels = coarse(means(levels, scaled, valid) if stride > 1 else levels)
    return jnp.where(jnp.isnan(top), jnp.nan, levels * unit), codes(levels, scaled)


def _signed(levels: Array, codes: Array) -> Array:
    value = levels[codes >> 1]
    return jnp.where(codes & 1 == 1, -value, value)


def _table(levels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The decoded value of every code."""
    return np.stack([levels, -levels], 1).reshape(-1)
