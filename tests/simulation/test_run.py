"""What a run costs, from Python: against the link's and the device's own formulas."""

import numpy as np
import pytest

import fewjoule as fj
from fewjoule.energy import Ledger, device, link
from fewjoule.simulation.work import agent_flops, data_of


@pytest.fixture(scope="module")
def run(model, agents, local_models):
    return fj.simulate(fj.meta_backward(rounds=3, radius=0.1), model, agents, local_models)


def test_radio_is_the_links_formula_and_arithmetic_the_devices(run, model, agents):
    radio, processor = link("lora-sf7"), device("cortex-m7")
    ledger = run.energy(link="lora-sf7", device="cortex-m7")
    bits = 32 * model.size
    assert ledger.total(phase="uplink") == pytest.approx(3 * 4 * radio.energy_joules(bits))
    flops = agent_flops(run.method, model, data_of(agents))
    assert ledger.total(phase="computation") == pytest.approx(3 * processor.energy_joules(flops))
    each = ledger.by_agent()
    assert list(each) == ["red", "green", "blue"]
    assert each["red"]["modelled"] == pytest.approx(processor.energy_joules(flops))
    assert sum(kinds["analytic"] for kinds in each.values()) == pytest.approx(
        ledger.total(phase=("uplink", "downlink"))
    )
    assert ledger == run.energy(link=radio, device=processor)


def test_a_link_that_does_not_know_receiving_charges_none(run):
    assert not list(run.energy(link="paper").select(phase="downlink"))
    assert list(run.energy(link="wifi").select(phase="downlink"))


def test_an_agent_that_was_away_did_not_compute(model, agents, local_models):
    there = np.array([[1, 1, 0], [1, 0, 0]])
    run = fj.simulate(fj.fedsgd(rounds=2), model, agents, local_models, availability=there)
    flops = {row.agent: row.flops for row in run.energy().select(phase="computation")}
    assert flops["red"] == 2 * flops["green"]
    assert "blue" not in flops


def test_several_seeds_are_rows_of_their_own(model, agents, local_models):
    run = fj.simulate(fj.fedsgd(rounds=2), model, agents, local_models, seed=[3, 5])
    ledger = run.energy()
    assert {row.seed for row in ledger} == {3, 5}
    assert "means over 2 seeds" in repr(ledger)
    assert ledger.select(seed=3).total(phase="uplink") == ledger.select(seed=5).total(phase="uplink")


def test_the_ledger_reads_well_and_comes_back_from_its_file(run, tmp_path):
    ledger = run.energy()
    shown = repr(ledger)
    assert shown.splitlines()[0].startswith("Ledger of ")
    assert "uplink" in shown
    assert "analytic" in shown
    assert "<table>" in ledger._repr_html_()
    ledger.to_csv(tmp_path / "energy.csv")
    assert Ledger.from_csv(tmp_path / "energy.csv") == ledger


def test_results_say_what_they_are_in_a_line(run, model, agents, local_models):
    tasks = fj.sinusoid.new_tasks(4)
    adapted = fj.adapt(model, run.meta, tasks, steps=[0, 1])
    for thing, words in (
        (run, "meta_backward, 3 agents, 3 rounds, seed 0"),
        (agents, "3: red, green, blue; 13 to 20 samples each"),
        (adapted, "4 tasks: median loss"),
        (fj.train_locally(model, agents, max_steps=2), "stopped 3 by limit"),
    ):
        assert words in repr(thing)
        assert len(repr(thing)) < 300
    for chart in (run.plot(), adapted.plot(), run.energy().plot()):
        assert chart.to_dict()["$schema"]
