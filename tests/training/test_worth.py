"""What a starting model is worth: losses against plain NumPy, and what is said of them."""

import numpy as np
import pytest

import fewjoule as fj
from fewjoule.training import worth
from fewjoule.training.worth import Worth, adapted_loss, constant_loss

RNG = np.random.default_rng(0)
SIZES = (3, 7, 5)  # so that there is padding
BY = {"learning_rate": 0.1, "optimiser": "sgd"}


def test_the_constant_of_a_regression_is_each_agents_mean():
    pairs = [(RNG.normal(size=(n, 2)), RNG.normal(size=(n, 2))) for n in SIZES]
    found = constant_loss(fj.mlp([2, 2]), fj.make_agents(pairs))
    assert float(found) == pytest.approx(np.mean([y.var(0).mean() for _, y in pairs]), rel=1e-5)


def test_the_constant_of_a_classification_is_each_agents_shares():
    pairs = [(np.zeros((n, 2)), RNG.integers(0, 3, n)) for n in SIZES]
    found = constant_loss(fj.mlp([2, 3], loss="cross_entropy"), fj.make_agents(pairs))
    shares = [np.unique(y, return_counts=True)[1] / len(y) for _, y in pairs]
    assert float(found) == pytest.approx(np.mean([-(p * np.log(p)).sum() for p in shares]), rel=1e-5)


@pytest.mark.parametrize("seeds", [None, [4, 5]])
def test_the_loss_is_that_after_fine_tuning_on_an_agents_own_samples(seeds):
    model = fj.mlp([1, 3, 1])
    metas = RNG.normal(size=(2, model.size)).astype(np.float32)
    agents = fj.sinusoid.agents([1, 2], samples=5, validation=0, seed=3 if seeds is None else seeds)
    found = adapted_loss(model, metas, agents, steps=3, **BY)
    for i, loss in enumerate(found):
        own = agents.data.train if seeds is None else type(agents.data.train)(*(a[i] for a in agents.data.train[:3]))
        expected = fj.adapt(model, metas[i], fj.Tasks(own, own), steps=[3], **BY).mean()[3]
        assert loss == pytest.approx(expected, rel=1e-5)


def test_an_overflow_is_infinite():
    model = fj.mlp([1, 3, 1])
    agents = fj.sinusoid.agents([1, 2], samples=5, validation=0)
    found = adapted_loss(model, np.ones((1, model.size)), agents, steps=50, learning_rate=1e9, optimiser="sgd")
    assert found.tolist() == [np.inf]


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        # constant, random, start, final
        ((9.0, 8.0, 2.0, 1.0), []),
        ((9.0, 8.0, 2.0, 2.1), []),  # within the noise
        ((9.0, 8.0, 2.0, 4.1), ["worse than its own start"]),
        ((9.0, 8.0, 8.9, 8.9), ["no better than a constant"]),
        ((9.0, 7.0, 6.8, 6.8), ["no better than a random start"]),
        ((9.0, 7.0, 7.0, 7.0), []),  # it is the random start
        ((9.0, 8.0, 2.0, np.inf), ["no better than a constant", "worse than its own start"]),
        ((0.0, 8.0, 2.0, 1.0), []),  # one class each: nothing can be better
    ],
)
def test_trial_27_a_start_that_is_worth_nothing_is_said(losses, words):
    remarks = Worth(10, *losses).remarks()
    assert [remark.partition(":")[0] for remark in remarks] == words
    assert all("after 10 fine-tuning steps on the agents' samples" in remark for remark in remarks)


def test_agents_in_groups_have_the_mean_of_all_at_once(monkeypatch):
    model, by = fj.mlp([1, 5, 1]), {"steps": 2, **BY}
    metas = RNG.normal(size=(1, model.size)).astype(np.float32)
    agents = fj.sinusoid.agents([1, 2, 4], samples=6, validation=0)
    each = [adapted_loss(model, metas, agents.select([i]), **by) for i in range(3)]
    monkeypatch.setattr(worth, "TOGETHER_BYTES", 1)
    np.testing.assert_allclose(adapted_loss(model, metas, agents, **by), np.mean(each, 0), rtol=1e-5)

    assert adapted_loss(model, metas, agents, **by, most=3) != adapted_loss(model, metas, agents, **by)
