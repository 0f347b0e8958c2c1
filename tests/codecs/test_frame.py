"""The byte format: damage is noticed, lengths are exact, nothing crashes on noise."""

import tracemalloc
import zlib

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewjoule.codecs import codec, decode
from fewjoule.codecs.frame import (
    VERSION,
    bits_of,
    frame,
    frame_bytes,
    pack_bits,
    packed_bytes,
    read_varint,
    unpack_bits,
    values_of,
    varint,
)
from fewjoule.errors import InputError

SPECS = ("float32", "float16", "quantise:3", "lloyd-max:2", "top-k:0.2:2", "top-k:0.2:1", "uniform:4")
VECTOR = np.random.default_rng(0).standard_normal(150).astype(np.float32)
MESSAGES = {spec: codec(spec).encode(VECTOR, jax.random.key(1)) for spec in SPECS}


def resealed(message):
    """The same content with a fitting checksum, as from a sender that is wrong rather than a noisy link."""
    return message + zlib.crc32(message).to_bytes(4, "little")


@settings(max_examples=300, deadline=None)
@given(spec=st.sampled_from(SPECS), at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_any_damaged_byte_raises(spec, at, flip):
    message = bytearray(MESSAGES[spec])
    message[at % len(message)] ^= flip
    with pytest.raises(InputError, match="receive it again"):
        decode(bytes(message), 150)


@pytest.mark.parametrize("spec", SPECS)
def test_every_truncation_and_extension_raises(spec):
    for length in range(len(MESSAGES[spec])):
        with pytest.raises(InputError):
            decode(MESSAGES[spec][:length], 150)
    with pytest.raises(InputError):
        decode(MESSAGES[spec] + b"\0", 150)


@settings(max_examples=400, deadline=None)
@given(noise=st.binary(max_size=200))
def test_noise_raises(noise):
    with pytest.raises(InputError):
        decode(noise, 150)


@settings(max_examples=400, deadline=None)
@given(spec=st.sampled_from(SPECS), data=st.data())
def test_a_wrong_sender_with_a_right_checksum_never_crashes(spec, data):
    """Content that is changed before it is sealed decodes to finite numbers of the stated length, or raises."""
    content = bytearray(MESSAGES[spec][:-4])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    for candidate in (bytes(content), bytes(content[:cut])):
        try:
            out = decode(resealed(candidate), 150)
        except InputError:
            continue
        assert out.dtype == np.float32
        assert out.shape == (150,)
        assert np.isfinite(out).all()


def test_a_scale_whose_levels_overflow_is_refused():
    content = bytearray(MESSAGES["quantise:3"][:-4])
    content[5] = 126
    for read in (decode, codec("quantise:3").decode):
        with pytest.raises(InputError, match="NaN or infinity"):
            read(resealed(bytes(content)), 150)


def test_trial_19_a_few_bytes_cannot_ask_for_gigabytes():
    """A sparse message without positions may claim 2**31 - 1 weights: 8.6 GB where the claim is believed."""
    message = frame(4, 2**31 - 1, bytes([1, 0, 0, 0, 0]))
    assert len(message) == 15
    tracemalloc.start()
    try:
        for read in (decode, codec("top-k:0.2").decode):
            with pytest.raises(InputError, match="must have 150 weights, got 2147483647"):
                read(message, 150)
            with pytest.raises(TypeError, match="size"):  # nobody can leave out how much they expect
                read(message)
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


def test_both_ends_must_agree():
    with pytest.raises(InputError, match="must have 151 weights, got 150"):
        decode(MESSAGES["quantise:3"], 151)
    with pytest.raises(InputError, match="must have 151 weights"):
        codec("quantise:3").decode(MESSAGES["quantise:3"], 151)
    with pytest.raises(InputError, match="both ends must agree"):
        codec("quantise:3").decode(MESSAGES["float32"], 150)
    with pytest.raises(InputError, match="format version 2"):
        decode(resealed(bytes([2 << 4]) + MESSAGES["float32"][1:-4]), 150)
    with pytest.raises(InputError, match="unknown kind 15"):
        decode(frame(15, 3, b"abc"), 3)
    assert MESSAGES["float32"][0] >> 4 == VERSION


@given(value=st.integers(0, 2**31 - 1))
def test_varints(value):
    assert len(varint(value)) == max(1, -(-value.bit_length() // 7))
    assert read_varint(varint(value) + b"rest", 0, "number") == (value, len(varint(value)))
    assert len(frame(0, max(value, 1), b"")) == frame_bytes(max(value, 1))


@pytest.mark.parametrize("bad", [b"", b"\x80", b"\xff\xff\xff\xff\xff", b"\x80\x00", b"\xff\xff\xff\xff\x7f"])
def test_bad_varints(bad):
    with pytest.raises(InputError):
        read_varint(bad, 0, "number")


@given(width=st.integers(1, 8), data=st.data())
def test_packing_is_the_plain_bit_stream(width, data):
    values = np.array(data.draw(st.lists(st.integers(0, 2**width - 1), max_size=50)), np.int64)
    packed = pack_bits(values, width)
    assert len(packed) == packed_bytes(len(values), width)
    text = "".join(f"{v:0{width}b}"[::-1] for v in values)
    text += "0" * (-len(text) % 8)
    assert packed == bytes(int(text[i : i + 8][::-1], 2) for i in range(0, len(text), 8))
    np.testing.assert_array_equal(unpack_bits(packed, len(values), width), values)
    np.testing.assert_array_equal(values_of(bits_of(values, width), width), values)
