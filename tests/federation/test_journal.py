"""The server's rows: a round's write does not grow with the rounds before it, and a torn tail costs nothing."""

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewjoule.federation import blocks, journal
from fewjoule.federation import server as server_module
from fewjoule.federation.agent import AgentRunner
from fewjoule.federation.blocks import BlockError, Form
from fewjoule.federation.drive import drive
from fewjoule.federation.records import SOURCES_PER_AGENT, Records
from fewjoule.federation.results import read_result
from fewjoule.federation.spec import read_spec
from fewjoule.federation.state import State, StateError
from fewjoule.federation.wire import AgentReport
from tests.federation.bench import NAMES, Bench, LocalChannel

RUN = b"r" * 16
TYPES = ({"exchange": int}, {"a": Form("float64", (3,))})


def rows(count: int) -> list[State]:
    return [State({"exchange": i}, {"a": np.full(3, float(i))}) for i in range(count)]


def encoded(count: int) -> bytes:
    return b"".join(journal.encode_row(RUN, row) for row in rows(count))


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    path, at = tmp_path / "server.rows", 0
    for row in rows(5):
        at = journal.append(path, at, journal.encode_row(RUN, row))
    back = list(journal.decode_rows(journal.read(path, at), RUN, *TYPES))
    assert [row.values["exchange"] for row in back] == list(range(5))
    np.testing.assert_array_equal([row.arrays["a"] for row in back], [row.arrays["a"] for row in rows(5)])
    assert os.stat(path).st_mode & 0o777 == 0o600


@given(st.integers(1, 300), st.integers(1, 300))
@settings(max_examples=30)
def test_a_torn_tail_is_cut_by_the_next_rows(tmp_path_factory: Any, tail: int, seed: int) -> None:
    path = tmp_path_factory.mktemp("rows") / "server.rows"
    at = journal.append(path, 0, encoded(3))
    with path.open("ab") as file:
        file.write(np.random.default_rng(seed).bytes(tail))
    assert journal.read(path, at) == encoded(3)
    end = journal.append(path, at, encoded(1))
    assert path.read_bytes() == encoded(3) + encoded(1)
    assert end == path.stat().st_size


@given(st.data())
@settings(max_examples=100)
def test_any_damage_is_refused(data: st.DataObject) -> None:
    good = encoded(3)
    if data.draw(st.booleans()):
        at, bit = data.draw(st.integers(0, len(good) - 1)), data.draw(st.integers(0, 7))
        bad = good[:at] + bytes([good[at] ^ 1 << bit]) + good[at + 1 :]
    else:
        whole = [len(encoded(n)) for n in range(3)]
        bad = good[: data.draw(st.integers(1, len(good) - 1).filter(lambda n: n not in whole))]
    with pytest.raises(BlockError):
        list(journal.decode_rows(bad, RUN, *TYPES))


def test_a_file_that_is_too_short_is_refused_with_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "server.rows"
    for content in (None, b"abc"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(StateError, match=r"server\.rows .* its state counts on 10; put back a good copy"):
            journal.read(path, 10)


class Counting:
    """Bytes that every save of a server writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: list[int] = []
        self._appended = 0
        write, append = server_module.write_state, journal.append

        def counted(path: Path, kind: int, run: bytes, state: State) -> None:
            write(path, kind, run, state)
            self.written.append(path.stat().st_size + self._appended)
            self._appended = 0

        def noted(path: Path, at: int, rows: bytes) -> int:
            self._appended = len(rows)
            return append(path, at, rows)

        monkeypatch.setattr(server_module, "write_state", counted)
        monkeypatch.setattr(journal, "append", noted)


@pytest.mark.slow
def test_trial_43_what_a_round_writes_does_not_grow_with_the_rounds(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MOST_PENDING_BYTES", 4000)
    counting, spec = Counting(monkeypatch), bench.spec("fedsgd", settings={"rounds": 120})
    server, outcome = bench.run(spec)
    assert outcome.status == "complete"
    written = np.array(counting.written)
    assert len(written) == 122
    assert written[60:].max() <= written[:60].max() + 100  # numbers in the note get longer
    assert written.max() < 20_000
    assert bench.server(spec).result() == server.result()  # all of it is on the disk


def test_a_missing_or_foreign_row_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MOST_PENDING_BYTES", 1)
    spec = bench.spec("fedsgd")
    server, _ = bench.run(spec)
    path = server._rows
    good = path.read_bytes()
    length = int.from_bytes(good[:4], "little") + 4
    for bad, words in (
        (good[length:] + good[:length], "its rows are not those of 6 exchanges"),
        (good[:100] + b"x" + good[101:], "server.rows in .* refused: it is damaged"),
        (good[:-1], "its state counts on"),
    ):
        path.write_bytes(bad)
        with pytest.raises(StateError, match=words):
            bench.server(spec)
    path.write_bytes(good)
    assert bench.server(spec).complete


def test_trial_43_counters_of_a_later_process_do_not_become_the_baseline(bench: Bench) -> None:
    spec, moved = bench.spec("fedsgd"), [100.0]

    def channel() -> LocalChannel:
        return LocalChannel({name: bench.agent(name, traffic=lambda: (moved[0], moved[0])) for name in NAMES})

    server = bench.server(spec)
    drive(server, channel(), asked_to_stop=lambda: "now" if server.exchange == 2 else "")
    moved[0] = 9000.0
    again = bench.server(spec)
    assert drive(again, channel()).status == "complete"
    assert (again.records.baseline == 100.0).all()
    assert (read_result(again.result()).records.baseline == 100.0).all()


def test_sources_that_change_every_round_do_not_grow_the_state() -> None:
    records = Records(1000, 2)
    for i in range(1000):
        records.note(i, 0, AgentReport(kind="measured", source=f"meter {i}"), (1, 1), 0.0)
    assert len(records.sources) <= 2 * SOURCES_PER_AGENT + 1


def test_trial_45_a_run_goes_on_under_a_later_patch_release(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = bench.spec("fedsgd", fewjoule="0.1.99")
    server = bench.server(spec)
    drive(server, bench.channel(), asked_to_stop=lambda: "now" if server.exchange == 3 else "")
    assert bench.run(spec)[1].status == "complete"  # this release, the agents' too
    assert read_spec(spec.text).run == spec.run


def agent_with(bench: Bench, name: str, change: Any, folder: str | None = None) -> AgentRunner:
    """The agent with its data changed, and its state in another's folder where one is given."""
    data = change(jax.tree.map(lambda a: np.array(a[NAMES.index(name)]), bench.agents.data))
    return AgentRunner(name, lambda agreed: (data, bench.local[NAMES.index(name)]), bench.folder / (folder or name))


@pytest.mark.parametrize("reached", [1, 3])
def test_trial_38_a_swapped_state_is_refused_by_name(bench: Bench, reached: int) -> None:
    spec = bench.spec(policy="stop")
    server = bench.server(spec)
    drive(server, bench.channel(), asked_to_stop=lambda: "now" if server.exchange == reached else "")
    north, south = (bench.folder / name / spec.run.hex() / "agent.state" for name in ("north", "south"))
    a, b = north.read_bytes(), south.read_bytes()
    north.write_bytes(b)
    south.write_bytes(a)
    outcome = drive(bench.server(spec), bench.channel())
    assert outcome.status == "stopped"
    assert "it is the state of agent 'south', this is agent 'north'; put back a good copy" in outcome.reason


def relabelled(data: Any) -> Any:
    data.train.y[3] += 1
    return data


def held_out(data: Any) -> Any:
    data.validation.x[0] += 1
    return data


def shortened(data: Any) -> Any:
    return data._replace(train=jax.tree.map(lambda a: a[:-1], data.train))


@pytest.mark.parametrize("change", [relabelled, held_out, shortened])
@pytest.mark.parametrize("reached", [1, 3])
def test_trial_38_data_that_changed_between_restarts_is_refused(bench: Bench, change: Any, reached: int) -> None:
    spec = bench.spec("fedavg", policy="stop")
    server, channel = bench.server(spec), bench.channel()
    drive(server, channel, asked_to_stop=lambda: "now" if server.exchange == reached else "")
    channel = bench.channel()
    channel.agents["west"] = agent_with(bench, "west", change)
    outcome = drive(bench.server(spec), channel)
    assert outcome.status == "stopped"
    assert "the data or the model of agent 'west' changed since it joined this run; put them back" in outcome.reason
    channel.agents["west"] = agent_with(bench, "west", lambda data: data)
    assert drive(bench.server(spec), channel).status == "complete"


def test_a_state_without_its_owner_is_refused(bench: Bench) -> None:
    spec = bench.spec("fedavg", policy="stop")
    bench.agent("north").agree(spec.text)
    path = bench.folder / "north" / spec.run.hex() / "agent.state"
    block = blocks.unpack(path.read_bytes(), blocks.AGENT, spec.run)
    note = json.loads(block.note)
    del note["values"]["agent"]
    path.write_bytes(blocks.pack(blocks.AGENT, spec.run, json.dumps(note).encode(), block.arrays))
    with pytest.raises(StateError, match="its value 'agent' must be of type str"):
        bench.agent("north").agree(spec.text)
