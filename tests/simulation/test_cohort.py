"""Who takes part, and how agents are gone over: every way gives the numbers of all agents at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.randomness import agent_id, key_for, round_key
from fewjoule.simulation import simulate as simulation_room
from fewjoule.simulation.how import How, how_to_go
from fewjoule.simulation.simulate import Simulation
from fewjoule.simulation.work import data_of

SIZES = (20, 13, 17, 9, 11, 16, 8)
CLOSE = {"rtol": 2e-5, "atol": 1e-6}


@pytest.fixture(scope="module")
def seven():
    rng = np.random.default_rng(0)
    x = [rng.uniform(-3, 3, n) for n in SIZES]
    return fj.make_agents([(v, (i + 1) * np.sin(v)) for i, v in enumerate(x)])


@pytest.fixture(scope="module")
def own(model):
    return model.init(jax.random.key(7)) + 0.1 * jnp.stack([model.init(jax.random.key(k)) for k in range(7)])


METHODS = {  # agents that keep their model, what a codec lost, nothing; means by agents and by samples
    "meta_backward": fj.meta_backward(rounds=6, radius=0.1, batch=5),
    "feedback": fj.method("fedavg", rounds=6, local_steps=2, batch=5, codec="top-k:0.2:4", weighting="samples"),
    "fedexp": fj.fedexp(rounds=6, local_steps=2, batch=5),
}


def alike(a, b):
    np.testing.assert_allclose(a.meta, b.meta, **CLOSE)
    np.testing.assert_array_equal(a.uplink_bits, b.uplink_bits)
    np.testing.assert_array_equal(a.downlink_bits, b.downlink_bits)
    for one, other in zip(a.trace, b.trace, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["meta_backward", pytest.param("feedback", marks=pytest.mark.slow)])
def test_a_drawn_cohort_is_that_availability(name, model, seven, own):
    """The lowest of the numbers that agents draw for themselves take part; the same agents, said beforehand, are
    padded to the largest round and give the same."""
    method, seed = METHODS[name], 5
    draws = [
        [jax.random.uniform(round_key(key_for(seed, "participation"), k, agent_id(n))) for n in seven.names]
        for k in range(method.rounds)
    ]
    lowest = np.argsort(draws)[:, :3]
    there = np.zeros((method.rounds, 7), bool)
    np.put_along_axis(there, lowest, True, 1)
    drawn = fj.simulate(method, model, seven, own, seed=seed, participation=0.4)
    np.testing.assert_array_equal(drawn.uplink_bits[1:] > 0, there)
    said = fj.simulate(method, model, seven, own, seed=seed, availability=there)
    alike(drawn, said)


def test_only_the_cohort_is_computed(model, seven, own):
    """A tenth of the operations, not all of them masked."""
    method = fj.fedavg(rounds=10, local_steps=20)
    flops = [Simulation(method, model, seven, own, participation=share)._program.flops() for share in (1 / 7, 1.0)]
    assert flops[0] < 0.2 * flops[1]


def gone_over(how, method, *args, **kwargs):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation_room, "how_to_go", lambda *_: how)
        return fj.simulate(method, *args, **kwargs)


def some_of_seven(rounds=6):
    rng = np.random.default_rng(1)
    return rng.permuted(np.arange(7) < rng.integers(0, 6, (rounds, 1)), axis=1)


@pytest.mark.slow
def test_groups_that_keep_sums_are_all_at_once(model, seven, own):
    """Seven agents in groups of three, of whom five at most are there: the last group begins among agents of the one
    before, which must not count twice; fillers are left out."""
    method, there = METHODS["meta_backward"], some_of_seven()
    check_sums(*(gone_over(how, method, model, seven, own, seed=2, availability=there) for how in (SUMS, How())))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_at_once_in_turn_and_in_groups_are_the_same(name, model, seven, own):
    for there in (None, some_of_seven()):
        sums, whole, in_turn, kept = (
            gone_over(how, METHODS[name], model, seven, own, seed=2, availability=there)
            for how in (SUMS, How(), How(group=1), How(group=3))
        )
        alike(in_turn, whole)
        alike(kept, whole)
        check_sums(sums, whole)


SUMS = How(group=3, sums=True)


def check_sums(sums, whole):
    assert np.isnan(sums.trace.spread).all()  # it would need all models at once
    for each in (sums, whole):
        object.__setattr__(each, "trace", each.trace._replace(spread=np.zeros(6)))
    alike(sums, whole)


def test_the_way_follows_from_the_work(model, seven):
    """Few agents go at once, many in groups, and beyond memory as sums; a median needs every message."""
    data = data_of(seven)
    mean, median = fj.fedavg(), fj.fedavg(combine="median")
    assert how_to_go(mean, model, data, 7, 1, False) == How()
    many = how_to_go(mean, model, data, 100_000, 1, False)
    assert not many.sums
    assert many.group * -(-100_000 // many.group) < 101_000  # groups of nearly equal length
    assert how_to_go(mean, model, data, 10_000_000, 1, False).sums
    assert how_to_go(median, model, data, 10_000_000, 1, False) == how_to_go(mean, model, data, 10_000_000, 1, True)
    assert not how_to_go(median, model, data, 10_000_000, 1, False).sums
    assert how_to_go(mean, model, data, 100_000, 4, False).group < many.group
