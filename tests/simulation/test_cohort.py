"""Who takes part, and how agents are gone over: every way gives the numbers of all agents at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.randomness import agent_id, key_for, round_key
from fewjoule.simulation import simulate as simulation_room
from fewjoule.simulation.how import How
from fewjoule.simulation.simulate import Simulation

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


@pytest.mark.parametrize(
    "name", ["meta_backward", *(pytest.param(n, marks=pytest.mark.slow) for n in ("feedback", "fedexp"))]
)
def test_at_once_in_turn_and_in_groups_are_the_same(name, model, seven, own):
    """Seven agents in groups of three: the last group begins among agents of the one before, which must not count
    twice. Of five at most that are there, fillers are left out."""
    rng = np.random.default_rng(1)
    some = rng.permuted(np.arange(7) < rng.integers(0, 6, (6, 1)), axis=1)
    for there in (None, some):
        run = {
            how: gone_over(how, METHODS[name], model, seven, own, seed=2, availability=there)
            for how in (How(), How(group=1), How(group=3, sums=True), How(group=3))
        }
        whole, in_turn, sums, kept = run.values()
        alike(in_turn, whole)
        alike(kept, whole)
        assert np.isnan(sums.trace.spread).all()  # it would need all models at once
        for each in (sums, whole):
            object.__setattr__(each, "trace", each.trace._replace(spread=np.zeros(6)))
        alike(sums, whole)
