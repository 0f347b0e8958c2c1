"""Files as strangers wrote them: damaged, crafted to take memory, or saved by another program's habits."""

import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewjoule.errors import InputError
from fewjoule.models.model import check_fit
from fewjoule.models.nets import mlp
from fewjoule.tasks.files import read_agents, read_inputs
from fewjoule.tasks.format import DataFormat, format_of_card
from fewjoule.tasks.parquet_pages import page_sizes
from fewjoule.tasks.readers import read_table

X = np.arange(12.0).reshape(6, 2)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def npy(header: str, body: bytes = b"", version: int = 1) -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(text)) + text + body


def header(shape: object, kind: str = "<f8") -> str:
    return f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"


def write_npz(path: Path, x: bytes, y: bytes = npy(header((2,)), bytes(16)), how: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        archive.writestr("x.npy", x)
        archive.writestr("y.npy", y)
    return path


def peak_bytes(message: str | None, path: Path) -> int:
    """Peak memory of reading a file, refused with this message where there is one."""
    tracemalloc.start()
    try:
        if message is None:
            read_table(path)
        else:
            with pytest.raises(InputError, match=message):
                read_table(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_trial_19_a_small_csv_takes_little_memory(tmp_path: Path) -> None:
    """One long text among 5000 short ones: fixed-width strings of NumPy take 4 bytes x 100 000 x 5000."""
    path = tmp_path / "a.csv"
    path.write_text("p,y\n" + f"1,{'x' * 100_000}\n" + "2,short\n" * 5000)
    before = pa.total_allocated_bytes()
    assert peak_bytes(None, path) < 50e6
    assert pa.default_memory_pool().max_memory() - before < 500e6


def test_trial_30_a_csv_takes_a_few_times_its_own_size(tmp_path: Path) -> None:
    """Read in blocks, numbers as numbers; a list of texts takes 25 times the file."""
    path = tmp_path / "a.csv"
    row = ",".join(f"0.{i}2345678" for i in range(20))
    path.write_text(",".join(f"x{i}" for i in range(20)) + ",y\n" + f"{row},1.5\n" * 20_000)
    size, before = path.stat().st_size, pa.total_allocated_bytes()
    assert peak_bytes(None, path) < 3 * size
    assert pa.default_memory_pool().max_memory() - before < max(500e6, 6 * size)


def test_trial_19_a_zip_bomb_is_refused_by_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("x.npy", "w", force_zip64=True) as file:
            file.write(npy(header((2**21, 60))))
            for _ in range(60):
                file.write(bytes(2**24))
        archive.writestr("y.npy", npy(header((2**21,), "|b1"), bytes(2**21)))
    assert path.stat().st_size < 6e6
    assert peak_bytes(r"bomb.npz unpacks to 1.01 GB, at most 0.[0-9]+ GB .*without compression", path) < 10e6


@pytest.mark.parametrize(
    "x",
    [
        npy(header((2**40,))),
        npy(header((2, 2**40))),
        npy(header((2**34, 2**34)), bytes(32)),
        npy(header((2**30,), "<U0")),
        npy(header((2,), "<U1000000000")),
        npy(header((-2, -1)), bytes(16)),
    ],
    ids=["long", "wide", "overflow", "no width", "long texts", "negative"],
)
def test_trial_19_an_array_that_claims_more_than_its_file_holds_is_refused(x: bytes, tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", x)
    assert peak_bytes("a.npz is truncated or damaged", path) < 10e6


def test_trial_19_samples_without_numbers_take_no_memory(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "a.npz", npy(header((2**40, 0))), npy(header((2**40, 0))))
    assert peak_bytes("a.npz: x and y must hold numbers", path) < 10e6


def test_trial_19_a_parquet_bomb_is_stopped_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewjoule.tasks.readers.LARGEST_UNPACKED", 10**6)
    zeros = np.zeros(2**20)
    pa.parquet.write_table(pa.table({"a": zeros, "y": zeros}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 20_000
    with pytest.raises(InputError, match=r"a.parquet unpacks to 0.00105 GB, at most 0.001 GB"):
        read_table(tmp_path / "a.parquet")


DAMAGED = {
    "AttributeError": npy("{'descr': [('a', 3)], 'fortran_order': False, 'shape': (2,), }"),
    "TokenError": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,"),
    "TypeError": npy("{'descr': '<f8', 'fortran_order': False, [1]: 2, }"),
    "deep": npy("(" * 3000 + ")" * 3000),
    "no magic": b"hello",
    "nothing": b"",
    "version 9": npy(header((2,)), bytes(16), version=9),
    "text for a shape": npy(header("'two'"), bytes(16)),
    "huge shape": npy(header((10**30,)), bytes(16)),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_trial_20_a_damaged_array_is_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"a.npz is truncated or damaged \(.+\); copy or write it again") as caught:
        read_table(write_npz(tmp_path / "a.npz", DAMAGED[name]))
    assert "\n" not in str(caught.value)


def test_trial_20_an_archive_that_zipfile_cannot_open_is_one_line(tmp_path: Path) -> None:
    """An unknown compression (NotImplementedError) and an encrypted member (RuntimeError)."""
    good = write_npz(tmp_path / "a.npz", npy(header((2,)), bytes(16))).read_bytes()
    at = good.rindex(b"PK\x01\x02")
    for offset, value in ((10, 99), (8, 1)):
        bad = bytearray(good)
        bad[at + offset] = value
        bad[good.index(b"PK\x03\x04", 4) + offset - 2] = value
        (tmp_path / "a.npz").write_bytes(bad)
        with pytest.raises(InputError, match=r"a.npz is truncated or damaged"):
            read_table(tmp_path / "a.npz")


@pytest.fixture(scope="module")
def good_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("good")
    np.savez(folder / "a.npz", x=X, y=LABELS)
    np.savez_compressed(folder / "b.npz", x=X, y=LABELS, x_test=X, y_test=LABELS)
    pa.parquet.write_table(pa.table({"a": X[:, 0], "y": ["cat", "dog"] * 3}), folder / "c.parquet")
    (folder / "d.csv").write_text('a,"b",y\n1,2.5,cat\n3,"4",dog\n')
    return {path.name: path for path in sorted(folder.iterdir())}


@settings(max_examples=300, deadline=None)
@given(data=st.data(), name=st.sampled_from(["a.npz", "b.npz", "c.parquet", "d.csv"]))
def test_trial_20_any_damaged_file_is_read_or_refused(
    data: st.DataObject, name: str, good_files: dict[str, Path]
) -> None:
    content = bytearray(good_files[name].read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    spoiled = good_files[name].with_name("spoiled" + Path(name).suffix)
    spoiled.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    try:
        read_table(spoiled)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_trial_20_a_parquet_file_with_damaged_pages_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pa.parquet.write_table(pa.table({"a": np.arange(1000.0), "y": np.arange(1000)}), path, compression="zstd")
    content = bytearray(path.read_bytes())
    content[4:2000] = bytes(1996)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a.parquet is truncated or damaged \(.+\); copy or write it again") as caught:
        read_table(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [{"target": 5}, {"task": 3}, {"divide_by": "255"}, {"divide_by": np.inf}, {"classes": "ab"}, {"columns": (1, 2)}],
    ids=str,
)
def test_trial_20_a_strangers_card_is_one_line(changes: dict[str, object], tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=LABELS)
    form = DataFormat()._replace(**changes)  # type: ignore[arg-type]
    for read in (read_agents, lambda folder, form: read_inputs(folder / "a.npz", form)):
        with pytest.raises(InputError, match=next(iter(changes))):
            read(tmp_path, form)


CSV_HABITS = [
    ("1.5,2,0\n2.5,3,1\n", r"its first line must name the columns, got numbers \(1.5, 2, 0\); add a line such as"),
    ("p;q;y\n1,5;2;3\n", "has ';' between its columns, and CSV files are read with commas; save it with commas"),
    ("p\tq\ty\n1\t2\t3\n", r"has '\\t' between its columns"),
    (",p,y\n0,1.5,0\n1,2.5,1\n", "column '' looks like the numbers of the rows, .*; write it with index=False"),
    ("Unnamed: 0,p,y\n0,1.5,0\n", "column 'Unnamed: 0' looks like the numbers of the rows"),
    ("p,y\n1.5,-3\n2.5,7\n", r"classes must be 0 or more, got -3; .* give task='regression' \(--task regression\)"),
    ("p,y\n1.5,1200\n2.5,7\n", r"whole-number targets are classes, and 1200 .* \(--task regression\)"),
]


@pytest.mark.parametrize(("text", "message"), CSV_HABITS, ids=[repr(text[:12]) for text, _ in CSV_HABITS])
def test_trial_32_a_csv_of_another_habit_is_refused_with_its_cure(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError, match=f"a.csv.*{message}"):
        read_agents(tmp_path)


def test_trial_32_columns_that_pandas_numbered_are_names(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("0,1,2\n1.5,2.5,0\n")
    assert read_table(tmp_path / "a.csv", target="2").columns == ("0", "1")


def test_trial_32_pandas_index_in_a_parquet_file_is_no_input(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"p": [1.5], "y": [0], "__index_level_0__": [7]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="'__index_level_0__' looks like the numbers of the rows"):
        read_agents(tmp_path)


def test_trial_32_an_agent_in_a_subfolder_is_not_skipped(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    np.savez(tmp_path / "a.npz", x=X, y=LABELS)
    assert read_agents(tmp_path).agents.names == ("a",)
    np.savez(tmp_path / "more" / "b.npz", x=X, y=LABELS)
    with pytest.raises(InputError, match=r"b.npz lies in a subfolder, which is not read; move it up"):
        read_agents(tmp_path)


def test_trial_32_endings_in_capitals_are_seen(tmp_path: Path) -> None:
    (tmp_path / "a.CSV").write_text("p,q,y\n1,2,0\n")
    with (tmp_path / "b.NPZ").open("wb") as file:
        np.savez(file, x=X, y=LABELS)
    (tmp_path / "b.SafeTensors").write_bytes(b"")
    read = read_agents(tmp_path)
    assert read.agents.names == ("a", "b")
    assert read.models == (None, tmp_path / "b.SafeTensors")
    (tmp_path / "c.PT").write_bytes(b"")
    with pytest.raises(InputError, match=r"c.PT is a pickle"):
        read_agents(tmp_path)


def test_trial_32_whole_targets_written_as_real_numbers_are_pointed_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=[0.0, 1.0] * 3)
    read = read_agents(tmp_path)
    assert read.why == (
        "the targets are real numbers; if they are classes, give task='classification' (--task classification)"
    )
    with pytest.raises(InputError, match=r"targets of width 1, but .* 2 outputs; .* whole numbers if they are classes"):
        check_fit(mlp([2, 2]), read.agents)
    with pytest.raises(InputError, match=r"use mse, or make them whole numbers .*\(--task classification\)"):
        check_fit(mlp([2, 2], loss="cross_entropy"), read.agents)
    np.savez(tmp_path / "a.npz", x=X, y=X[:, 0] + 0.5)
    assert read_agents(tmp_path).why == "the targets are real numbers"


def test_trial_32_whole_targets_of_a_regression_are_pointed_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=LABELS)
    agents = read_agents(tmp_path).agents
    with pytest.raises(InputError, match=r"use cross_entropy, or make them real numbers \(--task regression\)"):
        check_fit(mlp([2, 1]), agents)
    with pytest.raises(
        InputError, match=r"have class 2, but .* outputs for 1 at most; .* real numbers if they are none"
    ):
        check_fit(mlp([2, 1], loss="cross_entropy"), agents)


@pytest.mark.parametrize("kind", ["<U2", ">U2"])
@pytest.mark.parametrize("code", [0x110000, 0xFFFFFFFF, 0xD800])
def test_trial_20_numbers_that_are_no_characters_are_no_classes(tmp_path: Path, kind: str, code: int) -> None:
    """NumPy hands such a text out as a string that raises SystemError as soon as somebody writes it."""
    codes = np.array([65, code, 66, 67], np.uint32).astype(kind[0] + "u4")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", npy(header((2, 1)), bytes(16)))
        archive.writestr("y.npy", npy(header((2,), kind), codes.tobytes()))
    with pytest.raises(InputError, match="y holds bytes that are no text; write the names of the classes again"):
        read_table(tmp_path / "a.npz")


def test_bytes_are_read_as_utf_8(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X[:2], y=np.array(["café".encode(), b"tea"]))
    assert read_table(tmp_path / "a.npz").train[1].tolist() == ["café", "tea"]
    np.savez(tmp_path / "a.npz", x=X[:2], y=np.array([b"\xff\xfe", b"tea"]))
    with pytest.raises(InputError, match="no text"):
        read_table(tmp_path / "a.npz")


@pytest.mark.parametrize("reading", [5, "y", [1], {"target": 3}, {"divide_by": "x"}, {"columns": 7}, {"classes": [1]}])
def test_trial_20_a_card_that_says_nonsense_is_refused(reading: object) -> None:
    with pytest.raises(InputError):
        format_of_card({"reading": reading}, "regression")


def test_trial_19_a_page_of_parquet_is_not_unpacked_to_what_it_claims(tmp_path: Path) -> None:
    """Found by the fuzzer: pyarrow takes the memory that a page's header asks for, here 2 GB for a file of 1 kB."""
    path = tmp_path / "a.parquet"
    numbers = pa.table({"a": np.arange(20.0), "y": np.arange(20.0)})
    pa.parquet.write_table(numbers, path, use_dictionary=False, compression="snappy")
    whole = path.read_bytes()
    # the first page's header: its kind, then the bytes of the page unpacked (166) and packed, as zigzag varints
    assert whole[:9] == b"PAR1" + bytes([0x15, 0, 0x15, 0xCC, 0x02])
    packed = whole[10] - 6  # the number for 2 GB is 3 bytes longer, which the page is to be shorter
    assert whole[9] == 0x15
    assert whole[10] & 127 >= 6
    path.write_bytes(whole[:7] + bytes([0xFE, 0xFF, 0xFF, 0xFF, 0x0F, 0x15, packed]) + whole[11:40] + whole[43:])
    with pytest.raises(InputError, match=r"a.parquet unpacks to 2.15 GB, at most 0.0671 GB are read from a file"):
        read_table(path)


def test_the_pages_of_a_parquet_file_are_found(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows, words = np.arange(2500.0), ["cat", "dog"] * 1250
    settings = {"row_group_size": 1000, "compression": "snappy", "use_dictionary": ["w"]}
    pa.parquet.write_table(pa.table({"a": rows, "w": words, "y": rows}), path, **settings)
    # beside its numbers a page has 7 bytes that say that none is missing: 4 of length, 3 of one run
    assert list(page_sizes(path, {"a"})) == [8 * n + 7 for n in (1000, 1000, 500)]
    assert len(list(page_sizes(path, {"w"}))) == 2 * 3  # a dictionary and its page
    assert len(read_table(path, target="w").train[0]) == 2500
