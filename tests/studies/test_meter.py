"""The meter of a study on a tree of counters: its joules are the counter's, its FLOPs are those of the same work."""

import json

import jax
import pytest

from fewjoule.energy import count
from fewjoule.errors import InputError
from fewjoule.studies.settings import load_study
from tests.energy.powercap_tree import JOULES_A_RUN, metered
from tests.energy.recomputed import recomputed

pytestmark = pytest.mark.slow

STUDY = """
name = "metered"
seeds = [0, 1]
[family]
kind = "sinusoid"
amplitudes = [2, 6, 10]
samples = 30
validation = 10
[model]
spec = "mlp:1-40-1"
[local]
max_steps = 1200
batch = 5
gradient_tolerance = 0.0
[evaluation]
tasks = 6
queries = 50
steps = [0, 3, 20]
headline = 3
optimiser = "adam"
[energy]
link = "wifi"
require_measured = true
[[methods]]
name = "few"
method = "fedavg"
rounds = 3
local_steps = 2
[[methods]]
name = "many"
method = "fedavg"
rounds = 3
local_steps = 40
"""
CHECKS = 3  # of 1200 steps, one after each 400
SHARED = 0.01  # what is the same for all agents (the size of a mini-batch, Adam's bias) is computed once for all


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The run's folder, its ledger, and its metered programs by what they were for."""
    place = tmp_path_factory.mktemp("metered")
    (place / "study.toml").write_text(STUDY)
    with pytest.MonkeyPatch.context() as patch:
        programs = metered(place / "powercap", patch)
        ledger = load_study(str(place / "study.toml")).run(place / "run").ledger
    names = ["pretraining", ("few", "computation"), "adaptation", ("many", "computation")]  # new devices do the same
    return place / "run", ledger, dict(zip(names, programs, strict=True))


def test_measured_joules_are_those_of_the_counter(run):
    _, ledger, _ = run
    shares = {"pretraining": 2, "computation": 2, "adaptation": 6}  # seeds, seeds, new tasks
    rows = [row for row in ledger if row.phase in shares]
    assert len(rows) == 2 * 2 * 3
    for row in rows:
        assert row.joules == pytest.approx(JOULES_A_RUN / shares[row.phase])
        assert row.kind == "measured"
        assert row.source.startswith("powercap package-0; one reading shared by")


def test_trial_6_adaptation_is_charged_the_flops_of_the_program_that_was_metered(run):
    _, ledger, programs = run
    for name in ("few", "many"):
        charged = next(row.flops for row in ledger if (row.method, row.phase) == (name, "adaptation"))
        assert programs["adaptation"].flops() == pytest.approx(6 * charged, rel=SHARED)


def test_a_method_is_charged_the_flops_of_the_rounds_that_were_metered(run):
    _, ledger, programs = run
    executed = {name: programs[name, "computation"].flops() for name in ("few", "many")}
    charged = {
        name: sum(row.flops for row in ledger if (row.method, row.phase) == (name, "computation")) for name in executed
    }
    # What runs beside the agents' work (the server's mean, the trace) does not grow with it: no step of 38 is missed.
    assert executed["many"] - executed["few"] == pytest.approx(charged["many"] - charged["few"], rel=SHARED)
    assert executed["many"] == pytest.approx(charged["many"], rel=0.1)


def test_pretraining_is_charged_the_flops_of_the_training_that_was_metered(run, monkeypatch):
    _, ledger, programs = run
    charged = sum(row.flops for row in ledger if (row.method, row.phase) == ("few", "pretraining"))
    program = programs["pretraining"]
    with pytest.raises(InputError, match="while loop"):  # its length depends on the data, but here it is known
        program.flops()
    monkeypatch.setattr(
        jax.lax,
        "while_loop",
        lambda going, body, first: jax.lax.scan(lambda carry, _: (body(carry), None), first, length=CHECKS)[0],
    )
    executed = count(lambda *arrays: program._jitted.__wrapped__(*program._static, *arrays), *program.arrays).flops
    assert executed == pytest.approx(charged, rel=SHARED)


def test_trial_7_the_summary_shows_what_the_rows_of_the_ledger_add_up_to(run):
    folder, ledger, _ = run
    methods = json.loads((folder / "summary.json").read_text())["methods"]
    shown = {
        (name, phase, kind): amounts
        for name, method in methods.items()
        for phase, kinds in method["energy"].items()
        for kind, amounts in kinds.items()
    }
    assert shown == recomputed(folder / "energy.csv", seeds=2)
    agents = {row.agent for row in ledger if row.phase == "uplink"}
    added_up = sum(row.seconds for row in ledger if (row.method, row.phase) == ("few", "uplink")) / 2
    assert shown["few", "uplink", "analytic"]["seconds"] == pytest.approx(added_up / len(agents))
    assert len(agents) == 3


@pytest.mark.parametrize("meter", ["cpu-time", "operations"])
def test_trial_10_a_study_that_requires_measured_joules_refuses_a_model_before_it_begins(meter):
    with pytest.raises(InputError, match=f"meter '{meter}' is a model; choose the meter auto or powercap"):
        load_study("sinusoid", settings={"energy.meter": meter, "energy.require_measured": True})
