"""Means that hold where some agents send anything: against NumPy and SciPy, in limit cases, and under attack."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import trim_mean

import fewjoule as fj
from fewjoule.simulation.plan import cost
from fewjoule.simulation.rules import combine, random_start, start_of
from fewjoule.studies.settings import MethodEntry

AVERAGING = [name for name, build in fj.METHODS.items() if "combine" in fj.method(name).describe()]


def oracle(each: np.ndarray, how: str) -> np.ndarray:
    return np.median(each, 0) if how == "median" else trim_mean(each, float(how.split(":")[1]), 0)


@pytest.mark.parametrize("how", ["median", "trimmed:0.1", "trimmed:0.25", "trimmed:.45"])
@given(agents=st.sampled_from([1, 2, 7, 10]), seed=st.integers(0, 99), absent=st.integers(0, 4))
@settings(max_examples=8, deadline=None)
def test_numpy_and_scipy_agree(how, agents, seed, absent):
    rng = np.random.default_rng(seed)
    each = {"model": rng.normal(size=(agents, 5)).astype(np.float32), "norm": rng.normal(size=agents)}
    here = rng.permutation(agents) >= min(absent, agents - 1)
    given_all = combine(each, None, None, how)
    given_some = jax.jit(lambda e, h: combine(e, None, h, how))(each, here)
    for name, value in each.items():
        np.testing.assert_allclose(given_all[name], oracle(value, how), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(given_some[name], oracle(value[here], how), rtol=1e-5, atol=1e-6)


def test_trimming_nothing_is_the_mean_and_nobody_gives_0():
    each, here = jnp.asarray(np.random.default_rng(0).normal(size=(7, 9))), jnp.arange(7) > 2
    np.testing.assert_array_equal(combine(each, None, here, "trimmed:0"), combine(each, None, here))
    np.testing.assert_array_equal(combine(each, None, jnp.zeros(7, bool), "median"), np.zeros(9))


def test_shares_are_exact():
    """0.29 of 100 is 29, which binary fractions make 28.999..."""
    each = np.zeros((100, 1), np.float32)
    each[:29] = 1e6
    assert combine(each, None, None, "trimmed:0.29") == 0
    assert combine(each, None, None, "trimmed:0.28") > 0


@pytest.mark.parametrize("how", ["median", "trimmed:0.2"])
def test_nan_of_one_agent_is_cut_like_any_other_outlier(how):
    each = np.arange(5, dtype=np.float32)[:, None] + np.zeros(3, np.float32)
    each[4] = np.nan
    here = jnp.asarray([True, True, True, False, True])
    assert np.isfinite(combine(each, None, None, how)).all()
    assert np.isfinite(combine(each, None, here, "median")).all()


@pytest.mark.parametrize("sent", [9000.0, -9000.0, np.inf])
def test_one_poisoned_agent_of_ten_hardly_moves_the_median_model(sent):
    rng = np.random.default_rng(1)
    honest = rng.normal(size=(10, 50)).astype(np.float32)
    poisoned = honest.copy()
    poisoned[3] = sent
    for how in ("median", "trimmed:0.1"):
        moved = np.abs(combine(poisoned, None, None, how) - combine(honest, None, None, how))
        assert moved.max() < 1  # within the agents' own spread
    assert np.abs(combine(poisoned) - combine(honest)).min() > 800


def ten_agents():
    x = np.linspace(-2, 2, 8).astype(np.float32)
    return fj.make_agents([(x, 1 + 0.1 * i * x) for i in range(10)])


@pytest.mark.parametrize("name", ["fedavg", pytest.param("meta_backward", marks=pytest.mark.slow)])
def test_a_poisoned_start_moves_a_robust_run_little(model, name):
    """The uploaded models of one agent in ten are 9000: the average runs away, the median stays with the others."""
    agents = ten_agents()
    local = model.init(jax.random.key(0)) + 0.05 * jax.random.normal(jax.random.key(1), (10, model.size))
    settings = {"rounds": 3, "learning_rate": 0.001, "batch": 4} | ({"radius": "linear"} if name != "fedavg" else {})
    metas = {}
    for how in ("mean", "median"):
        for models in (local, local.at[3].set(9000.0)):
            run = fj.simulate(
                fj.method(name, combine=how, **settings), model, agents, models, seed=0, diverged_at=np.inf
            )
            metas[how, bool(models is local)] = run.meta
    assert np.abs(metas["median", True] - metas["median", False]).max() < 0.2
    assert not np.abs(metas["mean", True] - metas["mean", False]).max() < 100


def test_the_spread_is_of_those_that_are_kept(model):
    models = jnp.zeros((5, model.size)).at[:, 0].set(jnp.asarray([0.0, 1.0, 2.0, 3.0, 1000.0]))
    spread = {how: float(start_of(fj.fedavg(combine=how), models, random_start(model, jnp.uint32(0))).spread) for how in
              ("mean", "median", "trimmed:0.2")}  # fmt: skip
    assert spread["mean"] > 1e5
    assert spread["median"] == 1.0  # distances 2, 1, 0, 1, 998 from the median
    assert spread["trimmed:0.2"] == 4.0


@pytest.mark.parametrize("name", AVERAGING)
def test_every_method_that_averages_takes_it(name):
    built = fj.method(name, combine="trimmed:0.4")
    assert built.combine == "trimmed:0.4"
    described = built.describe()
    assert fj.method(described.pop("method"), **described) is built
    model = fj.mlp([1, 4, 2], loss="cross_entropy")
    plain = cost(fj.method(name), model, fj.energy.link("paper"))
    assert cost(built, model, fj.energy.link("paper")) == plain  # nothing more is sent


def test_averaging_methods_are_all_but_these():
    assert set(fj.METHODS) - set(AVERAGING) == {"local", "random", "lean", "fisher", "answers", "invented"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"combine": "middle"}, "combine must be 'mean', 'median' or 'trimmed:SHARE' .*got 'middle'"),
        ({"combine": "trimmed:0.5"}, "from 0 to below 0.5.*got 'trimmed:0.5'"),
        ({"combine": "trimmed:-0.1"}, "combine must be"),
        ({"combine": "trimmed:1/0"}, "combine must be"),
        ({"combine": 3}, "combine must be .*got 3"),
        ({"combine": "median", "weighting": "samples"}, "counts all agents alike.*set weighting='agents'"),
        ({"combine": "median", "codec": "top-k:0.1:2"}, "top-k sends most weights of most agents as 0"),
        ({"combine": "median", "first_codec": "top-k:0.1:2"}, "choose another codec"),
    ],
)
def test_what_makes_no_sense_is_refused_when_built(settings, words):
    with pytest.raises(fj.InputError, match=words):
        fj.method("fedavg", **settings)


def test_study_files_have_it():
    entry = MethodEntry(name="robust", method="fedavg", combine="trimmed:0.2")
    assert entry.build() is fj.fedavg(combine="trimmed:0.2")


def test_trimming_nothing_may_go_by_samples():
    assert fj.fedavg(combine="trimmed:0", weighting="samples").weighting == "samples"


@pytest.mark.parametrize(("how", "least"), [("median", 3), ("trimmed:0.1", 10), ("trimmed:0.3", 4)])
def test_too_few_agents_are_refused_before_the_run(model, how, least):
    method, agents = fj.fedavg(rounds=1, start="random", combine=how), ten_agents()
    with pytest.raises(fj.InputError, match=f"out of fewer than {least} agents, and a round has {least - 1}"):
        fj.simulate(method, model, agents, participation=(least - 1) / 10)
