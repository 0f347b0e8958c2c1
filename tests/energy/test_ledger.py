"""The ledger: the paper's totals, sums per kind, and a file that reads back as it was written."""

import csv
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewjoule.energy import ALL_AGENTS, KINDS, PHASES, Ledger, Row, charge_radio, knows_receiving, link
from fewjoule.errors import InputError

RUN = {"method": "meta_backward", "seed": 0}


def paper_run(**settings):
    ledger = Ledger()
    charge_radio(ledger, link("paper"), **RUN, agents=["a", "b", "c"], uplink_bits=[32 * 1761] * 51, **settings)
    return ledger


def test_the_papers_sinusoid_uplink():
    ledger = paper_run()
    assert len(ledger) == 3 * 50 + 3
    first = ledger.total(phase="uplink", round=0)
    assert first == pytest.approx(29.1, abs=0.05)
    assert ledger.total(phase="uplink") - first == pytest.approx(1456.2, abs=0.05)
    assert {row.kind for row in ledger} == {"analytic"}
    assert {row.source for row in ledger} == {"link paper"}
    assert max(row.round for row in ledger) == 50


def test_rows_summed_over_rounds_cost_the_same():
    each, summed = paper_run(), paper_run(per_round=False)
    assert len(summed) == 6
    assert summed.total() == pytest.approx(each.total())
    for agent in "abc":
        assert summed.total(agent=agent) == pytest.approx(each.total(agent=agent))
        bits = [sum(row.bits for row in ledger.select(agent=agent)) for ledger in (each, summed)]
        assert bits[0] == bits[1]


def test_bits_may_differ_by_round_and_agent_and_silence_has_no_row():
    bits = np.array([[0, 0], [100, 0], [50, 25]])
    ledger = Ledger()
    charge_radio(ledger, link("paper"), **RUN, agents=["a", "b"], uplink_bits=bits)
    assert [(row.agent, row.round, row.bits) for row in ledger] == [("a", 1, 100), ("a", 2, 50), ("b", 2, 25)]
    by_round = Ledger()
    charge_radio(by_round, link("paper"), **RUN, agents=["a", "b"], uplink_bits=[0, 10, 20])
    assert [(row.round, row.bits) for row in by_round] == [(1, 10), (1, 10), (2, 20), (2, 20)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"agents": ["a", "b", "c"]}, "shape"),
        ({"uplink_bits": 100}, "shape"),
        ({"uplink_bits": ["many"]}, "bits must be numbers"),
        ({"uplink_bits": [-1]}, "bits must be a finite number of at least 0"),
        ({"agents": ["a", "a"]}, "different names"),
        ({"agents": "ab"}, "different names"),
    ],
)
def test_a_wrong_charge_is_refused_and_leaves_no_row(change, message):
    ledger = Ledger()
    good = {**RUN, "agents": ["a", "b"], "uplink_bits": np.array([[0, 0], [100, 50]])}
    with pytest.raises(InputError, match=message):
        charge_radio(ledger, link("paper"), **(good | change))
    assert len(ledger) == 0


def test_downlink_needs_a_receive_power():
    ledger, paper = Ledger(), link("paper")
    charge = {**RUN, "agents": ["a"], "uplink_bits": [0, 0, 0], "downlink_bits": [0, 32 * 1761, 32 * 1761]}
    with pytest.raises(InputError, match="receive_watts"):
        paper.receive_joules(32 * 1761)
    assert not knows_receiving(paper)
    charge_radio(ledger, paper, **charge)
    assert len(ledger) == 0
    charge_radio(ledger, link("paper", receive_watts=0.1), **charge)
    assert ledger.total(phase="downlink") == pytest.approx(2 * 0.1 * 4.854, abs=1e-3)
    assert [row.round for row in ledger] == [1, 2]


def example():
    ledger = paper_run()
    ledger.add(**RUN, phase="computation", kind="measured", source="powercap", joules=3.25, seconds=1.5, flops=10**12)
    ledger.add(**RUN, phase="pretraining", round=0, kind="measured", source="powercap", joules=40.0, seconds=9.0)
    return ledger


def test_kinds_are_added_up_only_on_the_word():
    ledger = example()
    with pytest.raises(InputError, match="mix_kinds=True"):
        ledger.total()
    with pytest.raises(InputError, match="measured, analytic"):
        ledger.total(phase=["computation", "uplink"])
    apart = ledger.total(kind="measured") + ledger.total(kind="analytic")
    assert ledger.total(mix_kinds=True) == pytest.approx(apart)
    assert ledger.by_kind() == {"measured": 43.25, "analytic": pytest.approx(1456.2 + 29.1, abs=0.1)}
    assert ledger.total(kind="modelled") == 0


def test_a_round_takes_as_long_as_its_slowest_agent():
    ledger = Ledger()
    radio = {"method": "m", "phase": "uplink", "kind": "analytic", "source": "s", "bits": 8}
    for seed, agent, round_, seconds in [
        (0, "a", 1, 1.0), (0, "b", 1, 4.0), (0, "a", 2, 3.0), (0, "a", 2, 3.0), (0, "b", 2, 5.0), (1, "a", 1, 2.0),
    ]:  # fmt: skip
        ledger.add(**radio, seed=seed, agent=agent, round=round_, seconds=seconds, joules=0.5)
    (spent,) = ledger.spent(seeds=2)
    assert spent.seconds == (4 + 6 + 2) / 2  # a sends twice in round 2, and so later than b
    assert (spent.joules, spent.bits, spent.flops, spent.sources) == (1.5, 24, None, ("s",))


def test_spending_is_by_method_phase_and_kind():
    ledger = example()
    ledger.add(method="other", seed=0, phase="computation", kind="modelled", source="x", joules=1.0)
    keys = [(s.method, s.phase, s.kind) for s in ledger.spent()]
    assert keys == [
        ("meta_backward", "pretraining", "measured"),
        ("meta_backward", "computation", "measured"),
        ("meta_backward", "uplink", "analytic"),
        ("other", "computation", "modelled"),
    ]
    assert ledger.spent()[2].seconds == pytest.approx(51 * link("paper").seconds(32 * 1761))
    assert ledger.spent()[3].seconds is None


def test_a_reading_is_shared_out_and_says_so():
    ledger, reading = Ledger(), {"joules": 6.0, "seconds": 3.0, "kind": "modelled", "source": "CPU time"}
    whole = ledger.add_reading(reading, **RUN, phase="pretraining", flops=7)
    part = ledger.add_reading(reading, **RUN, phase="computation", shares=3, of="seed")
    assert (whole.joules, whole.seconds, whole.flops, whole.round, whole.source) == (6.0, 3.0, 7, 0, "CPU time")
    assert (part.joules, part.seconds, part.flops, part.round) == (2.0, 1.0, None, -1)
    assert part.source == "CPU time; one reading shared by 3 seeds"


def test_rows_are_chosen_by_known_columns():
    with pytest.raises(InputError, match="did you mean 'phase'"):
        example().select(phas="uplink")
    with pytest.raises(InputError, match="did you mean 'uplink'"):
        example().select(phase=["uplnk"])
    assert example().select(phase=None) == example()


def test_a_file_is_replaced_only_on_the_word(tmp_path):
    path = tmp_path / "energy.csv"
    path.write_text("mine")
    with pytest.raises(InputError, match="not overwritten"):
        example().to_csv(path)
    assert path.read_text() == "mine"
    example().to_csv(path, force=True)
    assert Ledger.from_csv(path) == example()


def test_pretraining_is_shown_left_out_and_included():
    ledger = example()
    rest = [phase for phase in PHASES if phase != "pretraining"]
    shown = {(spent.phase, spent.kind): spent.joules for spent in ledger.spent()}
    assert shown["pretraining", "measured"] == 40.0
    assert ledger.total(phase=rest, kind="measured") == 3.25
    assert ledger.total(kind="measured") == 43.25
    assert ledger.total(phase=rest, kind="analytic") == ledger.total(kind="analytic")


def test_a_split_by_agent_is_modelled_and_loses_nothing():
    ledger = example()
    split = ledger.split_by_agent({"a": 1, "b": 1, "c": 2})
    computed = split.select(phase="computation")
    assert [row.joules for row in computed] == [0.8125, 0.8125, 1.625]
    assert {row.kind for row in computed} == {"modelled"}
    assert all("operation counts" in row.source for row in computed)
    assert split.total(mix_kinds=True) == pytest.approx(ledger.total(mix_kinds=True))
    assert split.select(phase="uplink") == ledger.select(phase="uplink")
    assert ALL_AGENTS not in {row.agent for row in split}
    with pytest.raises(InputError, match="not all 0"):
        ledger.split_by_agent({"a": 0})


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00\n\r"), max_size=12)
amounts = st.floats(0, 1e300) | st.floats(0, 1e-300)
counts = st.none() | st.integers(0, 10**30) | amounts
rows = st.builds(
    lambda **fields: fields,
    method=texts,
    seed=st.integers(),
    agent=texts,
    round=st.integers(-1, 10**6),
    phase=st.sampled_from(PHASES),
    kind=st.sampled_from(KINDS),
    source=texts.filter(bool),
    joules=amounts,
    seconds=st.none() | amounts,
    bits=counts,
    flops=counts,
)


@given(st.lists(rows, max_size=8))
def test_a_ledger_reads_back_without_loss(tmp_path_factory, added):
    path = tmp_path_factory.mktemp("ledger") / "energy.csv"
    ledger = Ledger()
    for row in added:
        ledger.add(**row)
    ledger.to_csv(path)
    again = Ledger.from_csv(path)
    assert again == ledger
    assert [tuple(map(type, row)) for row in again] == [tuple(map(type, row)) for row in ledger]


def test_the_file_has_the_columns_of_the_contract(tmp_path):
    example().to_csv(tmp_path / "energy.csv")
    with open(tmp_path / "energy.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert ",".join(table[0]) == "method,seed,agent,round,phase,kind,source,joules,seconds,bits,flops"
    assert math.fsum(float(row["joules"]) for row in table) == pytest.approx(example().total(mix_kinds=True))
    assert table[0]["flops"] == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phase": "training"}, "did you mean 'pretraining'"),
        ({"kind": "measurd"}, "did you mean 'measured'"),
        ({"joules": math.nan}, "joules must be a finite number"),
        ({"joules": -1.0}, "joules must be a finite number"),
        ({"source": ""}, "source"),
        ({"agent": "a\nb"}, "agent must be one line"),
        ({"round": -2}, "round"),
        ({"bits": -5}, "bits"),
    ],
)
def test_wrong_rows_are_refused(change, message):
    good = {**RUN, "phase": "computation", "kind": "measured", "source": "x", "joules": 1.0}
    with pytest.raises(InputError, match=message):
        Ledger().add(**(good | change))


def test_a_broken_file_names_its_line(tmp_path):
    path = tmp_path / "energy.csv"
    path.write_text("method,seed\n")
    with pytest.raises(InputError, match="the first line must be"):
        Ledger.from_csv(path)
    path.write_text(",".join(Row._fields) + "\nm,0,all,-1,computation,measured,x,lots,,,\n")
    with pytest.raises(InputError, match=r"line 2: .*lots"):
        Ledger.from_csv(path)


def test_numpy_numbers_become_plain_ones():
    ledger = Ledger()
    row = ledger.add(
        method="m",
        seed=np.int64(3),
        phase="uplink",
        kind="analytic",
        source="s",
        joules=np.float32(0.5),
        bits=np.int32(7),
        flops=np.float64(2.5),
    )
    assert [type(value) for value in (row.seed, row.joules, row.bits, row.flops)] == [int, float, int, float]
