"""Every reader takes damaged inputs: it reads them or refuses them in one line, in little time and memory.

A short run of `bench/fuzz.py`; a long one is `python bench/fuzz.py --inputs 1000000`.
"""

import os
import sys
import time
import zlib
from random import Random

import numpy as np
import pytest

from bench.fuzz import fuzz
from bench.fuzz_readers import READERS, Reader, codec_messages, read_coded, vector_bytes
from fewjoule.errors import InputError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")

INPUTS = {"codecs": 1000, "messages": 600, "states": 500, "specs": 500, "results": 40, "contracts": 40}
OTHERS = 200


@pytest.fixture(scope="module")
def tallies():
    inputs = {name: INPUTS.get(name, OTHERS) for name in READERS}
    planted = {failure: reader._replace(name=failure) for failure, reader in PLANTED.items()}
    return fuzz(READERS | planted, inputs | dict.fromkeys(planted, 20), seed=1, jobs=1)


def failures(tally):
    return [f"{found.kind}: {found.what}" for found in tally.found.values()]


@pytest.mark.parametrize("name", READERS)
def test_reader(tallies, name):
    assert not failures(tallies[name])
    if name != "contracts":  # hardly a change to a spec leaves one that can be built
        assert tallies[name].outcomes["read"], "no damage was small enough: nothing behind the first check is tested"
    assert tallies[name].outcomes["refused"]


# Readers with a planted bug: every kind of failure must be found ------------------------------------------------------
def valid():
    return [b"7,abc", b"3,x"]


def hostile():
    return [b"999,x", b"seven,x"]


def number(data):
    return int(data.split(b",")[0])


def raises_another_error(data, folder):
    return number(data)


def speaks_two_lines(data, folder):
    try:
        return number(data)
    except ValueError:
        raise ValueError("a number must come first\nwrite it again.") from None


def takes_time(data, folder):
    end = time.process_time() + (1.1 if data == b"999,x" else 0)
    while time.process_time() < end:
        pass


def takes_memory_and_hides_it(data, folder):
    try:
        return np.zeros(10**12 if data == b"999,x" else 1)
    except MemoryError:
        raise InputError("too large; give less.") from None


def dies(data, folder):
    if data == b"999,x":
        os._exit(3)


def ignores_the_checksum(data, folder):
    return read_coded(data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "little"), folder)


PLANTED = {
    "wrong: ValueError at": Reader("", 1, valid, raises_another_error),
    "wrong: many lines, ValueError": Reader("", 1, valid, speaks_two_lines, refusal=ValueError),
    "slow: over 1 s": Reader("", 1, valid, takes_time, hostile=hostile),
    "memory: ": Reader("", 1, valid, takes_memory_and_hides_it, hostile=hostile),
    "wrong: the process died: 3": Reader("", 1, valid, dies, hostile=hostile),
    "changed: read with other numbers": Reader("", 1, codec_messages, ignores_the_checksum, numbers=vector_bytes),
}


@pytest.mark.parametrize("failure", PLANTED)
def test_planted_bug_is_found(tallies, failure):
    assert [text for text in failures(tallies[failure]) if failure in text]
    assert tallies[failure].outcomes.total() == 20


def test_an_input_can_be_made_again():
    valid_files = READERS["npz"].valid()
    once, again = (READERS["npz"].input(Random(7), valid_files) for _ in range(2))
    assert once == again
