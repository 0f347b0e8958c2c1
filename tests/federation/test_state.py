"""State files: whole or not at all, and never used when anything about them is wrong."""

import contextlib
import hashlib
import json
import resource
import stat
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewjoule.federation import blocks
from fewjoule.federation import state as module
from fewjoule.federation.blocks import AGENT, SERVER, BlockError, Form
from fewjoule.federation.state import FORMAT, State, StateError, pack, read_state, unpack, write_state

RUN, OTHER = b"r" * 16, b"o" * 16
STATE = State({"round": 3, "name": "north"}, {"model": np.arange(20, dtype=np.float32), "n": np.int64(4)})


def same(a: State, b: State) -> bool:
    return a.values == b.values and all(np.array_equal(a.arrays[k], b.arrays[k]) for k in a.arrays)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "agent.state"
    assert read_state(path, AGENT, RUN) is None
    write_state(path, AGENT, RUN, STATE)
    back = read_state(path, AGENT, RUN)
    assert back is not None
    assert same(back, STATE)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [p.name for p in path.parent.iterdir()] == ["agent.state"]


@pytest.mark.parametrize("at", ["write", "fsync", "replace"])
def test_a_death_while_writing_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    path = tmp_path / "agent.state"
    write_state(path, AGENT, RUN, STATE)
    monkeypatch.setattr(module, "SYNC_SECONDS", 0.0)

    def die(*args: Any) -> None:
        raise KeyboardInterrupt

    if at == "write":

        def half(path: Path, *args: Any, **kwargs: Any) -> Any:
            path.write_bytes(b"FJBL half a file")
            raise KeyboardInterrupt

        monkeypatch.setattr(module, "open", half, raising=False)
    else:
        monkeypatch.setattr(module.os, at, die)
    with pytest.raises(KeyboardInterrupt):
        write_state(path, AGENT, RUN, State({"round": 4}, {}))
    monkeypatch.undo()
    back = read_state(path, AGENT, RUN)
    assert back is not None
    assert same(back, STATE)


def test_a_disk_that_is_full_half_way_leaves_the_old_state(tmp_path: Path) -> None:
    path, long = tmp_path / "agent.state", State({"round": 4}, {"state0": np.zeros(100_000, np.float32)})
    write_state(path, AGENT, RUN, STATE)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, before[1]))  # the kernel takes so much of a file and no more
    try:
        with pytest.raises(OSError, match="too large"):
            write_state(path, AGENT, RUN, long)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    back = read_state(path, AGENT, RUN)
    assert back is not None
    assert same(back, STATE)
    assert [p.name for p in tmp_path.iterdir()] == ["agent.state"]


def test_left_overs_of_a_killed_writer_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "agent.state"
    write_state(path, AGENT, RUN, STATE)
    (tmp_path / ".agent.state.99.new").write_bytes(b"half")
    back = read_state(path, AGENT, RUN)
    assert back is not None
    assert same(back, STATE)


@given(st.data())
@settings(max_examples=300)
def test_any_change_is_refused(data: st.DataObject) -> None:
    good = pack(AGENT, RUN, STATE)
    kind = data.draw(st.sampled_from(["flip", "cut", "grow", "noise"]))
    if kind == "flip":
        at, bit = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(0, 7))
        bad = good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :]
    elif kind == "cut":
        bad = good[: data.draw(st.integers(0, len(good) - 1))]
    elif kind == "grow":
        bad = good + data.draw(st.binary(min_size=1, max_size=100))
    else:
        bad = data.draw(st.binary(max_size=400))
    with pytest.raises(ValueError, match=r"\w+ \w+"):
        unpack(bad, AGENT, RUN)


@pytest.mark.parametrize(
    ("role", "run", "words"),
    [(SERVER, RUN, "it is an agent's state, not the server's state"), (AGENT, OTHER, "it belongs to run")],
)
def test_a_state_of_another_place_is_refused(tmp_path: Path, role: int, run: bytes, words: str) -> None:
    path = tmp_path / "agent.state"
    write_state(path, AGENT, RUN, STATE)
    with pytest.raises(StateError, match=words):
        read_state(path, role, run)


def test_a_damaged_file_is_named_with_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "agent.state"
    write_state(path, AGENT, RUN, STATE)
    body = bytearray(path.read_bytes())
    body[60] ^= 1
    path.write_bytes(body)
    with pytest.raises(StateError, match=r"agent\.state .* refused: it is damaged.*put back a good copy"):
        read_state(path, AGENT, RUN)


def test_trial_45_a_state_of_another_release_is_read_and_one_of_another_format_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "agent.state"
    monkeypatch.setattr(module, "__version__", "0.1.7")
    write_state(path, AGENT, RUN, STATE)
    monkeypatch.undo()
    back = read_state(path, AGENT, RUN)
    assert back is not None
    assert same(back, STATE)
    monkeypatch.setattr(module, "FORMAT", FORMAT + 1)
    with pytest.raises(
        StateError, match=rf"it has format {FORMAT}, written by fewjoule 0\.1\.7.*reads format {FORMAT + 1}; go on"
    ):
        read_state(path, AGENT, RUN)


def signed(note: bytes, *forms: tuple[int, int, int, int, int, int]) -> bytes:
    """A block by hand with a right checksum: the note, a table of (type, axes, sides) and 8 bytes of arrays."""
    head = struct.pack("<4sHBB16sI", b"FJBL", blocks.VERSION, AGENT, len(forms), RUN, len(note))
    body = head + note + b"".join(struct.pack("<BBxxIIII", *form) for form in forms) + bytes(8)
    return body + hashlib.blake2b(body, digest_size=16).digest()


GOOD_NOTE, GOOD_FORM = {"format": FORMAT, "values": {"round": 3}, "arrays": ["a"]}, (0, 1, 2, 0, 0, 0)
LARGEST = 2**32 - 1


def read_signed(path: Path, note: Any, *forms: tuple[int, int, int, int, int, int], **due: Any) -> Any:
    text = note if isinstance(note, bytes) else json.dumps(note).encode()
    path.write_bytes(signed(text, *forms))
    return read_state(path, AGENT, RUN, **due)


def test_a_block_made_by_hand_is_read(tmp_path: Path) -> None:
    back = read_signed(tmp_path / "agent.state", GOOD_NOTE, GOOD_FORM, values={"round": int})
    assert back.arrays["a"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "note",
    [
        [],
        5,
        {"values": 1},
        {"format": FORMAT, "values": {}, "arrays": [["a", "float32", [2]]]},
        {"format": FORMAT, "values": {}, "arrays": ["a", "a"]},
        {"format": FORMAT, "values": {}, "arrays": []},
        {"format": FORMAT, "values": {}, "arrays": 5},
        {"format": FORMAT, "values": {}},
        {"format": FORMAT, "values": [], "arrays": ["a"]},
        b"",
        b"\xff\xfe",
        b"[" * 100_000,
        b"9" * 100_000,
    ],
    ids=lambda note: repr(note)[:40],
)
def test_a_well_signed_file_with_a_wrong_note_is_refused(tmp_path: Path, note: Any) -> None:
    with pytest.raises(StateError, match="refused"):
        read_signed(tmp_path / "agent.state", note, GOOD_FORM)


@pytest.mark.parametrize(
    "form",
    [
        (0, 1, LARGEST, 0, 0, 0),
        (5, 4, LARGEST, LARGEST, LARGEST, LARGEST),
        (0, 4, 0, LARGEST, LARGEST, LARGEST),
        (0, 1, 1, 0, 0, 0),
        (0, 5, 2, 0, 0, 0),
        (200, 1, 2, 0, 0, 0),
    ],
)
def test_a_well_signed_file_with_a_wrong_form_is_refused(tmp_path: Path, form: Any) -> None:
    with pytest.raises(StateError, match="refused"):
        read_signed(tmp_path / "agent.state", GOOD_NOTE, form)


def test_a_side_of_0_beside_sides_beyond_any_memory_is_refused(tmp_path: Path) -> None:
    note = GOOD_NOTE | {"arrays": ["a", "b"]}
    with pytest.raises(StateError, match="impossible form"):
        read_signed(tmp_path / "agent.state", note, GOOD_FORM, (5, 4, 0, LARGEST, LARGEST, LARGEST))


@pytest.mark.parametrize(
    ("due", "words"),
    [
        ({"values": {"round": str}}, "its value 'round' must be of type str"),
        ({"values": {"name": str}}, "its value 'name' must be of type str"),
        ({"forms": {"a": Form("float32", (3,))}}, r"its array 'a' must be float32\[3\]"),
        ({"forms": {"b": Form("float32", (2,))}}, "its array 'b' must be"),
    ],
)
def test_a_state_without_what_is_due_is_refused(tmp_path: Path, due: Any, words: str) -> None:
    with pytest.raises(StateError, match=words):
        read_signed(tmp_path / "agent.state", GOOD_NOTE, GOOD_FORM, **due)


@given(st.binary(max_size=60), st.binary(max_size=120), st.integers(0, 255), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=300)
def test_a_well_signed_block_of_noise_is_read_or_refused(
    note: bytes, rest: bytes, count: int, noted: int, is_fitting: bool
) -> None:
    """No other error comes out, whatever the table of arrays and the lengths say."""
    length = len(note) if is_fitting else noted
    held = count % 4 if is_fitting else count
    body = struct.pack("<4sHBB16sI", b"FJBL", blocks.VERSION, AGENT, held, RUN, length) + note + rest
    data = body + hashlib.blake2b(body, digest_size=16).digest()
    with contextlib.suppress(BlockError):
        blocks.unpack(data, AGENT, RUN)
    with contextlib.suppress(BlockError):
        unpack(data, AGENT, RUN)
