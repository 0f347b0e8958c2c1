"""PFLlib's splits of Fashion-MNIST: who has what, nothing twice, and new devices with images that nobody has."""

import numpy as np
import pytest

from fewjoule.errors import InputError
from fewjoule.tasks import fashion
from tests.tasks.natural import REAL, images, real_data


@pytest.fixture(scope="module")
def small():
    return images(2000, 400)


def real_rows(samples):
    return [row.tobytes() for row in np.asarray(samples.x)[np.asarray(samples.mask) > 0]]


@pytest.mark.parametrize("split", fashion.SPLITS)
def test_every_image_has_one_owner_or_is_kept_for_new_devices(small, split):
    agents = fashion.agents(small, split=split, count=10, concentration=0.5, validation=0.2)
    tasks = fashion.new_tasks(30, small, shots=5, queries=10)
    owned = real_rows(agents.data.train) + real_rows(agents.data.validation)
    assert len(owned) == len(set(owned)) == 2160  # of 2400 a tenth is kept
    assert not set(owned) & set(real_rows(tasks.support) + real_rows(tasks.query))
    for support, query in zip(tasks.support.x, tasks.query.x, strict=True):
        assert not {row.tobytes() for row in np.asarray(support)} & {row.tobytes() for row in np.asarray(query)}


def test_four_agents_share_a_pair_of_classes(small):
    agents = fashion.agents(small)
    owned = [np.unique(np.asarray(y)).tolist() for y in agents.data.train.y]
    assert owned == [[2 * (i // 4), 2 * (i // 4) + 1] for i in range(20)]
    sizes = np.array(agents.sizes).reshape(5, 4)
    assert (sizes.sum(1) == 432).all()
    assert (sizes[:, :3] < 108).all()  # each takes less than an even part, the last what is left
    assert (sizes[:, :3] >= 10).all()


def test_dirichlet_parts_are_uneven_and_none_is_too_small(small):
    agents = fashion.agents(small, split="dirichlet", count=10, concentration=0.5)
    assert min(agents.sizes) >= fashion.LEAST_SAMPLES
    shares = np.array(
        [
            np.bincount(np.asarray(y)[np.asarray(m) > 0], minlength=10) / m.sum()
            for y, m in zip(agents.data.train.y, agents.data.train.mask, strict=True)
        ]
    )
    assert shares.max(1).mean() > 0.3  # with even parts it would be 0.1
    even = fashion.agents(small, split="dirichlet", count=10, concentration=1000.0)
    assert max(even.sizes) - min(even.sizes) < 40


def test_a_cap_on_samples_and_wrong_settings(small):
    assert max(fashion.agents(small, samples=30).sizes) == 30
    for settings, words in (
        ({"split": "even"}, "split must be classes or dirichlet"),
        ({"classes_each": 11}, "classes_each must be at most 10"),
        ({"count": 4}, "give every class an owner"),
        ({"reserved": 0.0}, "reserved must be a share"),
        ({"split": "dirichlet", "count": 60, "concentration": 0.01}, "no split of 60 agents"),
    ):
        with pytest.raises(InputError, match=words):
            fashion.agents(small, **settings)


@real_data("fashion-mnist")
def test_the_real_images_by_classes():
    data = fashion.load(REAL)
    assert data.train_x.shape == (60_000, 784)
    assert np.bincount(data.train_y).tolist() == [6000] * 10
    assert sum(fashion.agents(data, samples=10).sizes) == 200
