"""The bytes around every coded message, and the bit packing inside: plain NumPy, no loop over weights.

    1 byte    format version (high four bits) and kind of codec (low four bits)
    1-5 bytes number of weights, LEB128
    ...       body, of the codec
    4 bytes   CRC-32 of all of the above, little-endian

Anything that does not fit raises `InputError`: a wrong checksum, a length that is not exactly the one the header
implies, a value out of its range, padding that is not zero.
"""

import zlib
from typing import Any

import numpy as np

from fewjoule.errors import InputError

VERSION = 1
LARGEST_SIZE = 2**31 - 1
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Integers = np.ndarray[Any, Any]


def varint(value: int) -> bytes:
    """LEB128: seven bits a byte, lowest first, the high bit set on all but the last."""
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_varint(data: bytes, at: int, what: str) -> tuple[int, int]:
    """The value and the position behind it."""
    value = 0
    for i in range(5):
        if at + i >= len(data):
            raise InputError(f"coded message ends inside its {what}; it was cut short, receive it again.")
        byte = data[at + i]
        value |= (byte & 127) << 7 * i
        if byte < 128:
            if value > LARGEST_SIZE or (i and byte == 0):
                break
            return value, at + i + 1
    raise InputError(f"coded message has a bad {what}; it is damaged, receive it again.")


def frame(kind: int, size: int, body: bytes) -> bytes:
    head = bytes([VERSION << 4 | kind]) + varint(size)
    check = zlib.crc32(body, zlib.crc32(head))
    return b"".join((head, body, check.to_bytes(4, "little")))


def frame_bytes(size: int) -> int:
    """Bytes of a frame without its body."""
    return 1 + len(varint(size)) + 4


def read_frame(data: bytes, wanted: int | None = None) -> tuple[int, int, bytes]:
    """Kind of codec, number of weights and body of a checked message; `wanted` is the number of weights to expect."""
    data = bytes(data)
    if len(data) < 6:
        raise InputError(f"coded message must have at least 6 bytes, got {len(data)}; receive it again.")
    if zlib.crc32(memoryview(data)[:-4]) != int.from_bytes(data[-4:], "little"):
        raise InputError("coded message does not match its checksum; it is damaged or cut short, receive it again.")
    if data[0] >> 4 != VERSION:
        raise InputError(f"coded message has format version {data[0] >> 4}, this package reads {VERSION}; upgrade.")
    size, at = read_varint(data[:-4], 1, "number of weights")
    if size < 1:
        raise InputError("coded message has no weights; receive it again.")
    if wanted is not None and size != wanted:
        raise InputError(f"coded message must have {wanted} weights, got {size}; both ends must agree on the model.")
    return data[0] & 15, size, data[at:-4]


def need_length(body: bytes, wanted: int) -> None:
    if len(body) != wanted:
        raise InputError(f"coded message must have a body of {wanted} bytes, got {len(body)}; receive it again.")


def packed_bytes(count: int, width: int) -> int:
    return -(-count * width // 8)


def pack_bits(values: Integers, width: int) -> bytes:
    """`values` (below 2**width, width 1 to 8) as width bits each, lowest first.

    Eight values make `width` whole bytes, so that one 64-bit word per eight values does the shifting.
    """
    groups = -(-len(values) // 8)
    padded = np.zeros((groups, 8), np.uint64)
    padded.reshape(-1)[: len(values)] = values
    words = padded[:, 0]
    for i in range(1, 8):
        words |= padded[:, i] << np.uint64(i * width)
    out = words.astype("<u8").view(np.uint8).reshape(groups, 8)[:, :width]
    return out.tobytes()[: packed_bytes(len(values), width)]


def unpack_bits(data: bytes, count: int, width: int) -> Integers:
    """`count` values of `width` bits; the padding behind them must be zero."""
    groups = -(-count // 8)
    padded = np.zeros((groups, 8), np.uint8)
    short = np.zeros(groups * width, np.uint8)
    short[: len(data)] = np.frombuffer(data, np.uint8)
    padded[:, :width] = short.reshape(groups, width)
    words = padded.view("<u8")[:, 0]
    out = np.empty((groups, 8), np.uint8)
    mask = np.uint64(2**width - 1)
    for i in range(8):
        out[:, i] = (words >> np.uint64(i * width)) & mask
    flat = out.reshape(-1)
    if flat[count:].any():
        raise InputError("coded message has padding that is not zero; receive it again.")
    return flat[:count]


def bits_of(values: Integers, width: int) -> Bytes:
    """One byte per bit, lowest first, value after value."""
    return ((values[:, None] >> np.arange(width, dtype=values.dtype)) & 1).astype(np.uint8).reshape(-1)


def values_of(bits: Bytes, width: int) -> Integers:
    """The inverse of `bits_of`."""
    return (bits.reshape(-1, width).astype(np.int64) << np.arange(width)).sum(1)
