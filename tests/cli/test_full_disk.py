"""Disks that are full and places that are read-only: one line, exit code 2, nothing lost, and the run goes on later.

No file may grow beyond a limit, which the kernel enforces: writing fails in the middle, as on a full disk.
"""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fewjoule.models.nets import mlp
from fewjoule.models.weights import write_model
from tests.cli.conftest import Command
from tests.reporting.run_folders import METHODS, make_folder

STUDY = """name = "small"
seeds = [0]
[family]
kind = "sinusoid"
amplitudes = [2, 6]
samples = 20
validation = 0
[model]
spec = "mlp:1-400-1"
[local]
max_steps = 5
[evaluation]
tasks = 600
steps = [0, 1]
headline = 1
[energy]
meter = "operations"
[[methods]]
name = "average"
method = "average"
"""


@contextlib.contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Python ignores the signal that comes with it, so writing fails with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def one_line(err: str) -> str:
    """The mistake's line; programs that could not be kept may be said too, once."""
    warned = [line for line in err.splitlines() if line.startswith("fewjoule: warning: ")]
    assert len(warned) <= 1
    (line,) = [line for line in err.splitlines() if line.startswith("fewjoule: ") and line not in warned]
    assert "Traceback" not in err
    return line


@pytest.mark.slow
def test_a_run_on_a_full_disk_goes_on_later(fewjoule: Command, tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(STUDY)
    run = tmp_path / "run"
    with no_file_beyond(100):  # not even the settings fit
        code, _, err = fewjoule("run", tmp_path / "small.toml", "--out", run)
    assert code == 2
    assert "study.toml cannot be written (File too large); free space or choose another place" in one_line(err)
    assert not run.exists()
    command = ("run", tmp_path / "small.toml", "--out", run)
    # the local models, then the table of all tasks, then the page do not fit
    for size, file in ((3000, ".parts/pretraining"), (25_000, "evaluation.csv"), (80_000, "report.html")):
        with no_file_beyond(size):
            code, _, err = fewjoule(*command)
        assert code == 2
        assert f"{run / file}" in one_line(err)
        assert "cannot be written (File too large)" in one_line(err)
        assert not [name for name in tree(run) if name.endswith(".part")]
        command = ("run", "--resume", run)
    code, _, err = fewjoule(*command)
    assert code == 0, err
    assert fewjoule("run", tmp_path / "small.toml", "--out", tmp_path / "again")[0] == 0
    for name in ("evaluation.csv", "meta/average-0.safetensors"):
        assert (run / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


@pytest.mark.slow
def test_train_on_a_full_disk_keeps_what_was_there(fewjoule: Command, tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    x = np.linspace(-1, 1, 9)
    np.savez(tmp_path / "agents" / "a.npz", x=x, y=np.sin(x))
    (tmp_path / "m").write_text("mine")
    command = ("train", tmp_path / "agents", "--model", "mlp:1-40-1", "--method", "average", "--local-steps", 3)
    command = (*command, "-o", tmp_path / "m", "--force")
    with no_file_beyond(100):
        code, _, err = fewjoule(*command)
    assert code == 2
    assert "cannot be written (File too large)" in one_line(err)
    assert sorted(tree(tmp_path)) == ["agents/a.npz", "m"]
    assert (tmp_path / "m").read_text() == "mine"
    code, _, err = fewjoule(*command)
    assert code == 0, err
    assert (tmp_path / "m").read_bytes()[:4] != b"mine"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    model = mlp([1, 40, 1])
    write_model(tmp_path / "meta", model, np.linspace(-1, 1, model.size))
    (tmp_path / "new").mkdir()
    for name in ("a", "b"):
        np.savez(tmp_path / "new" / f"{name}.npz", x=np.ones((3, 1)), y=np.ones(3))
    return tmp_path


WRITERS = {
    "adapt": ("adapt", "{meta}", "{new}/a.npz", "--steps", 1, "-o", "{out}"),
    "adapt, a folder": ("adapt", "{meta}", "{new}", "--steps", 1, "-o", "{out}"),
    "export": ("export", "{meta}", "--to", "pytorch", "-o", "{out}"),
    "export, C": ("export", "{meta}", "--to", "c", "-o", "{out}"),
    "predict": ("predict", "{meta}", "{new}/a.npz", "-o", "{out}"),
}


@pytest.mark.parametrize("which", WRITERS)
def test_nothing_half_written_stays(which: str, fewjoule: Command, place: Path) -> None:
    names = {"meta": place / "meta", "new": place / "new", "out": place / "out"}
    command = [part.format(**names) if isinstance(part, str) else part for part in WRITERS[which]]
    before = tree(place)
    with no_file_beyond(10):
        code, _, err = fewjoule(*command)
    assert code == 2
    assert "cannot be written (File too large); free space" in one_line(err)
    assert tree(place) == before
    assert fewjoule(*command)[0] == 0
    assert len(tree(place)) > len(before)


def test_a_report_on_a_full_disk_leaves_the_old_one(fewjoule: Command, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "run", methods={"average": METHODS["average"]}, tasks=3)
    (folder / "report.html").write_text("old")
    before = tree(folder)
    with no_file_beyond(10):
        code, _, err = fewjoule("report", folder)
    assert code == 2
    assert "cannot be written (File too large); free space" in one_line(err)
    assert tree(folder) == before


def test_a_read_only_place_is_refused_before_the_work(
    fewjoule: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere, so the system's answer is taken, not the modes of a folder."""
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != place and real(path, mode))
    before = tree(place)
    (place / "s.toml").write_text(STUDY)
    names = {"meta": place / "meta", "new": place / "new", "out": place / "out"}
    for command in WRITERS.values():
        code, _, err = fewjoule(*(part.format(**names) if isinstance(part, str) else part for part in command))
        assert code == 2
        assert f"the folder {place} cannot be written to; choose another one" in one_line(err)
    (place / "s.toml").unlink()
    assert tree(place) == before
