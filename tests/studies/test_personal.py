"""Personal evaluation: every agent on test samples of its own, in the folder, summary, page and terminal."""

import csv
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.cli.screen import show_summary
from fewjoule.randomness import key_for
from fewjoule.reporting import write_report
from fewjoule.reporting.run_folder import PERSONAL, Summary
from fewjoule.studies.prepare import prepare
from fewjoule.studies.settings import make_study
from fewjoule.studies.summary import spread_of
from fewjoule.training.adapt import adapt, adapt_each

SEEDS = [0, 1, 2]


def small(**changes):
    table = {
        "name": "small",
        "seeds": SEEDS,
        "family": {"kind": "sinusoid", "amplitudes": [2, 6, 10], "samples": 40, "validation": 0},
        "model": {"spec": "mlp:1-8-1"},
        "local": {"max_steps": 100, "batch": 20},
        "evaluation": {"tasks": 3, "queries": 10, "steps": [0, 2], "headline": 2, "own_test": 0.25},
        "energy": {"meter": "operations"},
        "methods": [
            {"name": "average", "method": "average"},
            {"name": "random", "method": "random"},
            {"name": "explodes", "method": "fedsgd", "rounds": 20, "learning_rate": 1e6, "batch": 20},
        ],
    }
    return make_study(table | changes, "small")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("personal") / "run"
    small().run(place)
    return place


def rows(folder):
    with (folder / "personal.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_every_agent_is_judged_on_samples_that_nobody_learnt_from(folder):
    """Recomputed by hand from the meta-models of the folder: agent by agent, by plain gradient steps."""
    prepared = prepare(small())
    assert prepared.agents.sizes == [30, 30, 30]
    found = {(r["method"], int(r["seed"]), r["agent"], int(r["steps"])): float(r["loss"]) for r in rows(folder)}
    assert len(found) == 2 * 3 * 3 * 2  # a diverged method has no rows
    model, (train, _) = prepared.model, prepared.agents.data
    for i, seed in enumerate(SEEDS):
        vector = fj.read_model(folder / "meta" / f"average-{seed}.safetensors").vector
        for a, agent in enumerate(prepared.agents.names):
            own, test = ((s.x[i, a], s.y[i, a]) for s in (train, prepared.tests))
            assert not set(np.asarray(own[0]).ravel()) & set(np.asarray(test[0]).ravel())
            at = vector
            for steps in (0, 1, 2):
                if steps != 1:
                    loss = float(jnp.mean((model.apply(at, test[0]) - test[1]) ** 2))
                    assert found["average", seed, agent, steps] == pytest.approx(loss, rel=1e-4)
                at = at - 0.01 * _slope(model, at, *own)


def _slope(model, vector, x, y):
    return jax.grad(lambda v: jnp.mean((model.apply(v, x) - y) ** 2))(vector)


@pytest.mark.slow
def test_what_an_agent_has_alone_is_its_local_model(folder):
    prepared = prepare(small())
    local = fj.train_locally(prepared.model, prepared.agents, seed=SEEDS, max_steps=100, batch=20)
    for i, seed in enumerate(SEEDS):
        for a, agent in enumerate(prepared.agents.names):
            test = prepared.tests.x[i, a], prepared.tests.y[i, a]
            loss = float(jnp.mean((prepared.model.apply(local.models[i, a], test[0]) - test[1]) ** 2))
            alone = {r["alone_loss"] for r in rows(folder) if r["agent"] == agent and int(r["seed"]) == seed}
            assert [float(v) for v in alone] == [pytest.approx(loss, rel=1e-4)]


@pytest.mark.slow
def test_the_summary_holds_the_distribution_over_agents(folder):
    summary = Summary.read(folder)
    mine = {(int(r["seed"]), r["agent"]): r for r in rows(folder) if r["method"] == "average" and r["steps"] == "2"}
    values = np.array([[float(mine[s, a]["loss"]) for a in summary.agents] for s in SEEDS])
    alone = np.array([[float(mine[s, a]["alone_loss"]) for a in summary.agents] for s in SEEDS])
    spread = summary.methods["average"].personal[2]
    assert spread.mean == pytest.approx(values.mean(), rel=1e-5)
    assert spread.median == pytest.approx(np.median(values, 1).mean(), rel=1e-5)
    assert spread.worst_tenth == pytest.approx(values.max(1).mean(), rel=1e-5)
    assert spread.better_than_alone == pytest.approx((values < alone).mean())
    assert summary.alone.mean == pytest.approx(alone.mean(), rel=1e-5)
    assert summary.methods["explodes"].personal == {}
    assert len(PERSONAL.read(folder, summary)["loss"]) == 36


def test_the_worst_tenth_is_that_of_the_agents_and_a_tie_is_half_a_win():
    values = np.tile(np.arange(20.0) / 20, (3, 1))
    accuracy, loss = (spread_of(values, metric) for metric in ("accuracy", "loss"))
    assert accuracy.worst_tenth == pytest.approx((0 + 0.05) / 2)
    assert loss.worst_tenth == pytest.approx((0.9 + 0.95) / 2)
    assert accuracy.better_than_alone is None
    assert spread_of(values, "accuracy", values).better_than_alone == 0.5
    assert spread_of(values, "accuracy", values - 1).better_than_alone == 1
    assert spread_of(values, "loss", values - 1).better_than_alone == 0
    assert spread_of(np.array([[1.0, np.inf]]), "loss").mean is None


@pytest.mark.slow
def test_terminal_and_page_show_it_and_a_folder_without_is_read_as_before(folder, tmp_path, capsys):
    show_summary(folder)
    text = capsys.readouterr().out
    assert "on 3 agents' own test samples, after 2 steps" in text
    assert "alone (own local model)" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "What every agent gets" in (folder / "report.html").read_text("utf-8")
    old = shutil.copytree(folder, tmp_path / "old")
    (old / "personal.csv").unlink()
    summary = Summary.read(folder)
    methods = {k: m.model_copy(update={"personal": {}}) for k, m in summary.methods.items()}
    (old / "summary.json").write_text(summary.model_copy(update={"alone": None, "methods": methods}).to_json())
    write_report(old)
    assert "What every agent gets" not in (old / "report.html").read_text("utf-8")
    show_summary(old)
    assert "own test samples" not in capsys.readouterr().out


def test_one_model_for_all_equals_each_agents_own():
    model = fj.mlp([1, 4, 1])
    tasks = fj.sinusoid.new_tasks(3, shots=5, queries=6)
    one = model.init(key_for(0, "start"))
    same = adapt(model, one, tasks, steps=[0, 3])
    each = adapt_each(model, jnp.stack([one] * 3), tasks, steps=[0, 3])
    assert np.allclose(same.loss, each.loss, rtol=1e-5)
    other = adapt_each(model, jnp.stack([one, 2 * one, jnp.full_like(one, jnp.nan)]), tasks, steps=[0, 3])
    assert np.allclose(other.loss[0], same.loss[0], rtol=1e-5)
    assert not np.allclose(other.loss[1], same.loss[1])
    assert np.isnan(other.loss[2]).all()
    with pytest.raises(fj.InputError, match="one model per task: 3, got 2"):
        adapt_each(model, jnp.stack([one] * 2), tasks)


@pytest.mark.slow
def test_a_share_of_the_agents_takes_part_in_a_round(tmp_path):
    settings = {"method": "fedavg", "rounds": 6, "local_steps": 2, "batch": 10, "start": "random"}
    methods = [{"name": "all", **settings}, {"name": "some", **settings, "participation": 0.34}]
    evaluation = {"tasks": 3, "queries": 10, "steps": [0, 2], "headline": 2, "worth_samples": 7}
    run = small(methods=methods, evaluation=evaluation).run(tmp_path / "run")
    sent = {
        name: [r for r in run.ledger if (r.method, r.phase) == (name, "uplink") and r.bits] for name in ("all", "some")
    }
    assert [len(sent[name]) for name in ("all", "some")] == [3 * 6 * 3, 3 * 6]  # seeds, rounds, agents
    assert len({(r.seed, r.round) for r in sent["some"]}) == 3 * 6
    assert len({r.agent for r in sent["some"]}) == 3
    work = {r.method: r.flops for r in run.ledger if r.phase == "computation"}
    assert work["all"] == 3 * work["some"]
