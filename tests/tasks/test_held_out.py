"""What agents keep to be judged on: nothing twice, nothing lost, the same for whoever asks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fewjoule.errors import InputError
from fewjoule.tasks.held_out import evenly, hold_out
from fewjoule.tasks.samples import Samples, make_agents


def numbered(*sizes, weighed=False):
    pairs, first = [], 0
    for size in sizes:
        x = np.arange(first, first + size, dtype=np.float32)
        pairs.append((x, 2 * x, 1 + np.arange(size)) if weighed else (x, 2 * x))
        first += 100
    return make_agents(pairs, names=[f"agent {i}" for i in range(len(sizes))])


def real(samples, i):
    return np.asarray(samples.x[i, :, 0])[np.asarray(samples.mask[i]) > 0].tolist()


def test_every_sample_is_either_learnt_from_or_judged_on():
    agents = numbered(20, 7, 2)
    left, tests = hold_out(agents, 0.25, 3)
    assert left.sizes == [15, 5, 1]
    for i in range(3):
        held = real(tests, i)
        assert sorted(real(left.data.train, i) + held) == real(agents.data.train, i)
        assert len(held) == [5, 2, 1][i]
    assert np.array_equal(left.data.train.y, 2 * left.data.train.x)
    assert np.array_equal(tests.y, 2 * tests.x)
    padding = np.asarray(left.data.train.mask[2]) == 0
    assert (np.asarray(left.data.train.x[2])[padding] == np.asarray(left.data.train.x[2, 0])).all()


def test_seeds_hold_out_others_and_one_agent_does_not_depend_on_the_rest():
    agents = numbered(20, 7)
    both, tests = hold_out(agents, 0.25, [3, 4])
    assert both.seeds == (3, 4)
    alone, mine = hold_out(agents.select([1]), 0.25, 4)
    assert real(mine, 0) == np.asarray(tests.x[1, 1, :, 0])[np.asarray(tests.mask[1, 1]) > 0].tolist()
    assert alone.names == ("agent 1",)
    assert not np.array_equal(tests.x[0], tests.x[1])
    again, _ = hold_out(both, 0.2, [3, 4])  # agents that have their seeds already
    assert again.sizes == [12, 4]
    assert set(np.asarray(again.data.train.x[1, 0]).ravel()) <= set(np.asarray(both.data.train.x[1, 0]).ravel())


def test_weights_stay_1_on_average():
    left, tests = hold_out(numbered(9, 5, weighed=True), 0.4, 0)
    for samples in (left.data.train, tests):
        mean = (samples.weight * samples.mask).sum(1) / samples.mask.sum(1)
        assert np.allclose(mean, 1)
    ratio = np.asarray(left.data.train.weight[0] / (1 + left.data.train.x[0, :, 0]))
    assert np.allclose(ratio, ratio[0])


def test_too_few_samples_and_wrong_shares_are_refused():
    with pytest.raises(InputError, match="agent 'agent 1' has 1 samples, too few"):
        hold_out(numbered(3, 1), 0.5, 0)
    for share in (0, 1, -0.5):
        with pytest.raises(InputError, match="share held out must be above 0"):
            hold_out(numbered(3), share, 0)


@pytest.mark.parametrize(("count", "due"), [(3, [0, 1, 2]), (4, [0, 1, 2, 3]), (8, [0, 2, 4, 6]), (10, [0, 2, 5, 7])])
def test_a_part_of_the_samples_is_evenly_spaced_among_the_real_ones(count, due):
    x = np.where(np.arange(10) < count, np.arange(10.0), 0)
    mask = (np.arange(10) < count).astype(np.float32)
    samples = Samples(x[:, None], 2 * x[:, None], mask, None, 3 * x)
    part = evenly(jax.tree.map(jnp.asarray, samples), 4)
    assert len(part.mask) == 4
    assert np.asarray(part.x)[np.asarray(part.mask) > 0].ravel().tolist() == due
    np.testing.assert_array_equal(part.y, 2 * part.x)
    np.testing.assert_array_equal(part.weight, 3 * part.x[:, 0])
    assert evenly(samples, 10) is samples
