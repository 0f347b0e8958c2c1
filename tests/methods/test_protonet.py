"""Prototypical networks beside NumPy: episodes, loss, gradient, and adaptation in one forward pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.energy.counts import count
from fewjoule.methods.method import Broadcast
from fewjoule.models.parts import features, with_prototypes
from fewjoule.simulation.rules import loss_of
from fewjoule.simulation.work import adaptation_flops
from fewjoule.tasks.episodes import episode
from fewjoule.tasks.samples import AgentData, Samples

MODEL = fj.mlp([2, 5, 4], loss="cross_entropy")
METHOD = fj.protonet(rounds=2, ways=3, shots=2, queries=2)


def some(n, classes, seed=0, padding=0):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(n, 2)).astype(np.float32), rng.integers(0, classes, n).astype(np.int32)
    x, y = np.concatenate([x, x[:1].repeat(padding, 0)]), np.concatenate([y, y[:1].repeat(padding)])
    return Samples(jnp.asarray(x), jnp.asarray(y), jnp.concatenate([jnp.ones(n), jnp.zeros(padding)]))


@pytest.mark.parametrize("seed", range(5))
def test_an_episode_is_drawn_from_the_agents_own_classes(seed):
    samples = some(30, 4, seed)
    support, query = episode(samples, jax.random.key(seed), ways=3, shots=2, queries=4)
    own = {tuple(x): int(y) for x, y in zip(np.asarray(samples.x).tolist(), samples.y, strict=True)}
    taken, classes = [], {}
    for part, each in ((support, 2), (query, 4)):
        for x, y, mask in zip(np.asarray(part.x).tolist(), part.y.tolist(), part.mask, strict=True):
            if mask:
                taken.append(tuple(x))
                classes.setdefault(y, set()).add(own[tuple(x)])
        assert all(part.mask[np.asarray(part.y) == k].sum() <= each for k in range(3))
    assert len(set(taken)) == len(taken)  # no sample twice, so support and query are disjoint
    assert all(len(found) == 1 for found in classes.values())  # a number stands for one class
    assert len({next(iter(found)) for found in classes.values()}) == len(classes) == 3
    assert support.mask.sum() >= 3


@pytest.mark.slow
def test_padding_changes_no_episode_and_missing_classes_are_padding():
    plain, padded = (episode(some(9, 2, padding=p), jax.random.key(1), ways=3, shots=2, queries=9) for p in (0, 7))
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(padded), strict=True):
        np.testing.assert_array_equal(one, other)
    support, query = plain
    assert support.mask.reshape(3, 2)[2].sum() == 0  # there are two classes only
    assert query.mask.sum() + support.mask.sum() == 9  # all samples are used where there are fewer than asked for


def test_an_episode_chooses_among_its_own_numbers_where_agents_choose_among_their_classes():
    samples = some(12, 3)._replace(allowed=jnp.array([False, True, True, True]))
    for part in episode(samples, jax.random.key(0), ways=2, shots=2, queries=2):
        assert part.allowed.tolist() == [True, True, False, False]
    assert episode(some(12, 3), jax.random.key(0), ways=2, shots=2, queries=2)[0].allowed is None


def numpy_loss(body, support, query):
    """-log softmax(-||f - c_k||²) of the query, in float64."""
    w, b = body[:10].reshape(2, 5), body[10:15]
    f, q = (np.maximum(np.asarray(s.x, np.float64) @ w + b, 0) for s in (support, query))
    present = [k for k in range(4) if (np.asarray(support.mask) * (np.asarray(support.y) == k)).sum()]
    belongs = {k: (np.asarray(support.y) == k) & (np.asarray(support.mask) > 0) for k in present}
    logits = -((q[:, None] - np.stack([f[belongs[k]].mean(0) for k in present])) ** 2).sum(-1)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    real = np.asarray(query.mask) > 0
    return -np.mean([log_p[i, present.index(int(query.y[i]))] for i in np.flatnonzero(real)])


@pytest.mark.slow
def test_the_message_is_the_gradient_of_the_paper_by_finite_differences():
    data, key = AgentData(some(20, 3), some(4, 3)), jax.random.key(5)
    own = MODEL.init(jax.random.key(2))
    _, gradient, info = METHOD.agent(loss_of(METHOD, MODEL), own, Broadcast(own[:15]), data, key)
    support, query = episode(data.train, key, ways=3, shots=2, queries=2)
    body = np.asarray(own[:15], np.float64)
    np.testing.assert_allclose(info.loss, numpy_loss(body, support, query), rtol=1e-5)
    due = [
        (numpy_loss(body + step, support, query) - numpy_loss(body - step, support, query)) / 2e-6
        for step in 1e-6 * np.eye(15)
    ]
    np.testing.assert_allclose(gradient, due, rtol=1e-3, atol=1e-5)


def test_a_new_device_takes_no_step_and_pays_one_forward_pass():
    rng = np.random.default_rng(3)
    tasks = fj.make_tasks(
        [(rng.normal(size=(6, 2)), [0, 0, 1, 1, 2, 2])] * 2, [(rng.normal(size=(5, 2)), [0, 1, 2, 0, 1])] * 2
    )
    vector = MODEL.init(jax.random.key(1))
    found = fj.adapt(MODEL, vector, tasks, steps=[0, 1, 10], tuning=METHOD.tuning, keep_models=True)
    assert (found.accuracy == found.accuracy[:, :1]).all()
    assert (found.loss == found.loss[:, :1]).all()
    support = jax.tree.map(lambda a: a[0], tasks.support)
    np.testing.assert_allclose(found.models[0], with_prototypes(MODEL, vector, support), rtol=1e-6)
    forward = count(lambda v, x: features(MODEL, v, x), vector, support.x).flops
    spent = adaptation_flops(MODEL, tasks, 10, 0.01, tuning=METHOD.tuning)
    step = adaptation_flops(MODEL, tasks, 1, 0.01)
    assert forward < spent
    assert spent == adaptation_flops(MODEL, tasks, 0, 0.01, tuning=METHOD.tuning)
    assert adaptation_flops(MODEL, tasks, 10, 0.01) > 9 * step


def test_only_the_body_travels_and_regression_is_refused(agents):
    pairs = [(np.asarray(some(20, 3, s).x), np.asarray(some(20, 3, s).y)) for s in range(3)]
    run = fj.simulate(METHOD, MODEL, fj.make_agents(pairs), seed=0)
    assert (run.uplink_bits[1:] == 32 * 15).all()
    assert not run.uplink_bits[0].any()
    with pytest.raises(fj.InputError, match="class means are for classes"):
        fj.simulate(METHOD, fj.mlp([1, 3, 1]), agents)
