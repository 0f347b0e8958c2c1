"""Alignment: functions stay, hidden shuffles are undone, and averages of strangers become good starts."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fewjoule
from fewjoule import InputError
from fewjoule.models.model import Model
from fewjoule.models.nets import conv4, mlp
from fewjoule.training.align import _permuted, _tensors, align, align_models, barrier, match, permutable_axes

MODELS = [mlp([3, 6, 5, 2]), mlp([4, 9, 3], loss="cross_entropy"), conv4([12, 9, 2], 3, filters=5), mlp([2, 3])]


@partial(jax.jit, static_argnums=0)
def outputs_of(model: Model, vector: jax.Array) -> jax.Array:
    shape = (12, 9, 2) if model.spec.startswith("conv4") else (model.tensor_shapes()[0][0],)
    return model.apply(vector, jax.random.normal(jax.random.key(9), (7, *shape)))


@partial(jax.jit, static_argnums=0)
def drawn(model: Model, seed: int) -> jax.Array:
    return model.init(jax.random.key(seed)) + 0.3 * jax.random.normal(jax.random.key(seed + 100), (model.size,))


def shuffled(model: Model, vector: jax.Array, seed: int) -> jax.Array:
    axes, rng = permutable_axes(model), np.random.default_rng(seed)
    sizes = {g: t.shape[a] for t in axes for a, g in enumerate(t.groups) if g is not None}
    orders = {g: rng.permutation(n) for g, n in sizes.items()}
    pieces = [_permuted(t, a, orders).ravel() for t, a in zip(_tensors(axes, vector), axes, strict=True)]
    return jnp.asarray(np.concatenate(pieces), jnp.float32)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.spec)
def test_the_description_covers_every_weight(model: Model) -> None:
    assert [int(np.prod(a.shape)) for a in permutable_axes(model)] == [int(np.prod(s)) for s in model.tensor_shapes()]


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), which=st.sampled_from(range(len(MODELS))))
def test_no_agents_function_changes(seed: int, which: int) -> None:
    model = MODELS[which]
    models = jnp.stack([drawn(model, seed + i) for i in range(3)])
    aligned = align_models(model, models)
    for before, after in zip(models, aligned, strict=True):
        np.testing.assert_allclose(outputs_of(model, after), outputs_of(model, before), atol=1e-5)
        np.testing.assert_array_equal(jnp.sort(after), jnp.sort(before))


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1000), which=st.sampled_from(range(len(MODELS))))
def test_a_shuffled_copy_is_put_back_in_order(seed: int, which: int) -> None:
    model = MODELS[which]
    vector = drawn(model, seed)
    copy = shuffled(model, vector, seed)
    np.testing.assert_allclose(outputs_of(model, copy), outputs_of(model, vector), atol=1e-5)
    np.testing.assert_array_equal(match(model, vector, copy), vector)


def test_matching_one_hidden_layer_is_the_best_of_all_orders() -> None:
    model = mlp([2, 4, 1])
    one, two = drawn(model, 1), drawn(model, 2)
    weight, bias, out, last = _tensors(permutable_axes(model), two)
    nearest = min(
        float(np.sum((np.concatenate([weight[:, p].ravel(), bias[p], out[p].ravel(), last]) - np.asarray(one)) ** 2))
        for p in map(list, itertools.permutations(range(4)))
    )
    assert float(((match(model, one, two) - one) ** 2).sum()) == pytest.approx(nearest, rel=1e-5)


def test_auto_keeps_models_whose_barrier_alignment_does_not_lower() -> None:
    model = mlp([1, 8, 1])
    same = jnp.repeat(drawn(model, 0)[None], 3, 0)
    x = np.linspace(-2, 2, 20)[:, None]
    agents = fewjoule.make_agents([(x, np.asarray(model.apply(same[0], jnp.asarray(x))))] * 3)
    result = align(model, same, agents)
    assert not result.applied
    assert result.barrier_before == pytest.approx(0, abs=1e-5)
    np.testing.assert_array_equal(result.models, same)
    strangers = jnp.stack([shuffled(model, drawn(model, 0), i) for i in range(3)])
    result = align(model, strangers, agents)
    assert result.applied
    assert result.barrier_after == pytest.approx(0, abs=1e-4)
    assert result.barrier_before == pytest.approx(barrier(model, strangers, agents))
    assert not align(model, strangers, agents, mode="never").applied


def test_what_cannot_be_aligned_is_said() -> None:
    agents = fewjoule.sinusoid.agents(samples=20)
    with pytest.raises(InputError, match="align must be one of auto, always, never, got 'yes'"):
        align(mlp([1, 2, 1]), jnp.zeros((3, 7)), agents, mode="yes")
    with pytest.raises(InputError, match=r"models must have shape \[3, 7\]"):
        align(mlp([1, 2, 1]), jnp.zeros((2, 7)), agents)
    own = Model(lambda key: jnp.zeros((1, 1)), lambda w, x: x @ w)
    with pytest.raises(InputError, match="custom model are not known"):
        align(own, jnp.zeros((3, 1)), agents, mode="always")


def errors_after_10_steps(seeds: range, max_steps: int) -> np.ndarray:
    """Median error over new tasks for each seed: naive average, aligned average, shared-start average."""
    model, tasks = mlp([1, 40, 40, 1]), fewjoule.sinusoid.new_tasks(100)
    rows = []
    for seed in seeds:
        agents = fewjoule.sinusoid.agents((2, 6, 10), seed=seed)
        strangers = fewjoule.train_locally(model, agents, seed=seed, shared_start=False, max_steps=max_steps).models
        friends = fewjoule.train_locally(model, agents, seed=seed, max_steps=max_steps).models
        starts = jnp.stack([strangers.mean(0), align(model, strangers, agents).models.mean(0), friends.mean(0)])
        rows.append(np.median(fewjoule.adapt(model, starts, tasks, steps=[10]).loss[..., 0], axis=1))
    return np.median(rows, axis=0)


@pytest.mark.slow
def test_aligned_strangers_are_about_as_good_a_start_as_friends() -> None:
    # three seeds and short training keep this quick and noisy; the slow test below holds the real bound, 1.3
    naive, aligned, shared = errors_after_10_steps(range(3), max_steps=8000)
    assert naive / aligned >= 10
    assert aligned / shared <= 1.6


@pytest.mark.slow
def test_aligned_strangers_over_many_seeds() -> None:
    naive, aligned, shared = errors_after_10_steps(range(12), max_steps=20_000)
    assert naive / aligned >= 10
    assert aligned / shared <= 1.3


def strangers_of_random_phase(seed: int, max_steps: int) -> tuple[fewjoule.Agents, jnp.ndarray]:
    """Ten agents with sinusoids of random amplitude and phase, each model from a start of its own."""
    rng = np.random.default_rng(seed)
    amplitudes, phases = rng.uniform(1, 10, 10), rng.uniform(0, np.pi, 10)
    agents = fewjoule.sinusoid.agents(amplitudes.round(3).tolist(), phases=phases.round(3).tolist(), seed=seed)
    local = fewjoule.train_locally(RANDOM_PHASE, agents, seed=seed, shared_start=False, max_steps=max_steps)
    return agents, local.models


RANDOM_PHASE = mlp([1, 40, 40, 1])


def auto_is_right(seed: int, max_steps: int) -> bool:
    """Whether `auto` takes the start that is better on new tasks after 10 and after 50 steps."""
    agents, models = strangers_of_random_phase(seed, max_steps)
    tasks = fewjoule.sinusoid.new_tasks(100, amplitude=(1, 10), phase=(0, np.pi), shots=10, seed=seed)
    starts = jnp.stack([models.mean(0), align(RANDOM_PHASE, models, agents, mode="always").models.mean(0)])
    judged = np.median(fewjoule.adapt(RANDOM_PHASE, starts, tasks, steps=[10, 50]).loss, axis=1)
    chosen = align(RANDOM_PHASE, models, agents)
    aligned_wins = judged[1] < judged[0]
    return bool(chosen.applied == aligned_wins[0] == aligned_wins[1])


@pytest.mark.slow
def test_trial_26_auto_keeps_an_alignment_that_helps_after_fine_tuning() -> None:
    """Where tasks differ much, aligning raises the barrier and still makes the better start: judge it as it is used."""
    agents, models = strangers_of_random_phase(0, 1000)
    found = align(RANDOM_PHASE, models, agents)
    assert found.applied
    assert found.adapted_after < found.adapted_before
    never = align(RANDOM_PHASE, models, agents, mode="never")
    assert not never.applied
    assert never.adapted_before == never.adapted_after == found.adapted_before


@pytest.mark.slow
def test_trial_26_auto_is_right_in_nine_of_ten_seeds() -> None:
    assert sum(auto_is_right(seed, 5000) for seed in range(10)) >= 9
