"""MNIST: the subset is a true part of the original, agents and tasks share no image, bad files are refused."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from fewjoule.errors import InputError
from fewjoule.tasks import mnist, sinusoid


@pytest.fixture(scope="module")
def images():
    return mnist.load()


def test_the_subset_is_stratified_small_and_has_a_licence(images):
    assert np.bincount(images.train_y).tolist() == [600] * 10
    assert images.test_x.shape == (10_000, 784)
    folder = Path(mnist.__file__).parent / "data"
    assert (folder / "mnist-subset.npz").stat().st_size < 3_000_000
    assert "CC BY-SA 3.0" in (folder / "LICENSE-MNIST.txt").read_text()


def digest(x, y):
    return hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest()


def test_the_subset_equals_the_original_pixel_by_pixel(images):
    """The digests are of the original files: all test images, and of each digit the first 600 to train on, in order."""
    test = "c3f9adf9c66efb572b1f9326c3a511b45910c7173b97be66ceceeeeaef6b802b"
    assert digest(images.test_x, images.test_y) == test
    train = "d8660740428cf7be0523c4092d5eaa8d48e90206c1b68b923aea227c866a0013"
    assert digest(images.train_x, images.train_y) == train


def rows_of(x, mask):
    return {row.tobytes() for row in np.asarray(x)[np.asarray(mask) > 0]}


def test_agents_own_their_digits_and_share_no_image_with_the_tasks(images):
    agents = mnist.agents(images, seed=3)
    train, held = agents.data
    assert agents.names == ("digits 012", "digits 789")
    assert set(np.unique(train.y[0])) == {0, 1, 2}
    assert set(np.unique(held.y[1])) == {7, 8, 9}
    assert train.x.shape == (2, 400, 784)
    assert held.x.shape == (2, 100, 784)
    assert float(train.x.max()) == 1.0
    tasks = mnist.new_tasks(20, images, seed=1)
    assert tasks.support.x.shape == (20, 50, 784)
    owned = rows_of(train.x, train.mask) | rows_of(held.x, held.mask)
    support, query = rows_of(tasks.support.x, tasks.support.mask), rows_of(tasks.query.x, tasks.query.mask)
    assert not owned & support
    assert not owned & query
    assert not support & query
    for y in np.asarray(tasks.support.y):
        assert np.bincount(y, minlength=10).tolist().count(10) == 5


def test_seeds_change_the_agents_but_not_their_order(images):
    one, two = mnist.agents(images, seed=0), mnist.agents(images, seed=1)
    both = mnist.agents(images, seed=[0, 1])
    assert not np.array_equal(one.data.train.x, two.data.train.x)
    assert np.array_equal(both.data.train.x[1], two.data.train.x)
    swapped = mnist.agents(images, [[7, 8, 9], [0, 1, 2]], seed=0)
    assert np.array_equal(swapped.data.train.x[1], one.data.train.x[0])


def test_trial_20_a_seed_of_any_whole_number_type_is_one_seed(images):
    plain, numpy = mnist.agents(images, seed=1), mnist.agents(images, seed=np.int64(1))
    assert numpy.seeds is None
    assert np.array_equal(plain.data.train.x, numpy.data.train.x)
    assert mnist.agents(images, seed=np.arange(2)).seeds == (0, 1)
    one, two = (mnist.new_tasks(2, images, seed=s) for s in (1, np.int64(1)))
    assert np.array_equal(one.query.x, two.query.x)


@pytest.mark.parametrize("seed", [-1, 0.5, [], [1, 1], 2**32, "one"])
def test_trial_20_a_wrong_seed_is_refused_as_in_the_sinusoid_family(images, seed):
    for family in (sinusoid.agents, lambda seed: mnist.agents(images, seed=seed)):
        with pytest.raises(InputError, match="seed"):
            family(seed=seed)


def test_trial_20_new_tasks_refuse_a_wrong_seed(images):
    for family in (sinusoid.new_tasks, lambda count, seed: mnist.new_tasks(count, images, seed=seed)):
        for seed in (-1, [1, 2]):
            with pytest.raises(InputError, match="seed"):
                family(1, seed=seed)


def test_bad_settings_are_refused(images):
    with pytest.raises(InputError, match="validation must be at least 0, got -1"):
        mnist.agents(images, validation=-1)
    with pytest.raises(InputError, match="fewer than 5000"):
        mnist.agents(images, samples=5000)
    with pytest.raises(InputError, match="digits of an agent"):
        mnist.agents(images, [[0, 0]])
    with pytest.raises(InputError, match="shots must be at most 300"):
        mnist.new_tasks(1, images, shots=301)
    with pytest.raises(InputError, match="ways must be at most 10"):
        mnist.new_tasks(1, images, ways=11)


def test_missing_and_corrupt_files_are_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist; the folder must hold"):
        mnist.load(tmp_path)
    for name in mnist.FILES:
        (tmp_path / name).write_bytes(gzip.compress(b"not MNIST"))
    with pytest.raises(InputError, match="is not the original file"):
        mnist.load(tmp_path)


def test_a_download_without_network_says_what_to_do(tmp_path, monkeypatch):
    import pooch

    def refuse(url, **_):
        raise OSError("no network")

    monkeypatch.setattr(pooch, "retrieve", refuse)
    monkeypatch.setenv("FEWJOULE_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"could not be downloaded.*--data-dir"):
        mnist.load(download=True)
