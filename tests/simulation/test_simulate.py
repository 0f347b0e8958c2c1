"""The simulator: traces, divergence, who takes part."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.simulation.simulate import Simulation


def test_trace_says_what_the_paths_show(model, agents, local_models):
    method = fj.meta_backward(rounds=5, learning_rate=0.05, batch=None, radius=0.05)
    run = fj.simulate(method, model, agents, local_models, keep_paths=True)
    moved = np.linalg.norm(np.diff(run.meta_path, axis=0), axis=-1)
    np.testing.assert_allclose(run.trace.step, moved, rtol=1e-3, atol=1e-6)
    apart = np.linalg.norm(run.agent_path - run.agent_path.mean(1, keepdims=True), axis=-1).max(1)
    np.testing.assert_allclose(run.trace.spread, apart, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(run.trace.radius, 0.05, rtol=1e-6)
    samples = [jax.tree.map(lambda a, i=i: a[i], agents.data.train) for i in range(3)]
    first = np.mean([model.loss(local_models[i], samples[i]) for i in range(3)])
    np.testing.assert_allclose(run.trace.loss[0], first, rtol=1e-5)
    on_sphere = np.linalg.norm(run.agent_path - run.meta_path[:-1, None], axis=-1) > 0.05 * (1 - 1e-4)
    np.testing.assert_allclose(run.trace.active, on_sphere.mean(1), atol=1e-6)
    np.testing.assert_array_equal(run.trace.present, [3] * 5)


def test_trial_19_only_the_rounds_and_the_seed_that_are_asked_for_are_kept(model, agents, local_models):
    """A study draws 51 rounds of its first seed; all rounds of all seeds took 6 GB at 100 000 weights."""
    method, seeds = fj.fedsgd(rounds=40, batch=None), [7, 8, 9]
    models = np.stack([local_models + 0.1 * i for i in range(3)])
    whole = fj.simulate(method, model, agents, models[0], seed=7, keep_paths=True)
    few = Simulation(method, model, agents, models, seed=seeds, keep_paths=[20, 40])
    none = Simulation(method, model, agents, models, seed=seeds)
    few.compile()
    run = few.run()
    np.testing.assert_allclose(run.meta_path, whole.meta_path[jnp.array([0, 20, 40])], atol=1e-6)
    np.testing.assert_allclose(run.agent_path, whole.agent_path[jnp.array([19, 39])], atol=1e-6)

    def most_bytes(simulation):
        simulation.compile()
        memory = simulation._program._compiled.memory_analysis()
        return memory.output_size_in_bytes + memory.temp_size_in_bytes

    kept = 4 * model.size * (3 + 2 * 3)  # the start and two rounds; two rounds of three agents
    assert most_bytes(few) - most_bytes(none) < 4 * kept  # all rounds of all seeds would be 54 times as much


def test_keep_paths_takes_rounds_that_there_are(model, agents, local_models):
    for wrong in ([0], [3], [2, 1], [1, 1]):
        with pytest.raises(fj.InputError, match="keep_paths must be rounds from 1 to 2, rising"):
            fj.simulate(fj.fedsgd(rounds=2), model, agents, local_models, keep_paths=wrong)


def test_other_methods_have_no_radius(model, agents, local_models):
    run = fj.simulate(fj.fedsgd(rounds=2), model, agents, local_models)
    assert np.isnan(run.trace.radius).all()
    assert not run.trace.active.any()


def test_a_diverging_seed_is_flagged_warned_and_left_out(model, agents, local_models):
    """Three seeds, one of them far out: its neighbours are untouched and no statistic counts it."""
    stable = jnp.repeat(local_models[None], 3, 0)
    models = stable.at[1].mul(3e4)
    method = fj.fedsgd(rounds=6, learning_rate=0.05, batch=None)
    with pytest.warns(
        fj.DivergedWarning, match=r"fedsgd diverged for 1 of 3 seeds \(7\).*NaN. Lower learning_rate"
    ) as caught:
        run = fj.simulate(method, model, agents, models, seed=[4, 7, 9])
    assert len(caught) == 1
    np.testing.assert_array_equal(run.diverged, [False, True, False])
    assert np.isnan(run.meta[1]).all()
    alone = fj.simulate(method, model, agents, stable, seed=[4, 7, 9])
    np.testing.assert_array_equal(run.meta[0], alone.meta[0])
    tasks = fj.sinusoid.new_tasks(3, shots=5, queries=5)
    adapted = fj.adapt(model, run.meta, tasks, steps=[2])
    with pytest.warns(fj.DivergedWarning, match="1 of 3 meta-models"):
        assert np.isfinite(adapted.mean()[2])


def test_a_loss_beyond_the_stated_multiple_is_divergence_too(model, agents, local_models):
    method = fj.meta_backward(rounds=6, learning_rate=0.3, batch=None, radius=5.0)
    with pytest.warns(fj.DivergedWarning, match="rose .* times, beyond 2 times the start's"):
        run = fj.simulate(method, model, agents, local_models, diverged_at=2.0)
    assert bool(run.diverged)
    assert run.final_loss > 2 * run.start_loss
    assert np.isfinite(run.final_loss)
    assert np.isnan(run.meta).all()
    kept = fj.simulate(method, model, agents, local_models, diverged_at=1e30)
    assert not bool(kept.diverged)


def test_one_wild_step_in_the_last_round_is_seen(model, agents, local_models):
    """The loss that a round reports is that before its step; the meta-model's own loss is what counts."""
    for method in (
        fj.fedsgd(rounds=1, learning_rate=1e3, batch=None),
        fj.fedavg(rounds=1, local_steps=1, learning_rate=1e3),
    ):
        with pytest.warns(fj.DivergedWarning):
            run = fj.simulate(method, model, agents, local_models)
        assert bool(run.diverged)


def test_a_share_of_agents_takes_part(model, agents, local_models):
    method = fj.fedsgd(rounds=300, learning_rate=1e-6, batch=1)
    run = fj.simulate(method, model, agents, local_models, participation=0.5, seed=1)
    np.testing.assert_array_equal(run.trace.present, [2] * 300)  # half of three, to the nearest
    uploads = (np.asarray(run.uplink_bits)[1:] > 0).astype(int)
    assert (uploads.sum(1) == 2).all()
    assert (abs(uploads.mean(0) - 2 / 3) < 0.12).all()  # more than four standard deviations
    again = fj.simulate(method, model, agents, local_models, participation=0.5, seed=1)
    np.testing.assert_array_equal(run.meta, again.meta)
    few = fj.simulate(method, model, agents, local_models, participation=0.01, seed=1)
    np.testing.assert_array_equal(few.trace.present, [1] * 300)


def test_all_there_is_the_same_as_no_mask(model, agents, local_models):
    method = fj.fedavg(rounds=3, local_steps=2, batch=4)
    a = fj.simulate(method, model, agents, local_models)
    b = fj.simulate(method, model, agents, local_models, availability=np.ones((3, 3), bool))
    np.testing.assert_allclose(a.meta, b.meta, rtol=1e-5, atol=1e-7)


def test_samples_per_seed_belong_to_their_seed(model):
    agents = fj.sinusoid.agents([1, 2], samples=10, validation=0, seed=[0, 5])
    local = jnp.stack([jnp.stack([model.init(jax.random.key(i + 10 * s)) for i in range(2)]) for s in range(2)])
    method = fj.fedsgd(rounds=3, batch=4)
    both = fj.simulate(method, model, agents, local, seed=[0, 5])
    single = fj.simulate(method, model, fj.sinusoid.agents([1, 2], samples=10, validation=0, seed=5), local[1], seed=5)
    np.testing.assert_allclose(both.meta[1], single.meta, rtol=1e-4, atol=1e-6)


def test_trial_21_the_warning_points_at_the_caller(model, agents, local_models):
    with pytest.warns(fj.DivergedWarning) as caught:
        fj.simulate(fj.fedsgd(rounds=3, learning_rate=1e6, batch=None), model, agents, local_models)
    assert caught[0].filename == __file__
