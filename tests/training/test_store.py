"""Traced programs and counts on disk: the same numbers as without them, and never those of something else."""

import dataclasses
import json
import os
from typing import NamedTuple

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given

import fewjoule as fj
from fewjoule import files
from fewjoule.errors import InputError
from fewjoule.simulation.work import turn_flops
from fewjoule.training import program, store, traced
from fewjoule.training.program import Program
from fewjoule.training.store import UnknownOriginError, fingerprint
from fewjoule.training.traced import NoTextError, placed_in, structure_of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A store of its own, and no program in memory."""
    monkeypatch.setattr(files, "_traced", [tmp_path])
    program._compiled.cache_clear()
    yield tmp_path
    program._compiled.cache_clear()


def simulated(method, model, agents, local):
    return fj.simulate(method, model, agents, local, seed=[3, 4])


def same(first, second):
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("meta_backward", {"rounds": 3}),
        (
            "fedavg",
            {"rounds": 2, "local_steps": 2, "codec": "top-k:0.2:2", "down_codec": "quantise:3"},
        ),
        ("fedavg", {"rounds": 2, "local_steps": 2, "combine": "median"}),
        ("answers", {"questions": "range:-3:3", "number": 5, "bits": 4, "learning_rate": 0.01, "episodes": 4}),
    ],
)
def test_a_run_from_disk_has_the_same_bits(name, settings, model, agents, local, folder, monkeypatch):
    method = fj.method(name, **settings)
    monkeypatch.setattr(files, "_traced", [])
    plain = simulated(method, model, agents, local)
    monkeypatch.setattr(files, "_traced", [folder])
    first = simulated(method, model, agents, local)
    kept = sorted(folder.iterdir())
    assert kept
    program._compiled.cache_clear()
    monkeypatch.setattr(traced, "_made", None)  # nothing is traced again
    second = simulated(method, model, agents, local)
    assert sorted(folder.iterdir()) == kept
    for run in (first, second):
        same(
            (run.meta, run.trace, run.uplink_bits, run.final_loss),
            (plain.meta, plain.trace, plain.uplink_bits, plain.final_loss),
        )


@pytest.fixture(scope="module")
def local(agents, model):
    return fj.train_locally(model, agents, max_steps=20, seed=[3, 4])


def test_fine_tuning_and_local_training_from_disk_have_the_same_bits(model, agents, folder, monkeypatch):
    x = np.linspace(-2, 2, 12)[:, None].astype(np.float32)
    tasks = fj.make_tasks([(x, np.sin(x)), (x, 2 * np.sin(x))], [(x, np.sin(x)), (x, 2 * np.sin(x))])
    meta = np.asarray(model.init(jax.random.key(0)))

    def both():
        trained = fj.train_locally(model, agents, max_steps=30, seed=1)
        adapted = fj.adapt(model, meta, tasks, steps=(0, 2))
        return trained.models, adapted.loss

    monkeypatch.setattr(files, "_traced", [])
    plain = both()
    monkeypatch.setattr(files, "_traced", [folder])
    first = both()
    program._compiled.cache_clear()
    monkeypatch.setattr(traced, "_made", None)
    same(first, plain)
    same(both(), plain)


@jax.jit
def doubled(x):
    return {"twice": 2 * x}


def test_a_damaged_file_is_written_anew(folder, monkeypatch):
    x = np.arange(3, dtype=np.float32)
    monkeypatch.setattr(doubled, "__module__", "fewjoule.somewhere", raising=False)

    def result():
        program._compiled.cache_clear()
        return np.asarray(Program(doubled, (), (x,)).run()["twice"])

    np.testing.assert_array_equal(result(), 2 * x)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    for damaged in (
        b"",
        whole[:-20],
        b"null\n",
        b'["os:stat_result", []]\n' + whole.partition(b"\n")[2],
        os.urandom(500),
    ):
        file.write_bytes(damaged)
        np.testing.assert_array_equal(result(), 2 * x)
        assert len(file.read_bytes()) == len(whole)


def test_a_full_disk_keeps_nothing_and_stops_nothing(folder, monkeypatch):
    def full(*args, **kwargs):
        raise InputError("no space left on device")

    monkeypatch.setattr(store, "write_atomically", full)
    x = np.ones(2, np.float32)
    np.testing.assert_array_equal(np.asarray(Program(doubled, (), (x,)).run()["twice"]), 2 * x)
    assert not list(folder.iterdir())


def test_the_oldest_files_make_room(folder, monkeypatch):
    monkeypatch.setattr(store, "MOST_FILES", 10)
    for i in range(10):
        store.keep(f"file{i}", b"x")
        os.utime(folder / f"file{i}", (i, i))
    store.read("file0")  # which makes it the newest
    store.keep("more", b"x")
    assert sorted(p.name for p in folder.iterdir()) == sorted([f"file{i}" for i in range(10) if i != 1] + ["more"])


def test_nothing_larger_than_the_limit_is_read(folder, monkeypatch):
    store.keep("name", b"12345")
    assert store.read("name") == b"12345"
    monkeypatch.setattr(store, "LARGEST_BYTES", 4)
    assert store.read("name") is None


FEDAVG = {"rounds": 2, "local_steps": 3, "learning_rate": 0.1}


@given(st.sampled_from(sorted(FEDAVG)), st.integers(4, 9))
def test_another_setting_is_another_program(setting, value):
    assert fingerprint(fj.fedavg(**FEDAVG)) != fingerprint(fj.fedavg(**FEDAVG | {setting: value}))
    assert fingerprint(fj.fedavg(**FEDAVG)) == fingerprint(fj.fedavg(**FEDAVG))


def test_what_may_not_be_taken_for_another():
    values = [
        1, 1.0, True, "1", None, (1,), ((1,),), (1, 2), (12,), fj.mlp([1, 4, 1]), fj.mlp([1, 4, 1], init="he"),
        fj.mlp([1, 4, 1], loss="cross_entropy"), fj.mlp([1, 5, 1]), fj.fedsgd(rounds=2, learning_rate=0.1),
        fj.fedavg(**FEDAVG), fj.with_codec(fj.fedavg(**FEDAVG), "quantise:3"),
        fj.with_codec(fj.fedavg(**FEDAVG), "quantise:4"), fj.with_codec(fj.fedavg(**FEDAVG), down="quantise:4"),
        jax.ShapeDtypeStruct((2,), np.float32), jax.ShapeDtypeStruct((2,), np.int32),
    ]  # fmt: skip
    assert len({fingerprint(value) for value in values}) == len(values)


def fewest(outputs, targets):
    return abs(outputs - targets).sum()


def test_what_nobody_can_tell_is_not_kept(model, folder):
    made = fj.fedavg(**FEDAVG)
    changed = dataclasses.replace(made, rounds=7)
    own = fj.Model(lambda key: [jax.random.normal(key, (1, 1))], lambda w, x: x @ w[0])
    spec = fj.mlp([1, 4, 1])
    own_loss = fj.Model(spec._init, spec._apply, loss=fewest, architecture=spec.architecture)
    for value in (changed, own, own_loss, fj.mlp([1, 4, 1], loss=fewest), lambda x: x, np.zeros(2), object(), (1, own)):
        with pytest.raises(UnknownOriginError):
            fingerprint(value)
        assert store.name_for("it", value) is None
    assert store.name_for("it", made, model)


def test_other_code_versions_or_flags_have_other_names(model, folder, monkeypatch):
    first = store.name_for("it", model)
    assert store.name_for("it", model) == first
    with jax.default_matmul_precision("bfloat16"):
        assert store.name_for("it", model) != first
    monkeypatch.setattr(store, "_code", lambda: "another")
    assert store.name_for("it", model) != first


def test_the_code_is_all_of_this_package(monkeypatch, tmp_path):
    (tmp_path / "fewjoule" / "training").mkdir(parents=True)
    source = tmp_path / "fewjoule" / "methods.py"
    monkeypatch.setattr(store, "__file__", str(tmp_path / "fewjoule" / "training" / "store.py"))
    found = set()
    for text in ("a = 1", "a = 2"):
        source.write_text(text, "utf-8")
        store._code.cache_clear()
        found.add(store._code())
    source.unlink()
    store._code.cache_clear()
    with pytest.raises(UnknownOriginError):
        store._code()
    store._code.cache_clear()
    assert len(found) == 2


def test_counts_are_read_back(model, agents, folder, monkeypatch):
    from fewjoule.simulation.work import data_of

    method, data = fj.fedavg(rounds=2, local_steps=3, learning_rate=0.125), data_of(agents)
    counted = turn_flops(method, model, data)
    files_now = {path: json.loads(path.read_bytes()) for path in folder.iterdir()}
    assert [*counted] in files_now.values()
    turn_flops.cache_clear()
    for path, value in files_now.items():
        if value == [*counted]:
            path.write_text("[1, 2]", "utf-8")
    assert turn_flops(method, model, data) == (1, 2)  # it is the file that answers
    turn_flops.cache_clear()
    for path in folder.iterdir():
        path.write_text('["no", 1.5]', "utf-8")
    assert turn_flops(method, model, data) == counted
    turn_flops.cache_clear()


class Pair(NamedTuple):
    left: int
    right: int


def test_structures_come_back_and_nothing_else_is_called():
    value = {"a": (0, None, [1]), "b": fj.Samples(2, 3, 4)}
    structure = json.loads(json.dumps(structure_of(value)))
    leaves = ["p", "q", "r", "s", "t"]
    assert placed_in(structure, leaves) == {"a": ("p", None, ["q"]), "b": fj.Samples("r", "s", "t")}
    with pytest.raises(NoTextError):
        structure_of(Pair(0, 1))  # somebody else's class
    for name in ("os:system", "builtins:print", "fewjoule.files:write_csv", "subprocess:Popen", "nowhere:Thing"):
        with pytest.raises(NoTextError):
            placed_in([name, [0]], ["touch /tmp/no"])
