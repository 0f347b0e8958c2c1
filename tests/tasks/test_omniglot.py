"""Omniglot: the decoder, the splits, rotations, and tasks of characters that no agent has."""

import io
import zipfile

import numpy as np
import pytest

from fewjoule.errors import InputError
from fewjoule.tasks import omniglot
from tests.tasks.natural import REAL, png, real_data, tar_xz

ALPHABETS = {"background": {"Greek": 4, "Latin_(old)": 6}, "evaluation": {"Angelic": 8}}


def drawing(seed):
    return (np.random.default_rng(seed).random((105, 105)) < 0.2).astype(np.uint8)


def tree():
    files, seed = {}, 0
    for part, alphabets in ALPHABETS.items():
        for alphabet, count in alphabets.items():
            for c in range(1, count + 1):
                for drawer in range(1, 21):
                    files[f"images_{part}/{alphabet}/character{c:02d}/0{c:03d}_{drawer:02d}.png"] = png(drawing(seed))
                    seed += 1
    return files


@pytest.fixture(scope="module")
def data():
    return omniglot.decode(iter(tree().items()), "made here")


def test_a_drawing_becomes_the_mean_ink_of_each_area(data):
    assert data.drawings.shape == (18, 20, 784)
    assert [c.alphabet for c in data.characters[:9:8]] == ["Angelic", "Greek"]
    ink = drawing(0)  # Greek's first
    fine = np.repeat(np.repeat(ink, 28, 0), 28, 1)  # 105 x 28 pixels a side: every area is whole pixels
    mean = fine.reshape(28, 105, 28, 105).mean((1, 3))
    row = data.characters.index(omniglot.Character("Greek", "character01", True))
    assert np.abs(data.drawings[row, 0] - 255 * mean.reshape(-1)).max() <= 0.51


def test_the_three_archives_give_the_same(data, tmp_path, monkeypatch):
    files = tree()
    monkeypatch.setattr("fewjoule.tasks.originals.read_checked", lambda path, digest: path.read_bytes())
    for part, name in zip(ALPHABETS, omniglot.ZIPS, strict=True):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for path in files:
                if f"_{part}/" in path:
                    archive.writestr(path, files[path])
            archive.writestr("../../outside/0001_01.png", b"never read")
        (tmp_path / name).write_bytes(buffer.getvalue())
    zipped = omniglot.load(tmp_path)
    assert np.array_equal(zipped.drawings, data.drawings)
    (tmp_path / "omniglot").mkdir()
    (tmp_path / "omniglot" / omniglot.REPACKED).write_bytes(tar_xz(files | {"huge.png": bytes(20_000)}))
    packed = omniglot.load(tmp_path)
    assert "repacked" in packed.source
    assert np.array_equal(packed.drawings, data.drawings)
    assert packed.characters == zipped.characters == data.characters


def test_what_is_no_drawing_is_refused(tmp_path):
    ink = drawing(0)
    good = png(ink)
    assert np.array_equal(omniglot.decode_png("it", good), ink)
    for bad in (b"", good[:40], good[:-30], png(ink[:50]), png(ink, filtered=1), b"GIF" + good[3:]):
        with pytest.raises(InputError, match="it is no drawing of Omniglot"):
            omniglot.decode_png("it", bad)
    with pytest.raises(InputError, match="has 1 drawings, not 20"):
        omniglot.decode(iter([("images_background/Greek/character01/0001_01.png", good)]), "")
    with pytest.raises(InputError, match="no drawings"):
        omniglot.decode(iter([("images_background/../../etc/0001_01.png", good)]), "")
    with pytest.raises(InputError, match=r"images_background.zip does not exist; .*--data-dir"):
        omniglot.load(tmp_path)


def test_agents_are_alphabets_and_choose_among_their_own_characters(data):
    kept = omniglot.kept_characters(data, "alphabets")
    assert omniglot.classes_needed(data, kept, rotations=True) == 24
    agents = omniglot.agents(data, kept, 6, drawers=10, validation=0.2)
    assert agents.names == ("Greek", "Latin (old)")
    assert agents.sizes == [4 * 8, 6 * 8]
    assert np.asarray(agents.data.train.allowed).sum(1).tolist() == [4, 6]
    first = np.asarray(agents.data.train.x[0])[np.asarray(agents.data.train.y[0]) == 3][0]
    row = data.characters.index(omniglot.Character("Greek", "character04", True))
    assert np.array_equal(np.round(first * 255), data.drawings[row, 0])
    with pytest.raises(InputError, match="the model 5 outputs"):
        omniglot.agents(data, kept, 5)


def test_a_rotation_is_a_character_of_its_own(data):
    kept = omniglot.kept_characters(data, "alphabets")
    agents = omniglot.agents(data, kept, 24, rotations=True, drawers=1)
    x = np.asarray(agents.data.train.x[0]).reshape(-1, 28, 28)[:16]
    assert np.asarray(agents.data.train.y[0])[:16].tolist() == list(range(16))
    assert np.array_equal(x[1], np.rot90(x[0]))
    assert np.array_equal(x[7], np.rot90(x[4], 3))


@pytest.mark.parametrize("rotations", [False, True])
def test_new_tasks_are_of_characters_that_no_agent_has(data, rotations):
    kept = omniglot.kept_characters(data, "alphabets")
    tasks = omniglot.new_tasks(10, data, kept, 24, ways=5, shots=2, queries=3, rotations=rotations)
    assert np.asarray(tasks.support.y[0]).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert np.asarray(tasks.query.allowed).sum(1).tolist() == [5] * 10
    free = [
        np.rot90(d.reshape(28, 28), turn).tobytes() for d in data.drawings[kept].reshape(-1, 784) for turn in range(4)
    ]
    whose = {drawing: i // 80 for i, drawing in enumerate(free)}
    turned = {drawing: i % 4 for i, drawing in enumerate(free)}
    for support, query in zip(tasks.support.x, tasks.query.x, strict=True):
        seen, judged = (
            [np.round(np.asarray(x).reshape(28, 28) * 255).astype(np.uint8).tobytes() for x in part]
            for part in (support, query)
        )
        assert not set(seen) & set(judged)
        for way in range(5):
            same = {(whose[d], turned[d]) for d in seen[2 * way : 2 * way + 2] + judged[3 * way : 3 * way + 3]}
            assert len(same) == 1
            assert rotations or same.pop()[1] == 0


def test_a_task_within_one_alphabet_and_wrong_settings(data, tmp_path):
    kept = np.array([c.name in ("character01", "character02", "character03") for c in data.characters])
    tasks = omniglot.new_tasks(8, data, kept, 6, ways=3, shots=1, queries=1, one_alphabet=True)
    alphabet = {d.tobytes(): c.alphabet for c, ds in zip(data.characters, data.drawings, strict=True) for d in ds}
    for x in np.asarray(tasks.support.x):
        assert len({alphabet[np.round(d * 255).astype(np.uint8).tobytes()] for d in x}) == 1
    with pytest.raises(InputError, match="ways must be at most 6"):
        omniglot.new_tasks(1, data, kept, 6, ways=7)
    with pytest.raises(InputError, match="ways must be at most 9, the number of characters"):
        omniglot.new_tasks(1, data, kept, 20, ways=10)
    with pytest.raises(InputError, match=r"shots \+ queries must be at most 20"):
        omniglot.new_tasks(1, data, kept, 6, ways=2, shots=10, queries=11)
    with pytest.raises(InputError, match="split must be"):
        omniglot.kept_characters(data, "even")
    with pytest.raises(InputError, match=r"test.txt does not exist; .*prototypical-networks"):
        omniglot.kept_characters(data, "vinyals", tmp_path)


@pytest.mark.slow
@real_data("omniglot")
def test_the_real_alphabets_and_splits():
    """964 characters of 30 alphabets and 659 of 20; Vinyals' 1200 are those that his list of training names."""
    data = omniglot.load(REAL)
    kept = omniglot.kept_characters(data, "alphabets")
    assert ((~kept).sum(), kept.sum()) == (964, 659)
    assert len({c.alphabet for c, k in zip(data.characters, kept, strict=True) if k}) == 20
    kept = omniglot.kept_characters(data, "vinyals", REAL)
    listed = (REAL / "omniglot/splits/vinyals/trainval.txt").read_text().split()
    assert {line.rpartition("/")[0] for line in listed} == {
        f"{c.alphabet}/{c.name}" for c, k in zip(data.characters, kept, strict=True) if not k
    }
    part = omniglot.decode(omniglot._in_zip((REAL / "omniglot/images_background_small1.zip").read_bytes()), "official")
    whole = {(c.alphabet, c.name): d for c, d in zip(data.characters, data.drawings, strict=True)}
    assert len(part.characters) == 136
    assert all(
        np.array_equal(whole[c.alphabet, c.name], d) for c, d in zip(part.characters, part.drawings, strict=True)
    )
