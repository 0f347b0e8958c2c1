"""Keys derive from (seed, purpose, round, agent); rows are drawn evenly."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32

import fewjoule as fj
from fewjoule.randomness import (
    PURPOSES,
    _threefry,
    agent_id,
    agent_ids,
    cohorts_of,
    key_for,
    round_key,
    round_keys,
    seeds_of,
    uniform_each,
    uniform_rows,
)


def words(key):
    return tuple(int(w) for w in jax.random.key_data(key))


def test_every_purpose_round_and_agent_has_its_own_key():
    keys = {words(key_for(seed, purpose)) for seed in (0, 1, 2**32 - 1) for purpose in PURPOSES}
    assert len(keys) == 3 * len(PURPOSES)
    root = key_for(0, "round")
    assert len({words(round_key(root, k, agent_id(name))) for k in range(5) for name in ("a", "b", "c")}) == 15


def test_a_seed_is_the_same_as_number_and_as_array():
    for seed in (0, 7, 2**31, 2**32 - 1):
        assert words(key_for(seed, "round")) == words(key_for(jnp.uint32(seed), "round"))


def test_threefry_is_that_of_its_authors_and_of_jax():
    """Known answers of the Random123 distribution (20 rounds), and JAX's own for random keys."""
    zero = jnp.zeros(2, jnp.uint32)
    assert [hex(int(w[0])) for w in _threefry(zero, zero[:1])] == ["0x6b200159", "0x99ba4efe"]
    key = jnp.asarray([123456789, 987654321], jnp.uint32)
    counter = jnp.arange(6, dtype=jnp.uint32)
    theirs = threefry_2x32(key, jnp.concatenate([jnp.zeros_like(counter), counter]))
    np.testing.assert_array_equal(jnp.concatenate(_threefry(key, counter)), theirs)


@pytest.mark.parametrize("count", [1, 3, 400])
def test_rows_are_even_and_in_range(count):
    rows = np.asarray(uniform_rows(jax.random.key(5), 40_000, jnp.float32(count)))
    assert rows.min() >= 0
    assert rows.max() <= count - 1
    seen = np.bincount(rows, minlength=count)
    expected = 40_000 / count
    chi_squared = ((seen - expected) ** 2 / expected).sum()
    assert chi_squared <= count + 5 * np.sqrt(2 * count)  # five standard deviations above its mean


def test_seeds_are_checked():
    assert seeds_of(np.int64(3)) == (3,)
    assert seeds_of(range(3)) == (0, 1, 2)
    for wrong in (-1, 2**32, 1.5, True, [], [1, 1], "a"):
        with pytest.raises(fj.InputError, match="seed"):
            seeds_of(wrong)


def test_every_agent_draws_the_number_of_its_own_key():
    root, ids = jax.random.fold_in(key_for(3, "participation"), 7), jnp.asarray([0, 1, 5, 2**32 - 1], jnp.uint32)
    each = [jax.random.uniform(round_key(key_for(3, "participation"), 7, i)) for i in ids]
    np.testing.assert_array_equal(uniform_each(root, ids), jnp.stack(each))


def test_the_agents_with_the_lowest_numbers_take_part(monkeypatch):
    """Drawn by NumPy some rounds at once, and agent by agent by JAX; equal numbers leave the first one in."""
    monkeypatch.setattr("fewjoule.randomness.DRAWN_AT_ONCE", 12)
    names = ("red", "green", "blue", "white", "black")
    ids, root = agent_ids((*names, "red")), key_for(3, "participation")
    for index, cohort in enumerate(cohorts_of(3, 5, 4, ids)):
        numbers = [float(jax.random.uniform(round_key(root, index, i))) for i in ids]
        assert cohort.tolist() == sorted(sorted(range(6), key=lambda i: (numbers[i], i))[:4])


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_the_keys_of_all_rounds_are_those_of_each(seed):
    """Drawn by NumPy and by JAX: of all agents in every round, and of others in each."""
    root, ids = key_for(seed, "round"), np.asarray(agent_ids(("red", "green", "blue")))
    for who in (ids, np.stack([ids[:2], ids[1:]])):
        found = jax.random.key_data(round_keys(seed, 2, who))
        for index in range(2):
            own = who if who.ndim == 1 else who[index]
            for agent, key in zip(own, found[index], strict=True):
                np.testing.assert_array_equal(key, jax.random.key_data(round_key(root, index, agent)))
