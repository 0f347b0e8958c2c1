"""Windows of phones' recordings: where they lie, and that nothing is judged on samples that were learnt from."""

import numpy as np
import pytest

from fewjoule.errors import InputError
from fewjoule.tasks import hapt
from tests.tasks.natural import REAL, real_data, tar_xz


def recording(rows, offset=0):
    """Rows whose first number counts them."""
    return "\n".join(f"{i + offset} {i % 7} 0.5" for i in range(rows)).encode()


LONG = 128 + 64 * 19  # a segment of 20 windows


@pytest.fixture(scope="module")
def data():
    """Users 1 and 25 with a segment of every activity, and a posture transition (7) between."""
    labels, texts = [], {}
    for experiment, user in ((1, 1), (2, 25)):
        first = 1
        for activity in (1, 2, 3, 7, 4, 5, 6):
            labels.append((experiment, user, activity, first, first + LONG - 1))
            first += LONG
        texts[experiment, user] = recording(first)
    return hapt.cut(np.array(labels), texts, {})


def begins(x):
    """Where a window begins in its recording."""
    return np.asarray(x)[..., 0].astype(int)


def test_windows_lie_within_segments_and_begin_64_samples_apart(data):
    assert data.x.shape == (2 * 6 * 20, 384)
    mine = begins(data.x)[(data.user == 1) & (data.y == 1)]
    assert mine.tolist() == [LONG + 64 * i for i in range(20)]
    assert np.array_equal(data.x[5, :384:3], data.x[5, 0] + np.arange(128))
    assert set(data.y) == set(range(6))


def test_a_short_segment_has_no_window():
    labels = np.array([(1, 1, 1, 1, 127), (1, 1, 2, 128, 255)])
    only = hapt.cut(labels, {(1, 1): recording(300)}, {})
    assert only.y.tolist() == [1]


def test_held_out_windows_come_last_and_share_no_sample_with_the_others(data):
    agents, tests = hapt.agents(data, held_out=0.25, validation=0.2)
    assert agents.names == ("user 01",)
    parts = [agents.data.train, agents.data.validation, tests]
    for activity in range(6):
        at = [begins(part.x[0])[np.asarray((part.y[0] == activity) & (part.mask[0] > 0))] for part in parts]
        assert [len(a) for a in at] == [11, 2, 5]  # of 12, 3 and 5; one each reaches into what follows
        assert at[0].max() + 128 <= at[1].min()
        assert at[1].max() + 128 <= at[2].min()
    assert hapt.agents(data)[1] is None
    assert hapt.agents(data)[0].sizes == [120]


@pytest.mark.parametrize("shots", [1, 5])
def test_new_devices_are_judged_on_windows_apart_from_their_own(data, shots):
    tasks = hapt.new_tasks(3, data, shots=shots)
    for support, query, mask in zip(tasks.support.x, tasks.query.x, tasks.query.mask, strict=True):
        judged = begins(query)[np.asarray(mask) > 0]
        assert np.abs(judged[:, None] - begins(support)).min() >= 128
        assert len(judged) >= 120 - 3 * 6 * shots
    assert np.bincount(np.asarray(tasks.support.y[0])).tolist() == [shots] * 6
    with pytest.raises(InputError, match="shots must be below 20"):
        hapt.new_tasks(1, data, shots=20)


def test_the_gyroscope_is_used_where_it_is(data):
    labels, text = np.array([(1, 1, 1, 1, 200)]), recording(200)
    both = hapt.cut(labels, {(1, 1): text}, {(1, 1): recording(200, 1000)})
    assert both.x.shape == (2, 128 * 6)
    assert both.x[0, :6].tolist() == [0, 0, 0.5, 1000, 0, 0.5]
    assert "gyroscope" in both.source
    with pytest.raises(InputError, match="has 199 rows, its acceleration 200"):
        hapt.cut(labels, {(1, 1): text}, {(1, 1): recording(199)})
    with pytest.raises(InputError, match="1 gyroscope files do not match 2"):
        hapt.cut(labels, {(1, 1): text, (2, 2): text}, {(1, 1): text})


def test_what_is_no_recording_is_refused(tmp_path, monkeypatch):
    with pytest.raises(InputError, match=r"not downloaded.*uci.edu.*--data-dir"):
        hapt.load()
    with pytest.raises(InputError, match=r"has no labels\.txt"):
        hapt.load(tmp_path)
    (tmp_path / "labels.txt").write_text("1 1 1 1 200")
    with pytest.raises(InputError, match="SHA-256 sum differs"):
        hapt.load(tmp_path)
    monkeypatch.setattr(hapt, "read_checked", lambda path, digest: path.read_bytes())
    with pytest.raises(InputError, match="has 0 accelerometer files, the original 61"):
        hapt.load(tmp_path)
    (tmp_path / hapt.ARCHIVE).write_bytes(tar_xz({"RawData/acc_exp01_user01.txt": recording(200)})[:80])
    with pytest.raises(InputError, match="is damaged"):
        hapt.load(tmp_path)
    files = {f"../acc_exp{i:02d}_user01.txt": b"1 2 3" for i in range(1, 62)}  # a name is never used as a path
    (tmp_path / hapt.ARCHIVE).write_bytes(tar_xz(files))
    with pytest.raises(InputError, match="are not the originals"):
        hapt.load(tmp_path)
    assert not list(tmp_path.parent.glob("acc_*"))
    monkeypatch.setattr(hapt, "LARGEST_RECORDING_BYTES", 4)
    with pytest.raises(InputError, match="far more than a recording"):
        hapt.load(tmp_path)
    for text in (b"1 2", b"1 2 x", b"1 2 nan"):
        with pytest.raises(InputError, match="is not a recording"):
            hapt.cut(np.zeros((0, 5), int), {(1, 1): text}, {})


@pytest.mark.slow
@real_data("hapt")
def test_the_real_recordings():
    """README of the data: 10411 windows of the six activities, 284 to 413 a person."""
    data = hapt.load(REAL)
    people, each = np.unique(data.user, return_counts=True)
    assert (len(data.x), len(people), each.min(), each.max()) == (10_411, 30, 284, 413)
    assert len(hapt.agents(data)[0]) == 21


def test_a_spectrum_does_not_depend_on_where_a_step_begins():
    time = np.arange(128)
    waves = [np.cos(2 * np.pi * 4 * (time + shift) / 128) for shift in (0, 5)]
    x = np.stack([np.stack([w, 0 * w, 2 + 0 * w], 1).ravel() for w in waves]).astype(np.float32)
    data = hapt.Hapt(x, np.zeros(2), np.zeros(2), np.zeros(2), "")
    found = hapt.spectrum(data, bins=16).x
    expected = np.zeros((2, 3 + 48))
    expected[:, 2] = 2.0
    expected[:, 3 + 3 * 3] = np.log1p(20 * 0.5)  # channel 0 of the fourth frequency; a cosine's amplitude is half
    assert np.allclose(found, expected, atol=1e-5)
    with pytest.raises(InputError, match="bins must be at most 64"):
        hapt.spectrum(data, bins=65)
