"""MNIST by its writers: an agent has one person's digits, a new device another's, with enough of every digit."""

import numpy as np
import pytest

from fewjoule.errors import InputError
from fewjoule.tasks import writers
from tests.tasks.natural import REAL, images, real_data


def rows(y, ids):
    table = np.zeros((len(y), 8), ">i4")
    table[:, 0], table[:, 2] = y, ids
    return table


@pytest.fixture(scope="module")
def written():
    """Ten writers of 30 digits; five others: four with 14 each of 0..4, one with 4 each of all ten."""
    drawn = images(300, 320)
    y = np.array([d for _ in range(14) for d in range(5)] * 4 + list(range(10)) * 4, np.uint8)
    drawn = drawn._replace(test_y=y)
    test = rows(y, np.repeat([901, 902, 903, 904, 905], [70, 70, 70, 70, 40]))
    more = np.concatenate([test, rows(np.zeros(5, int), [906] * 5)])  # QMNIST has more rows than MNIST has images
    return writers.with_writers(drawn, rows(drawn.train_y, np.arange(300) // 30), more)


def test_an_agent_is_a_writer(written):
    agents = writers.agents(written, validation=0.2)
    assert agents.names == tuple(f"writer {i:04d}" for i in range(10))
    train, held = agents.data
    assert (train.mask.sum(-1) == 24).all()
    assert (held.mask.sum(-1) == 6).all()
    for i in range(10):
        mine = {row.tobytes() for row in written.images.train_x[30 * i : 30 * i + 30]}
        got = np.concatenate([np.asarray(train.x[i]), np.asarray(held.x[i])])
        assert {np.round(row * 255).astype(np.uint8).tobytes() for row in got} == mine
    assert len(writers.agents(written, count=3)) == 3
    with pytest.raises(InputError, match="no writer has 31 images, the most is 30"):
        writers.agents(written, least=31)


@pytest.mark.parametrize(("shots", "devices", "digits"), [(1, 5, 10), (3, 5, 10), (4, 4, 5), (10, 4, 5)])
def test_a_new_device_has_the_digits_that_it_wrote_often_enough(written, shots, devices, digits):
    tasks = writers.new_tasks(99, written, shots=shots)
    assert len(tasks.support.mask) == devices
    counts = [
        np.bincount(np.asarray(y)[np.asarray(m) > 0], minlength=10)
        for y, m in zip(tasks.support.y, tasks.support.mask, strict=True)
    ]
    assert {int(c) for c in np.concatenate(counts)} <= {0, shots}
    assert max((c > 0).sum() for c in counts) == digits
    left = int(tasks.query.mask.sum())
    assert left == 4 * 5 * (14 - shots) + (10 * (4 - shots) if devices == 5 else 0)
    assert len(writers.new_tasks(2, written, shots=shots).support.mask) == 2


def test_wrong_labels_and_too_many_shots_are_refused(written):
    with pytest.raises(InputError, match="labels are of other images"):
        writers.with_writers(written.images, rows(written.images.train_y[::-1], 0), rows(written.images.test_y, 0))
    with pytest.raises(InputError, match="more than 14 times"):
        writers.new_tasks(1, written, shots=14)


@real_data("qmnist")
def test_the_real_writers():
    """README of the data: 539 writers with 19 to 131 digits, median 116; 297 others."""
    written = writers.load(REAL)
    sizes = np.unique(written.train_writers, return_counts=True)[1]
    assert (len(sizes), sizes.min(), sizes.max(), np.median(sizes)) == (539, 19, 131, 116)
    assert len(np.unique(written.test_writers)) == 297
    assert not set(written.train_writers) & set(written.test_writers)
