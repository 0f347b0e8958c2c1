"""A population on disk: the rounds of `simulate`, with memory for a cohort alone."""

import os
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.simulation.population import ahead, drawn
from fewjoule.simulation.states import KeptStates
from fewjoule.tasks.population import DiskRows

SIZES = (8, 3, 7, 8, 6, 4, 10, 5, 4)
METHODS = {  # nothing kept, own models kept, what a codec lost kept
    "fedavg": fj.fedavg(rounds=3, local_steps=2, batch=5, start="random", weighting="samples"),
    "meta_backward": fj.meta_backward(rounds=3, radius="linear", batch=5),
    "auto": fj.meta_backward(rounds=3, batch=5),
    "feedback": fj.method("fedavg", rounds=3, local_steps=2, batch=5, codec="top-k:0.2:4"),
}


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(0)
    return [(x, (i + 1) * np.sin(x)) for i, x in enumerate(rng.uniform(-3, 3, n) for n in SIZES)]


@pytest.fixture(scope="module")
def nine(pairs, tmp_path_factory):
    return fj.population((pair for pair in pairs), tmp_path_factory.mktemp("population") / "nine")


@pytest.fixture(scope="module")
def own(model):
    return model.init(jax.random.key(7)) + 0.1 * jnp.stack([model.init(jax.random.key(k)) for k in range(9)])


@pytest.mark.slow
def test_agents_of_one_size_go_as_in_simulate(model, tmp_path):
    rng = np.random.default_rng(2)
    pairs = [(x, np.sin(x)) for x in rng.uniform(-3, 3, (5, 4))]
    method = fj.fedavg(rounds=2, local_steps=1, start="random")
    run = fj.simulate_population(method, model, fj.population(pairs, tmp_path / "five"), cohort=3, seed=1)
    there = np.zeros((2, 5), bool)
    np.put_along_axis(there, run.cohorts, True, 1)
    whole = fj.simulate(method, model, fj.make_agents(pairs), seed=1, availability=there)
    np.testing.assert_allclose(run.meta, whole.meta, rtol=2e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_rounds_are_those_of_simulate(name, model, pairs, nine, own, tmp_path):
    """Four of nine agents in each round, from three buckets of sizes; states come back from disk."""
    method, local = METHODS[name], None if name == "fedavg" else own
    if local is not None:
        np.save(tmp_path / "models.npy", local)
    models = None if local is None else tmp_path / "models.npy"
    shares = []
    run = fj.simulate_population(method, model, nine, models, cohort=4, seed=3, told=shares.append)
    there = np.zeros((3, 9), bool)
    np.put_along_axis(there, run.cohorts, True, 1)
    whole = fj.simulate(method, model, fj.make_agents(pairs), local, seed=3, availability=there)
    np.testing.assert_allclose(run.meta, whole.meta, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose(run.start, whole.start, rtol=2e-5, atol=1e-6)
    np.testing.assert_allclose([run.start_loss, run.final_loss], [whole.start_loss, whole.final_loss], rtol=1e-5)
    for part in ("loss", "step", "radius", "active", "present"):
        np.testing.assert_allclose(getattr(run.trace, part), getattr(whole.trace, part), rtol=1e-4, atol=1e-5)
    for mine, theirs, first in zip(
        (run.uplink_bits, run.downlink_bits), (whole.uplink_bits, whole.downlink_bits), run.first_bits, strict=True
    ):
        np.testing.assert_array_equal(mine, np.take_along_axis(theirs[1:], run.cohorts, 1))
        np.testing.assert_array_equal(np.broadcast_to(first, 9), theirs[0])
    assert shares == [1 / 3, 2 / 3, 1.0]
    for phase in ("uplink", "downlink"):
        mine, theirs = (r.energy("wifi").total(phase=phase) for r in (run, whole))
        assert mine == pytest.approx(theirs)


@pytest.mark.slow
def test_all_of_them_are_those_of_simulate_too(model, pairs, nine):
    method = METHODS["fedavg"]
    run = fj.simulate_population(method, model, nine, seed=1)
    whole = fj.simulate(method, model, fj.make_agents(pairs), seed=1)
    np.testing.assert_allclose(run.meta, whole.meta, rtol=2e-5, atol=1e-6)


@pytest.mark.slow
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (snippet,) = re.findall(
        r"```python\n(.*?)```", (Path(__file__).parents[2] / "docs/scale.md").read_text(), re.DOTALL
    )
    exec(snippet, {})
    said = capsys.readouterr().out
    assert "100 of 2000 agents in each of 5 rounds" in said
    assert "Ledger of" in said


def test_a_population_is_what_was_written(pairs, nine):
    again = fj.population(nine.folder)
    assert len(again) == 9
    assert again.sizes.tolist() == list(SIZES)
    assert again.buckets == (4, 8, 10)  # powers of two, and the largest
    who = np.array([1, 8])
    assert again.bucket_of(who).tolist() == [0, 0]
    train = again.data(who, 4).train
    for row, i in enumerate(who):
        x, y = pairs[i]
        n = len(x)
        np.testing.assert_allclose(train.x[row, :n, 0], x, rtol=1e-6)
        np.testing.assert_allclose(train.y[row, :n, 0], y, rtol=1e-6)
        np.testing.assert_array_equal(train.mask[row], np.arange(4) < n)
        np.testing.assert_array_equal(train.x[row, n:], np.repeat(train.x[row, :1], 4 - n, 0))


def test_cohorts_are_drawn_without_replacement_and_evenly():
    rounds = np.array([drawn(5, r, 10, 100) for r in range(400)])
    assert (np.diff(rounds, axis=1) > 0).all()
    assert abs(np.bincount(rounds.ravel(), minlength=100) - 40).max() < 5 * np.sqrt(40 * 0.9)
    assert (drawn(5, 3, 10, 100) == rounds[3]).all()
    assert (drawn(6, 3, 10, 100) != rounds[3]).any()
    assert drawn(0, 0, 4, 4).tolist() == [0, 1, 2, 3]


def test_rows_are_written_in_place(tmp_path):
    rows = DiskRows.created(tmp_path / "rows.npy", (50_000, 3), np.float32)
    rows.write(np.array([4, 40_000]), np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    np.testing.assert_array_equal(rows.read(np.array([40_000, 4, 0]))[:, 0], [[4, 5, 6], [1, 2, 3], [0, 0, 0]])
    np.testing.assert_array_equal(np.load(tmp_path / "rows.npy")[40_000], [4, 5, 6])
    assert (tmp_path / "rows.npy").stat().st_blocks * 512 < 50_000  # nothing is stored of those never written
    np.testing.assert_array_equal(DiskRows(tmp_path / "rows.npy").read(np.array([49_999]), 2), np.zeros((1, 2, 3)))


def test_rows_that_follow_each_other_go_in_one_piece(tmp_path, monkeypatch):
    rows = DiskRows.created(tmp_path / "rows.npy", (50, 2), np.float32)
    pieces, pwrite = [], os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, part, at: pieces.append(len(part)) or pwrite(file, part, at))
    at = np.array([7, 8, 9, 3, 20, 21])
    rows.write(at, np.arange(12).reshape(6, 2))
    assert pieces == [3 * 8, 8, 2 * 8]
    np.testing.assert_array_equal(rows.read(at)[:, 0], np.arange(12).reshape(6, 2))
    wanted = np.array([True, False, True, True, False, True])
    np.testing.assert_array_equal(rows.read(at, wanted=wanted)[:, 0, 0], [0, 0, 4, 6, 0, 10])
    np.testing.assert_array_equal(rows.read(np.array([7, 9]), 2)[..., 1], [[1, 3], [5, 0]])
    assert rows.read(np.zeros(0, int)).shape == (0, 1, 2)


def test_states_lie_in_the_order_in_which_agents_came(tmp_path):
    states = KeptStates(tmp_path, {"own": jax.ShapeDtypeStruct((2,), np.float32)}, 1000)
    states.write(np.array([5, 900, 2]), {"own": jnp.array([[5, 5], [900, 900], [2, 2], [-1, -1]])})
    states.write(np.array([900, 7]), {"own": jnp.array([[901, 901], [7, 7]])})
    kept, has = states.read(np.array([7, 3, 900]), 4)
    assert has.tolist() == [True, False, True, False]
    np.testing.assert_array_equal(kept["own"][:, 0], [7, 0, 901, 0])
    assert states.has(np.array([2, 5, 6])).tolist() == [True, True, False]
    np.testing.assert_array_equal(np.load(tmp_path / "states-0.npy")[:5, 0], [5, 901, 2, 7, 0])


@pytest.mark.parametrize("content", [b"", b"no array", b"\x93NUMPY\x01\x00v\x00{"])
def test_files_that_are_no_rows_are_refused(content, tmp_path):
    (tmp_path / "rows.npy").write_bytes(content)
    with pytest.raises(fj.InputError, match=r"rows\.npy cannot be read as rows of numbers"):
        DiskRows(tmp_path / "rows.npy")
    np.save(tmp_path / "rows.npy", np.ones((4, 2)))
    with open(tmp_path / "rows.npy", "r+b") as file:
        file.truncate(150)
    with pytest.raises(fj.InputError, match="write it again"):
        DiskRows(tmp_path / "rows.npy")
    np.save(tmp_path / "rows.npy", np.array([{}, {}]), allow_pickle=True)
    with pytest.raises(fj.InputError, match="write it again"):
        DiskRows(tmp_path / "rows.npy")


def test_what_fails_while_reading_ahead_is_heard():
    def items():
        yield 1
        raise fj.InputError("the disk is gone")

    with pytest.raises(fj.InputError, match="the disk is gone"):
        list(ahead(items()))


def test_wrong_populations_are_refused_before_anything_is_written(tmp_path, model, nine):
    here = tmp_path / "new"
    for pairs, words in (
        ([], "a population needs at least one agent, got none"),
        ([([1.0], [1.0]), ([[1.0, 2.0]], [1.0])], "agent 1 has inputs and targets"),
        ([([1.0, np.nan], [1.0, 2.0])], "agent 0: x must be finite"),
    ):
        with pytest.raises(fj.InputError, match=words):
            fj.population(iter(pairs), here)
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(fj.InputError, match="name a new folder"):
        fj.population([([1.0], [1.0])])
    with pytest.raises(fj.InputError, match=r"x\.npy cannot be read"):
        fj.population(here)
    here.mkdir()
    for name in ("x", "y", "ends"):
        np.save(here / f"{name}.npy", np.ones((2, 1) if name != "ends" else 2, np.float32))
    with pytest.raises(fj.InputError, match="is no population"):
        fj.population(here)
    for settings, words in (
        ({"method": METHODS["fedavg"], "cohort": 10}, "cohort must be at most the number of agents, 9, got 10"),
        ({"method": fj.fedavg(combine="median")}, "combine='median' needs all messages at once"),
        ({"method": fj.maml(start="random")}, "maml needs validation samples"),
        ({"method": fj.fedavg()}, "give local, or set start='random'"),
        ({"method": fj.fedavg(), "local": here / "x.npy"}, r"\[agents, weights\] = \[9, 53\], got float32 \[2, 1\]"),
    ):
        with pytest.raises(fj.InputError, match=words):
            fj.simulate_population(settings.pop("method"), model, nine, **settings)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
def test_a_full_disk_is_said_in_a_line(tmp_path):
    rows = DiskRows.created(tmp_path / "rows.npy", (5, 3), np.float32)
    rows._file = open("/dev/full", "r+b", buffering=0)  # noqa: SIM115
    with pytest.raises(fj.InputError, match="cannot be written; free space"):
        rows.write(np.array([1]), np.ones((1, 3)))
