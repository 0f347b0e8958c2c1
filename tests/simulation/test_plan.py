"""Costs before the run: plain methods exactly, coded ones never less than the run; lean keeps to its budget."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from fewjoule import METHODS, InputError, Model, lean, method, mlp, simulate, sinusoid
from fewjoule.cli import app
from fewjoule.cli.plan import read_joules
from fewjoule.energy import LINKS, device, link
from fewjoule.methods.lean import (
    MOMENTUM,
    MOST_ROUNDS,
    TARGETS,
    answers_joules,
    choose,
    medium,
    radio_joules,
    step_joules,
)
from fewjoule.simulation.plan import cost, most_bits, plan
from fewjoule.simulation.work import agent_flops, data_for, method_flops

MODEL = mlp([1, 8, 1])
AGENTS = sinusoid.agents(samples=20, validation=5)
LOCAL = np.random.default_rng(0).standard_normal((3, MODEL.size)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("meta_backward", {"rounds": 2}), ("fisher", {}), ("fedsgd", {"rounds": 1, "codec": "quantise:3"}),
        pytest.param(
            "fedavg",
            {"rounds": 2, "local_steps": 2, "codec": "top-k:0.3:2", "down_codec": "top-k:0.5:3"},
            marks=pytest.mark.slow,
        ),
        pytest.param("lean", {"weights": MODEL.size, "target": "match"}, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_plan_is_what_the_run_sends(name, given):
    chosen = method(name, **given)
    (up, down), flops = most_bits(chosen, MODEL), agent_flops(chosen, MODEL, data_for(MODEL, 20))
    run = simulate(chosen, MODEL, AGENTS, LOCAL)
    if any(c is not None and c.spec.startswith("top-k") for c in chosen.codecs):
        assert (run.uplink_bits <= up[:, None]).all()
        assert (run.downlink_bits <= down[:, None]).all()
        assert run.uplink_bits.sum() > 0.5 * 3 * up.sum()
    else:
        np.testing.assert_array_equal(run.uplink_bits, np.broadcast_to(up[:, None], run.uplink_bits.shape))
        np.testing.assert_array_equal(run.downlink_bits, np.broadcast_to(down[:, None], run.downlink_bits.shape))
    assert 3 * flops == method_flops(chosen, MODEL, AGENTS)


def test_cost_is_what_the_link_and_the_device_take():
    spent = cost(method("fedavg", rounds=2), MODEL, link("lora-sf7"), device("cortex-m4"))
    bits = 32 * MODEL.size
    assert spent.uplink_joules == pytest.approx(3 * link("lora-sf7").energy_joules(bits))
    assert spent.downlink_joules == pytest.approx(2 * link("lora-sf7").receive_joules(bits))
    assert spent.arithmetic_joules is not None
    assert spent.total_joules > spent.uplink_joules + spent.downlink_joules
    unknown = cost(method("fedavg", rounds=2), MODEL, link("paper"))
    assert unknown.downlink_joules is None
    assert unknown.arithmetic_joules is None
    assert unknown.total_joules == unknown.uplink_joules


@settings(max_examples=60, deadline=None)
@given(weights=st.integers(100, 10**6), name=st.sampled_from(sorted(LINKS)), scale=st.floats(0.05, 50))
def test_lean_keeps_to_its_budget_and_uses_it(weights, name, scale):
    radio = LINKS[name]
    one = choose(weights=weights, link=name, target="match")
    budget = scale * radio_joules(weights, radio, one.up, one.down, 0)
    smallest = radio_joules(weights, radio, "top-k:0.00078125:1", one.down, 0)
    if budget < smallest:
        with pytest.raises(InputError, match="must be at least"):
            choose(weights=weights, link=name, budget_joules=budget)
        return
    chosen = choose(weights=weights, link=name, budget_joules=budget)
    down = chosen.down or one.down
    assert radio_joules(weights, radio, chosen.up, down, chosen.rounds) <= budget
    if chosen.rounds < MOST_ROUNDS and scale >= 1:
        assert radio_joules(weights, radio, chosen.up, down, chosen.rounds + 1) > budget


def test_the_rule_of_lean():
    """Finer messages where a link's cost is per message; the offline training's tenth split among the rounds."""
    paper = choose(weights=1761, link="paper", target="match", training_steps=20_000)
    assert paper == (1, 2000, "top-k:0.1:2", "top-k:0.25:3", True, 0.0)
    assert choose(weights=1761, link="lte", target="better", training_steps=900) == (
        9,
        10,
        "quantise:6",
        "quantise:6",
        False,
        MOMENTUM,
    )
    assert choose() == choose(weights=1761, target="match")
    built = lean(weights=MODEL.size, target="better", training_steps=900)
    assert (built.name, built.rounds) == ("lean", TARGETS["better"])
    assert method(**{"name" if k == "method" else k: v for k, v in built.describe().items()}) == built


GRID = "range:-5:5"


@pytest.mark.parametrize(
    ("wish", "answers", "why"),
    [
        ({"questions": GRID}, True, "measured to be no worse than weights"),
        ({}, False, "no questions were given; with questions, answers cost 35.8 mJ at most"),
        ({"questions": GRID, "weights": 50_890}, False, "measured only at 1,000 to 10,000 weights"),
        ({"questions": GRID, "outputs": 10, "weights": 6442}, False, "up to 3 numbers per answer"),
        ({"questions": GRID, "outputs": 10}, False, "one round of weights costs"),  # 1000 against 2 x 176
        ({"questions": GRID, "weights": 20, "link": "lte"}, False, "weights fit"),
        ({"questions": GRID, "weights": 50_890, "budget_joules": 0.05}, True, "more than the budget; answers cost"),
        ({"questions": GRID, "budget_joules": 0.035, "weights": 100}, False, "more than the budget"),
        ({"questions": ((0.5,),) * 20, "link": "lora-sf7"}, True, "no worse"),
    ],
)  # fmt: skip
def test_weights_or_answers(wish, answers, why):
    chosen = medium(**{"weights": 1761, **wish})
    assert chosen.answers == answers
    assert why in chosen.reason


def test_a_budget_for_neither_says_what_both_need():
    with pytest.raises(InputError, match=r"at least 1.8 J .* or give questions \(answers cost 35.8 mJ at most\)"):
        medium(weights=10**6, budget_joules=0.01)
    with pytest.raises(InputError, match=r"take a cheaper link \(answers cost 35.8 mJ at most\)"):
        medium(weights=10**6, budget_joules=0.01, questions=GRID)
    with pytest.raises(InputError, match="questions needs weights"):
        lean(questions=GRID)


def test_lean_sends_what_the_rule_says():
    sent = lean(weights=1761, questions=GRID)
    assert (sent.name, sent.asks, sent.rounds) == ("lean", True, 1)
    assert sent == method(**{"name" if k == "method" else k: v for k, v in sent.describe().items()})
    assert not lean(weights=50_890, questions=GRID).asks
    assert lean(weights=50_890, questions=GRID, budget_joules=0.05).asks


@settings(max_examples=40, deadline=None)
@given(weights=st.integers(10, 10**6), name=st.sampled_from(sorted(LINKS)), scale=st.floats(0.01, 100))
def test_what_the_rule_takes_fits_the_budget(weights, name, scale):
    """Whatever the size and the link; answers are never dearer than the budget, and never dearer than weights."""
    radio = LINKS[name]
    asking = answers_joules(weights, radio, None, GRID, 1)
    budget = scale * asking
    wish = {"weights": weights, "link": name, "budget_joules": budget}
    try:
        chosen = medium(**wish, questions=GRID)
    except InputError:
        assert scale < 1
        return
    if chosen.answers:
        assert asking <= budget
        assert asking < radio_joules(weights, radio, "quantise:6", "quantise:6", 1)
    else:
        one = choose(**wish)
        assert radio_joules(weights, radio, one.up, one.down or "top-k:0.25:3", one.rounds) <= budget


def test_the_plan_recommends_by_the_rule():
    found = plan("mlp:1-40-40-1", agents=3, link="lora-sf7", budget_joules=0.01, questions=GRID)
    assert found.recommended == "answers"
    row = next(row for row in found.rows if row["method"] == "answers")
    assert row["fits"]
    assert row["total_joules"] == pytest.approx(answers_joules(1761, LINKS["lora-sf7"], None, GRID, 1))
    assert "Recommended: answers (" in repr(found)


def test_own_questions_are_priced_on_the_way_down(tmp_path):
    """As the run charges them: 32 bits a number."""
    np.savez(tmp_path / "asked.npz", x=np.zeros((7, 1), np.float32))
    found = plan("mlp:1-8-1", agents=2, link="lora-sf7", questions=str(tmp_path / "asked.npz"))
    row = next(row for row in found.rows if row["method"] == "answers")
    assert row["downlink_bits"] == 7 * 32
    own = ((0.0,),) * 7
    assert row["total_joules"] == pytest.approx(answers_joules(25, LINKS["lora-sf7"], None, own, 1))


@settings(max_examples=40, deadline=None)
@given(weights=st.integers(200, 10**5), radio=st.sampled_from(["paper", "lora-sf7", "wifi"]), scale=st.floats(1, 40))
def test_with_a_device_arithmetic_costs_no_more_than_the_radio_and_all_fits(weights, radio, scale):
    budget = scale * radio_joules(weights, LINKS[radio], "top-k:0.1:2", "top-k:0.25:3", 0)
    chosen = choose(weights=weights, link=radio, budget_joules=budget, device="cortex-m4", training_steps=20_000)
    if not chosen.rounds:
        return
    each = step_joules(weights, device("cortex-m4"), 100)
    first, second = (radio_joules(weights, LINKS[radio], chosen.up, chosen.down, r) for r in (0, 1))
    assert chosen.local_steps == 1 or chosen.local_steps * each <= second - first
    whole = radio_joules(weights, LINKS[radio], chosen.up, chosen.down, chosen.rounds)
    assert whole + chosen.rounds * chosen.local_steps * each <= budget


def test_the_estimate_of_a_step_bounds_its_count():
    for sizes in ([1, 40, 40, 1], [784, 8, 8, 10], [784, 64, 10]):
        model = mlp(sizes, loss="cross_entropy")
        flops = agent_flops(method("fedavg", rounds=1, local_steps=100), model, data_for(model, 400))
        counted = device("cortex-m4").energy_joules(flops)
        estimate = 100 * step_joules(model.size, device("cortex-m4"), 100)
        assert counted <= estimate <= 2 * counted


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"budget_joules": 1.0, "weights": None}, "needs weights"), ({"weights": 0, "target": "best"}, "weights"),
        ({"device": "cortex-m4", "weights": None}, "device needs weights"), ({"device": "cortex"}, "did you mean"),
        ({"target": "match", "budget_joules": 1.0}, "not both"),
        ({"target": "mach"}, "did you mean 'match'"), ({"budget_joules": -1}, "budget_joules"),
        ({"budget_joules": 1e-9}, "must be at least"), ({"target": "match", "link": "papre"}, "did you mean 'paper'"),
    ],
)  # fmt: skip
def test_wrong_wishes(wrong, match):
    with pytest.raises(InputError, match=match):
        lean(**{"weights": 1761, **wrong})
    with pytest.raises(InputError, match="chooses its codecs itself"):
        method("lean", weights=10, target="match", codec="quantise:3")


@pytest.mark.parametrize(
    ("text", "joules"), [("5J", 5), ("200mJ", 0.2), ("1.5kJ", 1500), ("2", 2), ("1Wh", 3600), ("3 J", 3)]
)
def test_joules_are_read(text, joules):
    assert read_joules(text) == pytest.approx(joules)


@pytest.mark.parametrize("text", ["", "J", "5X", "-1J", "0", "nanJ", "1e999J"])
def test_wrong_joules(text):
    with pytest.raises(InputError, match="budget"):
        read_joules(text)


def test_the_command():
    arguments = ["plan", "--agents", "30", "--model", "mlp:784-64-10", "--link", "lora-sf7", "--budget", "5J"]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0
    assert "50,890 weights" in shown.stdout
    assert "  meta_backward      50    10.4 MB  1.65 kJ      603 J  2.25 kJ    9.49 h  no\n" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    counted = CliRunner().invoke(app, [*arguments, "--device", "cortex-m4"]).stdout
    assert " radio  computing " in counted
    assert max(map(len, counted.splitlines())) <= 80
    table = json.loads(CliRunner().invoke(app, [*arguments, "--json", "--device", "cortex-m4"]).stdout)
    rows = {row["method"]: row for row in table["rows"]}
    assert rows["meta_backward"]["uplink_bits"] == 51 * 32 * 50890 + 3 * 32
    assert not rows["meta_backward"]["fits"]
    assert rows["lean, budget"]["uplink_joules"] <= 5
    assert set(METHODS) - {"random", "invented", "local", "lean"} <= set(rows)
    assert table["recommended"] == "lean, budget"
    assert table["reason"].startswith("no questions were given")
    joules = [row["total_joules"] for row in table["rows"]]
    assert joules == sorted(joules)
    poor = CliRunner().invoke(app, [*arguments[:-1], "1uJ"])
    assert poor.exit_code == 0
    assert "Recommended: nothing fits (budget_joules must be at least" in poor.stdout
    assert "or give questions" in poor.stdout


@pytest.mark.slow
def test_the_command_prints_what_the_function_gives():
    asked = {"questions": "range:-1:1", "classes": 1}
    found = plan("mlp:1-8-1", agents=2, link=link("wifi"), budget_joules=0.04, device="cortex-m4", **asked)
    arguments = "plan --agents 2 --model mlp:1-8-1 --link wifi --budget 40mJ --device cortex-m4 --json"
    arguments += " --questions range:-1:1 --classes 1"
    table = json.loads(CliRunner().invoke(app, arguments.split()).stdout)
    same = ("weights", "agents", "rows", "recommended", "reason")
    assert [table[key] for key in same] == [getattr(found, key) for key in same]
    assert table["note"] == found.notes
    assert plan(mlp([1, 8, 1], loss="cross_entropy"), agents=2).rows == plan("mlp:1-8-1", agents=2).rows
    for wrong in ({"agents": 0}, {"samples": 0}, {"budget_joules": -1.0}, {"link": "wfi"}, {"device": "cortex"}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))}|did you mean"):
            plan("mlp:1-8-1", **({"agents": 2} | wrong))


def test_a_plan_needs_to_know_the_inputs():
    own = Model(lambda key: np.zeros(3, np.float32), lambda w, x: x * w.sum())
    with pytest.raises(InputError, match="needs to know the shape"):
        cost(method("fedavg"), own, link("paper"))
