"""Agents' samples: padded, masked, checked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.tasks.samples import draw, stack


def test_padding_stands_behind_and_repeats_the_first_sample():
    samples = stack([([1.0, 2.0], [3.0, 4.0]), ([5.0], [6.0]), ([7.0] * 4, [8.0] * 4)])
    np.testing.assert_array_equal(samples.mask, [[1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 1]])
    np.testing.assert_array_equal(samples.x[:2, :, 0], [[1, 2, 1, 1], [5, 5, 5, 5]])
    np.testing.assert_array_equal(samples.y[:2, :, 0], [[3, 4, 3, 3], [6, 6, 6, 6]])


def test_a_model_that_is_finite_on_real_samples_stays_so_with_padding():
    model = fj.Model(lambda key: jnp.ones(1), lambda w, x: w * jnp.log(x))
    samples = jax.tree.map(lambda a: a[1], stack([([1.0, 2.0], [0.0, 0.0]), ([3.0], [0.0])]))
    loss, gradient = jax.value_and_grad(model.loss)(jnp.ones(1), samples)
    np.testing.assert_allclose(loss, np.log(3) ** 2, rtol=1e-6)
    np.testing.assert_allclose(gradient, [2 * np.log(3) ** 2], rtol=1e-6)


def test_a_mini_batch_holds_real_samples_only_and_does_not_see_the_padding():
    pair = (np.arange(5.0), np.arange(5.0))
    for longest in (5, 9):
        samples = jax.tree.map(lambda a: a[0], stack([pair, (np.zeros(longest), np.zeros(longest))]))
        batch = draw(samples._replace(x=samples.x.at[5:].set(99)), jax.random.key(0), 200)
        assert set(np.asarray(batch.x).ravel()) == {0, 1, 2, 3, 4}
        np.testing.assert_array_equal(batch.x, batch.y)
        np.testing.assert_array_equal(batch.mask, np.ones(200))
        if longest == 5:
            first = batch
    np.testing.assert_array_equal(batch.x, first.x)
    assert draw(samples, jax.random.key(0), None) is samples


def test_agents_keep_names_sizes_and_order(agents):
    assert len(agents) == 3
    assert agents.sizes == [20, 13, 17]
    turned = agents.select([2, 0])
    assert turned.names == ("blue", "red")
    assert turned.sizes == [17, 20]


ONE = [(np.zeros((3, 2)), np.zeros(3))]
CLASSES = [(np.zeros((3, 2)), np.array([0, 2, 2]))]


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: fj.make_agents([]), "at least one agent is needed, got none"),
        (lambda: fj.make_agents([([], [])]), r"agent '0' has no samples; leave it out or give it at least one"),
        (lambda: fj.make_agents([([1.0, np.nan], [1.0, 2.0])]), "agent '0': x must be finite, got NaN .* in 1 of 2"),
        (lambda: fj.make_agents([([1.0, 2.0], [np.inf, 2.0])]), "y must be finite"),
        (lambda: fj.make_agents([([1e300, 2.0], [1.0, 2.0])]), "x must be finite"),
        (lambda: fj.make_agents([([1.0, 2.0], [1.0])]), "same length, got 2 and 1"),
        (lambda: fj.make_agents([(["a"], [1.0])]), "must be numbers"),
        (lambda: fj.make_agents([(1.0, 2.0)]), "lists of samples"),
        (lambda: fj.make_agents([([[1.0], [1.0, 2.0]], [1.0, 2.0])]), "one shape per sample"),
        (lambda: fj.make_agents([*ONE, (np.zeros((3, 5)), np.zeros(3))]), "same input shape"),
        (lambda: fj.make_agents([*ONE, *CLASSES]), "same kind of target"),
        (lambda: fj.make_agents(ONE, names=["a", "b"]), "one name per agent: 1, got 2"),
        (lambda: fj.make_agents([*ONE, *ONE], names=["a", "a"]), "names must differ"),
        (lambda: fj.make_agents(ONE, [*ONE, *ONE]), "one pair per agent: 1, got 2"),
        (lambda: fj.make_agents(ONE, CLASSES), "same input shape and kind of target"),
        (lambda: fj.make_agents([(np.zeros((3, 2)), np.array([0, -1, 1]))]), "0 or more, got -1; number them from 0"),
        (lambda: fj.make_agents(CLASSES, allowed=[[0, 1, 2]]), "allowed needs classes"),
        (lambda: fj.make_agents(CLASSES, allowed=[[0, 1]], classes=3), "class 2 is among its samples"),
        (lambda: fj.make_agents(CLASSES, allowed=[[0, 2, 7]], classes=3), "classes from 0 to 2"),
        (lambda: fj.make_agents(CLASSES, allowed=[[0, 2], [1]], classes=3), "one set of classes per agent: 1, got 2"),
    ],
)
def test_wrong_samples_are_refused(make, match):
    with pytest.raises(fj.InputError, match=match):
        make()


@pytest.mark.parametrize(
    ("y", "match"),
    [
        (
            np.array([0, 2**63, 1], np.uint64),
            "agent '0': y must be at most 9223372036854775807, got 9223372036854775808",
        ),
        (
            np.array([0, 2**31, 1]),
            "agent '0': a class target must be at most 2147483647, got 2147483648; number classes",
        ),
        (np.array([0, 2**32 + 1, 1]), "a class target must be at most 2147483647, got 4294967297"),  # would become 1
    ],
)
def test_trial_10_whole_targets_never_wrap_around(y, match):
    with pytest.raises(fj.InputError, match=match):
        fj.make_agents([(np.zeros((3, 2)), y)])


def test_trial_10_no_agent_is_called_what_a_ledger_calls_all_of_them():
    from fewjoule.energy import ALL_AGENTS

    with pytest.raises(fj.InputError, match=r"no agent may be called 'all', which stands for all agents .*; rename it"):
        fj.make_agents([*ONE, *ONE], names=["one", ALL_AGENTS])


@pytest.mark.parametrize("name", ["so\ruth", "a\nb", "\x1b[31m", ""])
def test_a_name_that_would_spoil_a_line_is_refused(name):
    with pytest.raises(fj.InputError, match=r"an agent's name must be printable text, got .*; rename it"):
        fj.make_agents([*ONE, *ONE], names=["one", name])


@pytest.mark.parametrize("wrong", [-1, 1.5, 2**32, "one", None])
def test_trial_20_a_wrong_seed_is_one_line(wrong, tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((9, 2)), y=np.zeros(9))
    for make in (
        lambda: fj.sinusoid.agents(seed=wrong),
        lambda: fj.sinusoid.new_tasks(2, seed=wrong),
        lambda: fj.mnist.agents(seed=wrong),
        lambda: fj.mnist.new_tasks(2, seed=wrong),
        lambda: fj.read_agents(tmp_path, validation=0.3, seed=wrong),
    ):
        with pytest.raises(fj.InputError, match="a seed must be a whole number from 0"):
            make()


def test_trial_20_numpys_numbers_are_seeds_too():
    for make in (fj.mnist.agents, fj.sinusoid.agents):
        np.testing.assert_array_equal(make(seed=np.int64(3)).data.train.x, make(seed=3).data.train.x)


@pytest.mark.parametrize("wrong", [0, 1.5, "two", None])
def test_trial_20_a_wrong_count_is_one_line(wrong):
    for make in (
        lambda: fj.sinusoid.agents(samples=wrong, validation=0),
        lambda: fj.sinusoid.new_tasks(wrong),
        lambda: fj.sinusoid.new_tasks(2, shots=wrong),
        lambda: fj.mnist.new_tasks(2, ways=wrong),
        lambda: fj.mnist.new_tasks(2, queries=wrong),
    ):
        with pytest.raises(fj.InputError, match=r"must be (a whole number of )?at least 1, got"):
            make()
