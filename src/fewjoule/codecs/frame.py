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


def read_frame(data: bytes, wanted: int) -> tuple[int, bytes]:
    """Kind of codec and body of a checked message of `wanted` weights."""
    data = bytes(data)
    if len(data) < 6:
        raise InputError(f"coded message must have at least 6 bytes, got {len(data)}; receive it again.")
    if zlib.crc32(memoryview(data)[:-4]) != int.from_bytes(data[-4:], "little"):
        raise InputError("coded message does not match its checksum; it is damaged or cut short, receive it again.")
    if data[0] >> 4 != VERSION:
        raise InputError(f"coded message has format version {data[0] >> 4}, this package reads {VERSION}; upgrade.")
    size, at = read_varint(data[:-4], 1, "number of weights")
    if size != wanted:
        raise InputError(f"coded message must have {wanted} weights, got {size}; both ends must agree on the model.")
    return data[0] & 15, data[at:-4]


def need_length(body: bytes, wanted: int) -> None:
    if len(body) != wanted:
        raise InputError(f"coded message must have a body of {wanted} bytes, got {len(body)}; receive it again.")


def packed_bytes(count: int, width: int) -> int:
    return -(-count * width // 8)


def pack_bits(values: Integers, width: int) -> bytes:
    """`values` (below 2**width) as width bits each, lowest first."""
    return np.packbits(bits_of(values, width), bitorder="little").tobytes()


def unpack_bits(data: bytes, count: int, width: int) -> Integers:
    """`count` values of `width` bits; the padding behind them must be zero."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if bits[count * width :].any():
        raise InputError("coded message has padding that is not zero; receive it again.")
    return values_of(bits[: count * width], width)


def bits_of(values: Integers, width: int) -> Bytes:
    """One byte per bit, lowest first, value after value (below 2**32)."""
    octets = values.astype("<u4").view(np.uint8).reshape(-1, 4)
    return np.unpackbits(octets, axis=1, count=width, bitorder="little").reshape(-1)


def values_of(bits: Bytes, width: int) -> Integers:
    """The inverse of `bits_of`."""
    return np.asarray(sum(bits[i::width].astype(np.uint32) << i for i in range(width)))
