"""`train` and `adapt` on a tree of counters: joules and FLOPs of the work that was metered, shown alike everywhere."""

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from fewjoule import files
from fewjoule.cli import app
from fewjoule.cli.screen import show_summary
from fewjoule.energy import Ledger
from fewjoule.models.weights import read_header
from tests.energy.powercap_tree import JOULES_A_RUN, metered
from tests.energy.recomputed import recomputed

pytestmark = pytest.mark.slow

MEASURED = {"pretraining": 1.0, "computation": 1.0, "adaptation": 1 / 2}  # the share of one new task of two
SHARED = 0.01  # what is the same for all tasks (Adam's bias) is computed once for all


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("metered")
    x = np.linspace(-5, 5, 30)
    for folder, amplitudes in {"agents": (2, 6, 10), "tasks": (3, 5)}.items():
        (place / folder).mkdir()
        for a in amplitudes:
            np.savez(place / folder / f"a{a}.npz", x=x, y=a * np.sin(x), x_test=x, y_test=a * np.sin(x))
    return place


@pytest.fixture(scope="module")
def command(place):
    """A command in this process, on a machine with a counter: what it said, and the programs it metered."""
    with pytest.MonkeyPatch.context() as patch:
        programs = metered(place / "powercap", patch)
        patch.setattr(files, "use_compile_cache", lambda: None)

        def run(*arguments):
            programs.clear()
            done = CliRunner().invoke(app, [str(argument) for argument in arguments])
            assert done.exit_code == 0, done.output
            return done.output, list(programs)

        yield run


@pytest.fixture(scope="module")
def trained(place, command):
    said, _ = command(
        "train", place / "agents", "-o", place / "meta.st", "--model", "mlp:1-8-1", "--local-steps", 20,
        "--link", "wifi", "--set", "rounds=3", "--set", "local_steps=2",
        "--run", place / "run", "--tasks", place / "tasks",
    )  # fmt: skip
    return said


def of_fedavg(place):
    """What the method spent by phase and kind; the run has methods to compare it with."""
    amounts = recomputed(place / "run" / "energy.csv")
    return {(phase, kind): spent for (method, phase, kind), spent in amounts.items() if method == "fedavg"}


def number(shown):
    """What `1.49 kJ`, `359 kB` or `12 bytes` stands for: joules, seconds, bits, operations."""
    digits, prefix, unit = re.fullmatch(r"([\d.,e-]+) ?([pnµmkMGT]?)(J|s|B|bytes?|bits?|FLOPs?|)", shown).groups()
    power = {"": 0, "p": -12, "n": -9, "µ": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12}[prefix]
    return float(digits.replace(",", "")) * 10.0**power * (8 if unit.startswith(("B", "byte")) else 1)


def test_train_measures_the_joules_of_the_counter(place, trained):
    amounts = of_fedavg(place)
    assert {key for key in amounts if key[1] != "analytic"} == {(phase, "measured") for phase in MEASURED}
    for phase, share in MEASURED.items():
        assert amounts[phase, "measured"]["joules"] == pytest.approx(share * JOULES_A_RUN)
    assert "energy: measured by powercap package-0." in trained


def test_trial_7_who_uses_one_agents_model_pays_for_that_one_alone(place, trained):
    rows = Ledger.from_csv(place / "run" / "energy.csv").select(phase="pretraining")
    shares = {(row.agent, row.kind): row.joules for row in rows if row.agent != "all"}
    assert shares == {("a10", "modelled"): pytest.approx(JOULES_A_RUN / 3)}  # three agents of as many samples


def test_trial_7_every_place_shows_what_the_rows_of_the_ledger_add_up_to(place, trained, capsys):
    amounts = of_fedavg(place)
    assert {phase for phase, _ in amounts} >= {"uplink", "downlink"}

    methods = json.loads((place / "run" / "summary.json").read_text())["methods"]
    energy = methods["fedavg"]["energy"]
    assert {(phase, kind): spent for phase, kinds in energy.items() for kind, spent in kinds.items()} == amounts

    page = (place / "run" / "report.html").read_text()
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])
    (method,) = [method for method in data["methods"] if method["name"] == "fedavg"]
    columns = ("joules", "seconds", "bits", "flops")
    shown = {(s["phase"], s["kind"]): (s["joules"], s["seconds"]) for s in method["spent"]}
    assert shown == {key: (amount["joules"], amount["seconds"]) for key, amount in amounts.items()}

    training = {key: value for key, value in amounts.items() if key[0] != "adaptation"}  # not paid by those who train
    card = read_header(place / "meta.st").card["energy"]
    assert {(s["phase"], s["kind"]): {c: s.get(c) for c in columns} for s in card} == training

    lines = [re.split(r" {2,}", line.strip()) for line in trained.partition("energy, all agents")[2].splitlines()]
    shown = {(cells[0], cells[1]): cells[2:] for cells in lines if tuple(cells[:2]) in training}
    for key, spent in training.items():
        for cell, column in zip(shown[key], columns, strict=True):
            rounded = {"rel": 6e-3} | ({"abs": 8} if column == "bits" else {})  # three digits, whole bytes
            assert (None if cell == "-" else number(cell)) == (
                None if spent[column] is None else pytest.approx(spent[column].expected, **rounded)
            )

    show_summary(place / "run")
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    (line,) = [line for line in table if line.split()[0] == data["labels"]["fedavg"].split()[0]]
    *_, uplink, computation = map(number, re.split(r" {2,}", line.strip())[2:])
    assert uplink == pytest.approx(amounts["uplink", "analytic"]["joules"].expected, rel=6e-3)
    assert computation == pytest.approx(amounts["computation", "measured"]["joules"].expected, rel=6e-3)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("choose", ["leave-one-out", "validation"])
def test_trial_6_choosing_the_number_of_steps_is_on_the_ledger(place, trained, command, optimiser, choose):
    new = place / f"adapted-{optimiser}-{choose}.st"
    said, (choosing, tuning) = command(
        "adapt", place / "meta.st", place / "tasks" / "a3.npz", "--steps", 12, "--choose", choose,
        "--optimiser", optimiser, "-o", new,
    )  # fmt: skip
    card = read_header(new).card
    *_, first, second = card["energy"]
    assert first["source"] == "powercap package-0; choosing the number of steps"
    assert second["source"] == "powercap package-0"
    for spent, program in ((first, choosing), (second, tuning)):
        assert (spent["phase"], spent["kind"]) == ("adaptation", "measured")
        assert spent["joules"] == pytest.approx(JOULES_A_RUN)
        assert spent["flops"] == pytest.approx(program.flops(), rel=SHARED)
    # 30 fine-tunings of 12 steps, or one, against one of the steps chosen; each also judges after every step
    runs = (30 if choose == "leave-one-out" else 1) * 12 / max(card["adapted"]["steps"], 1)
    assert runs < first["flops"] / second["flops"] < 2 * runs
    rows = [line.split()[0] for line in said.splitlines() if " measured " in line and "energy:" not in line]
    assert rows == ["choosing", "adaptation"]  # two amounts, two names


@pytest.mark.parametrize("steps", [0, 1, 10])
def test_adapt_meters_fine_tuning_alone(place, trained, command, steps):
    new = place / f"{steps}.st"
    _, (tuning,) = command("adapt", place / "meta.st", place / "tasks" / "a3.npz", "--steps", steps, "-o", new)
    spent = read_header(new).card["energy"][-1]
    assert (spent["kind"], spent["flops"]) == ("measured", tuning.flops())
    assert spent["joules"] == pytest.approx(JOULES_A_RUN)
    assert (spent["flops"] == 0) == (steps == 0)
