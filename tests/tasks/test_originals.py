"""Original files: found in a folder or its subfolder, refused when they are others or too large."""

import gzip
import hashlib
import struct

import numpy as np
import pytest

from fewjoule.errors import InputError
from fewjoule.tasks import originals
from fewjoule.tasks.originals import Originals, read_idx
from tests.tasks.natural import idx

CONTENT = b"what the publisher wrote"
SET = Originals("birds", {"a/songs.gz": hashlib.sha256(CONTENT).hexdigest()}, ("https://one/", "https://two/"), "cure.")


@pytest.mark.parametrize("place", ["", "birds"])
def test_a_file_is_found_in_the_folder_or_in_that_of_its_set(tmp_path, place):
    path = tmp_path / place / "a" / "songs.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert SET.read("a/songs.gz", tmp_path) == CONTENT


def test_missing_other_and_large_files_are_refused_with_the_cure(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"songs.gz does not exist; cure"):
        SET.read("a/songs.gz", tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "songs.gz").write_bytes(CONTENT + b".")
    with pytest.raises(InputError, match="SHA-256 sum differs"):
        SET.read("a/songs.gz", tmp_path)
    monkeypatch.setattr(originals, "LARGEST_FILE_BYTES", 5)
    with pytest.raises(InputError, match="25 bytes, far more"):
        SET.read("a/songs.gz", tmp_path)


def test_mirrors_are_tried_in_turn(tmp_path, monkeypatch):
    import pooch

    asked = []

    def retrieve(url, known_hash, fname, path):
        asked.append((url, known_hash))
        if url.startswith("https://one"):
            raise OSError("no network")
        path.mkdir(parents=True)
        (path / fname).write_bytes(CONTENT)
        return path / fname

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    monkeypatch.setenv("FEWJOULE_CACHE", str(tmp_path))
    assert SET.read("a/songs.gz", None) == CONTENT
    assert [url for url, _ in asked] == ["https://one/a/songs.gz", "https://two/a/songs.gz"]
    assert {known for _, known in asked} == {f"sha256:{SET.files['a/songs.gz']}"}
    assert (tmp_path / "birds" / "a" / "songs.gz").is_file()


@pytest.mark.parametrize(
    "array", [np.arange(24, dtype="u1").reshape(2, 3, 4), (-np.arange(8)).astype(">i4").reshape(4, 2)]
)
def test_idx_files_are_read_as_they_were_written(array):
    assert np.array_equal(read_idx("file", idx(array)), array)


def test_a_wrong_idx_file_is_refused(monkeypatch):
    whole = gzip.decompress(idx(np.arange(10, dtype="u1")))
    for raw in (b"", whole[:-1], whole[:2] + b"\x0d" + whole[3:], struct.pack(">HBB", 0, 8, 3)):
        with pytest.raises(InputError, match="file is no idx file"):
            read_idx("file", gzip.compress(raw))
    with pytest.raises(InputError, match="file is no idx file"):
        read_idx("file", b"not gzip")
    monkeypatch.setattr(originals, "LARGEST_ARRAY_BYTES", 12)  # what is beyond it is never unpacked
    with pytest.raises(InputError, match="4 values do not fill"):
        read_idx("file", idx(np.arange(10, dtype="u1")))
