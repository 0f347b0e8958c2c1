"""Methods that leave something with the agent, where a run is planned, charged and kept on disk."""

import numpy as np
import pytest

import fewjoule as fj
from fewjoule.energy import link
from fewjoule.simulation.plan import cost, most_bits

SMALL = {"rounds": 2, "batch": 5}
METHODS = {
    "fedprox": fj.fedprox(local_steps=2, **SMALL),
    "fedrep": fj.fedrep(head_steps=2, body_steps=2, **SMALL),
    "ditto": fj.ditto(local_steps=2, personal_steps=2, **SMALL),
    "anil": fj.anil(inner_steps=1, **SMALL),
    "meta_sgd": fj.meta_sgd(inner_steps=1, **SMALL),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_plan_is_what_the_ledger_charges(name, model, agents, local_models):
    method = METHODS[name]
    run = fj.simulate(method, model, agents, local_models)
    up, down = most_bits(method, model)
    np.testing.assert_array_equal(run.uplink_bits, np.repeat(up[:, None], 3, 1))
    np.testing.assert_array_equal(run.downlink_bits, np.repeat(down[:, None], 3, 1))
    due = cost(method, model, link("lte"))
    (spent,) = (row.joules for row in run.energy("lte").spent() if row.phase == "uplink")
    assert spent == pytest.approx(3 * due.uplink_joules)


@pytest.mark.slow
def test_half_of_the_agents_and_a_codec_leave_the_head_where_it_is(model, agents, local_models):
    method = fj.method("fedrep", head_steps=2, body_steps=2, codec="top-k:0.3:4", **SMALL)
    run = fj.simulate(method, model, agents, local_models, participation=0.34)
    body = model.size - 6
    away = (run.uplink_bits[1:] == 0).all(0)
    assert away.any()
    np.testing.assert_array_equal(run.personal[away][:, body:], local_models[away][:, body:])
    assert run.uplink_bits[1:].max() <= 8 * fj.codec("top-k:0.3:4").most_bytes(body)


@pytest.mark.parametrize("name", ["fedrep", pytest.param("ditto", marks=pytest.mark.slow)])
def test_a_population_keeps_heads_and_own_models_on_disk(name, model, tmp_path):
    rng = np.random.default_rng(2)
    pairs = [(x, np.sin(x)) for x in rng.uniform(-3, 3, (5, 4))]
    steps = {"fedrep": {"head_steps": 2, "body_steps": 1}, "ditto": {"local_steps": 1, "personal_steps": 2}}[name]
    method = fj.method(name, rounds=3, batch=3, start="random", **steps)
    place = tmp_path / "states"
    place.mkdir()
    run = fj.simulate_population(method, model, fj.population(pairs, tmp_path / "five"), cohort=3, seed=1, states=place)
    there = np.zeros((3, 5), bool)
    np.put_along_axis(there, run.cohorts, True, 1)
    whole = fj.simulate(method, model, fj.make_agents(pairs), seed=1, availability=there)
    np.testing.assert_allclose(run.meta, whole.meta, rtol=1e-4, atol=1e-5)
    kept, whose = np.load(place / "states-0.npy", mmap_mode="r"), np.load(place / "states-agents.npy")
    np.testing.assert_array_equal(np.sort(whose), np.flatnonzero(there.any(0)))
    head = slice(model.size - 6, None) if name == "fedrep" else slice(None)
    np.testing.assert_allclose(kept[: len(whose), head], whole.personal[whose][:, head], rtol=1e-4, atol=1e-5)
