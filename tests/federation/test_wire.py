"""Messages: what goes in comes out, and whatever is wrong is refused with a reason, quickly and in little memory."""

import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fewjoule.federation import blocks, wire
from fewjoule.federation.blocks import DTYPES, Form
from fewjoule.federation.wire import AgentReport, Message, MessageError

RUN = bytes(range(16))
FORMS = (Form("float32", (50,)), Form("float32", ()))
ARRAYS = (np.linspace(-1, 1, 50, dtype=np.float32), np.float32(0.5))
REPORT = AgentReport(0.25, 2.0, 1.0, 3.5, 0.1, 1000.0, 2000.0, 204.0, 24.0, "modelled", "cpu-time laptop", True)
MESSAGE = Message(blocks.ROUND, RUN, 7, 1234, ARRAYS, REPORT)


def decode(data: bytes, **changes: Any) -> Message:
    due = {"kind": blocks.ROUND, "run": RUN, "forms": FORMS, "round": 7, "agent": 1234}
    return wire.decode(data, **(due | changes))


def arrays() -> st.SearchStrategy[Any]:
    shapes = hnp.array_shapes(min_dims=0, max_dims=4, max_side=5)
    return st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, shapes))


@given(st.lists(arrays(), max_size=5), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_what_goes_in_comes_out(given_arrays: list[np.ndarray], round: int, agent: int) -> None:
    message = Message(blocks.PROBE, RUN, round, agent, tuple(given_arrays), REPORT)
    data = wire.encode(message)
    forms = [blocks.form_of(array) for array in given_arrays]
    assert len(data) == wire.size(forms)
    back = wire.decode(data, kind=blocks.PROBE, run=RUN, forms=forms, round=round, agent=agent)
    assert (back.round, back.agent, back.report) == (round, agent, REPORT)
    for before, after in zip(given_arrays, back.arrays, strict=True):
        assert before.dtype == after.dtype
        assert before.tobytes() == after.tobytes()


def test_bytes_are_those_of_the_format() -> None:
    """A second reading of the layout, by hand."""
    data = wire.encode(MESSAGE)
    assert data[:4] == b"FJBL"
    assert struct.unpack_from("<HBB", data, 4) == (4, blocks.ROUND, 2)
    assert data[8:24] == RUN
    assert struct.unpack_from("<III", data, 24) == (184, 7, 1234)
    assert struct.unpack_from("<9d", data, 36) == REPORT[:9]
    assert struct.unpack_from("<BBxxIIII", data, 212) == (0, 1, 50, 0, 0, 0)
    np.testing.assert_array_equal(np.frombuffer(data, "<f4", 50, 212 + 40), ARRAYS[0])


@given(st.data())
@settings(max_examples=300)
def test_any_change_of_a_message_is_refused(data: st.DataObject) -> None:
    good = wire.encode(MESSAGE)
    kind = data.draw(st.sampled_from(["flip", "cut", "grow", "swap", "noise"]))
    if kind == "flip":
        at, bit = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(0, 7))
        bad = good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :]
    elif kind == "cut":
        bad = good[: data.draw(st.integers(0, len(good) - 1))]
    elif kind == "grow":
        bad = good + data.draw(st.binary(min_size=1, max_size=200))
    elif kind == "swap":
        bad = data.draw(st.binary(min_size=len(good), max_size=len(good)))
    else:
        bad = data.draw(st.binary(max_size=600))
    with pytest.raises(MessageError, match=r"\w+ \w+"):
        decode(bad)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": blocks.PROBE}, "it is a round message, not a probe message"),
        ({"run": bytes(16)}, "belongs to run 000102"),
        ({"round": 8}, "is of round 8, round 9 was due"),
        ({"agent": 5}, "names agent 000004d2, it came from 00000005"),
        ({"forms": FORMS[:1]}, "bytes, got"),
        ({"forms": (Form("int32", (50,)), FORMS[1])}, "must be int32"),
        ({"forms": (Form("float32", (5, 10)), FORMS[1])}, "must be float32"),
    ],
)
def test_a_message_of_another_place_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(MessageError, match=words):
        decode(wire.encode(MESSAGE), **changes)


@pytest.mark.parametrize("data", [None, "text", 5, b"", b"FJBL", [1, 2]])
def test_what_is_no_message_is_refused(data: Any) -> None:
    with pytest.raises(MessageError):
        decode(data)
    with pytest.raises(MessageError):
        wire.kind_of(data)


def test_another_version_is_refused() -> None:
    good = wire.encode(MESSAGE)
    with pytest.raises(MessageError, match="version 9 cannot be read here"):
        decode(good[:4] + struct.pack("<H", 9) + good[6:])


def test_a_wrong_size_takes_no_memory() -> None:
    huge = bytes(40_000_000)
    tracemalloc.start()
    with pytest.raises(MessageError, match="bytes, got 40000000"):
        decode(huge)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize(
    ("value", "words"), [(np.nan, "NaN or infinite"), (np.inf, "NaN or infinite"), (1e9, "norm .* is above")]
)
def test_absurd_values_are_refused(value: float, words: str) -> None:
    array = np.zeros(10, np.float32)
    array[3] = value
    with pytest.raises(MessageError, match=words):
        wire.check_values((array,), 100.0)
    wire.check_values((np.ones(10, np.float32), np.arange(3)), 100.0)


@pytest.mark.parametrize("field", ["joules", "seconds", "bytes_sent", "bytes_received", "charged_bytes"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_an_impossible_reading_is_refused(field: str, value: float) -> None:
    bad = MESSAGE._replace(report=REPORT._replace(**{field: value}))
    with pytest.raises(MessageError, match=f"reading of {field}"):
        decode(wire.encode(bad))


def test_a_long_source_is_cut_between_characters() -> None:
    report = decode(wire.encode(MESSAGE._replace(report=REPORT._replace(source="x" + "é" * 60)))).report
    assert report.source == "x" + "é" * 47


@given(st.binary(max_size=40))
def test_an_array_may_have_any_length_up_to_its_bound(body: bytes) -> None:
    forms = (Form("uint8", (-20,)), Form("float32", (2,)))
    sent = (np.frombuffer(body, np.uint8), np.ones(2, np.float32))
    data = wire.encode(Message(blocks.ROUND, RUN, 7, 1234, sent))
    if len(body) <= 20:
        assert decode(data, forms=forms).arrays[0].tobytes() == body
    else:
        with pytest.raises(MessageError, match=r"bytes, got|must be"):
            decode(data, forms=forms)
