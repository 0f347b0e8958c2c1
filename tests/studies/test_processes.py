"""A study run by several processes: the numbers of one, and what is left when a process is killed. Real processes."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from fewjoule.errors import InputError
from fewjoule.studies.parts import Part, packed
from fewjoule.studies.settings import load_study
from fewjoule.studies.shares import check_processes, joined
from fewjoule.training.processes import free_address
from tests.studies.test_run import STUDY, fewjoule, rows

FOUR = STUDY.replace("seeds = [0, 1]", "seeds = [0, 1, 2, 3]")
STABLE = ("evaluation.csv", "trace.csv", "paths.csv", "meta/backward-0.safetensors", "meta/average-3.safetensors")


class Pair:
    """A team of two that sits in one process: the other one says what it is told."""

    count, index = 2, 0

    def __init__(self, other):
        self._other = other

    def exchange(self, content):
        return [content, self._other]


def test_parts_join_by_seed_joules_add_up_and_the_slowest_counts():
    def part(seeds, joules, seconds):
        of_seeds = np.asarray(seeds, np.float32)[:, None]
        reading = {"joules": joules, "seconds": seconds, "kind": "modelled", "source": "a meter"}
        facts = {"computation": reading, "server": None, "adaptation": reading, "flops": 7}
        return Part({"meta": of_seeds, "meta_path": of_seeds[:1], "path_rounds": np.arange(3)}, facts)

    whole = joined(part([0, 1], 2.0, 5.0), Pair(packed(part([2], 3.0, 4.0))))
    np.testing.assert_array_equal(whole.arrays["meta"], [[0], [1], [2]])
    np.testing.assert_array_equal(whole.arrays["meta_path"], [[0]])
    assert (whole.facts["computation"]["joules"], whole.facts["computation"]["seconds"]) == (5.0, 5.0)
    assert whole.facts["adaptation"]["joules"] == 2.0  # of one meta-model, whichever
    assert (whole.facts["flops"], whole.facts["server"]) == (7, None)


def test_local_training_joins_what_it_has_for_each_seed():
    def part(seed):
        facts = {"reading": None, "flops": [[seed, seed]], "trained": [True, False], "alignment": [{"of": seed}]}
        return Part({"models": np.full((1, 2, 3), seed, np.float32)}, facts)

    whole = joined(part(4), Pair(packed(part(9))))
    assert whole.arrays["models"].shape == (2, 2, 3)
    assert whole.facts["flops"] == [[4, 4], [9, 9]]
    assert whole.facts["alignment"] == [{"of": 4}, {"of": 9}]
    assert whole.facts["trained"] == [True, False]


def test_more_processes_than_seeds_are_refused():
    study = load_study("sinusoid", seeds=[0, 1])
    check_processes(study, 2)
    with pytest.raises(InputError, match="a run of 2 seeds takes from 1 to 2 processes, got 3; give more --seeds"):
        check_processes(study, 3)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("processes")
    (place / "small.toml").write_text(FOUR)
    return place


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def by_two(place, cache):
    done = fewjoule("run", "small.toml", "--out", "two", "--processes", 2, cwd=place, cache=cache)
    assert (done.returncode, done.stderr) == (0, "")
    assert "processes: 2, which share the seeds; this one has 2" in done.stdout
    assert done.stdout.count("report: two/report.html") == 1
    assert "Gloo" not in done.stdout
    assert not (place / "two" / ".parts").exists()
    return place / "two"


def start(place, cache, *arguments):
    environment = {**os.environ, "FEWJOULE_CACHE": str(cache), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "fewjoule", "run", *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=place, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def once_trained(folder, process):
    """Wait until the run has its local models, so that something is left to resume."""
    deadline = time.monotonic() + 240
    while not (folder / ".parts" / "pretraining.safetensors").exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def same_files(one, other):
    for name in STABLE:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(place, cache, by_two):
    done = fewjoule("run", "small.toml", "--out", "one", cwd=place, cache=cache)
    assert done.returncode == 0, done.stderr
    one, two = (rows(folder / "evaluation.csv") for folder in (place / "one", by_two))
    labels = [[tuple(row[c] for c in ("method", "seed", "task", "steps")) for row in table] for table in (one, two)]
    assert labels[0] == labels[1]
    losses = [[float(row["loss"]) for row in table] for table in (one, two)]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
    energy = [rows(folder / "energy.csv") for folder in (place / "one", by_two)]
    for a, b in zip(*energy, strict=True):
        known = [k for k in a if k not in ("joules", "seconds") or a["kind"] == "analytic"]
        assert [a[k] for k in known] == [b[k] for k in known]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_run_whose_process_is_killed_ends_in_one_line_and_resumes(place, cache, by_two, victim):
    folder = place / f"killed-{victim}"
    parent = start(place, cache, "small.toml", "--out", folder.name, "--processes", 2)
    once_trained(folder, parent)
    (child,) = (c for c in psutil.Process(parent.pid).children() if f"--process {victim} " in " ".join(c.cmdline()))
    child.kill()
    _, error = parent.communicate(timeout=60)
    cure = f"continue with: fewjoule run --resume {folder.name} --processes 2"
    assert error == f"fewjoule: process {victim} of 2 was killed by signal 9, so the run has stopped; {cure}\n"
    assert parent.returncode == 1
    assert sorted(p.name for p in folder.iterdir()) == [".parts", "study.toml"]
    done = fewjoule("run", "--resume", folder.name, "--processes", 2, cwd=place, cache=cache)
    assert done.returncode == 0, done.stderr
    assert "local training" not in done.stdout
    same_files(folder, by_two)


@pytest.mark.slow
def test_processes_started_by_hand_notice_one_that_is_killed(place, cache, by_two):
    address, folder = free_address(), place / "by-hand"
    placed = [("--coordinator", address, "--process", k, "--of", 2) for k in (0, 1)]
    first, other = (start(place, cache, "small.toml", "--out", folder.name, *each) for each in placed)
    once_trained(folder, first)
    other.kill()
    _, error = first.communicate(timeout=120)
    assert first.returncode == 2
    assert error.splitlines() == [
        "fewjoule: another process of this run is gone or out of reach, so the run has stopped; start all of them "
        "again with --resume FOLDER."
    ]
    again = [start(place, cache, "--resume", folder.name, *each) for each in placed]
    for process in again:
        _, error = process.communicate(timeout=240)
        assert process.returncode == 0, error
    same_files(folder, by_two)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_all_processes_end_with_the_one_that_started_them(place, cache, end):
    folder = place / f"stopped-{end}"
    parent = start(place, cache, "small.toml", "--out", folder.name, "--processes", 2)
    once_trained(folder, parent)
    children = psutil.Process(parent.pid).children()
    assert len(children) == 2
    parent.send_signal(end)
    _, error = parent.communicate(timeout=60)
    if end != signal.SIGKILL:
        assert parent.returncode == 130
        assert error == f"stopped; continue with: fewjoule run --resume {folder.name}\n"
    assert not psutil.wait_procs(children, timeout=30)[1]


@pytest.mark.slow
def test_processes_with_other_settings_are_refused(place, cache):
    address = free_address()
    placed = [("--coordinator", address, "--process", k, "--of", 2) for k in (0, 1)]
    first = start(place, cache, "small.toml", "--out", "unlike", *placed[0])
    other = start(place, cache, "small.toml", "--set", "evaluation.tasks=7", *placed[1])
    errors = [process.communicate(timeout=240)[1] for process in (first, other)]
    assert (first.returncode, other.returncode) == (2, 2)
    for error in errors:
        assert error.startswith("fewjoule: process 1 found other data or settings than process 0; start all with")
