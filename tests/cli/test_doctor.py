"""`fewjoule doctor` as a user runs it: what it says, and exit code 0 only where a run would work."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fewjoule import files
from fewjoule.cli import app, doctor
from fewjoule.energy import NoMeterError, metering


@pytest.fixture
def run(monkeypatch, tmp_path):
    def absent():
        raise NoMeterError("no accelerator in this test.")

    monkeypatch.setattr(metering, "ZeusMeter", absent)
    monkeypatch.setattr(doctor, "_small_run", lambda: "left out in this test")
    monkeypatch.setattr(files, "use_compile_cache", lambda: files.cache_dir() / "jax")  # a global setting
    monkeypatch.setenv("FEWJOULE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "none").mkdir()
    return lambda *args: CliRunner().invoke(app, ["doctor", *args])


def counters(folder: Path) -> Path:
    zone = folder / "intel-rapl:0"
    zone.mkdir(parents=True)
    for name, text in {"name": "package-0", "energy_uj": "1000", "max_energy_range_uj": "262143328850"}.items():
        (zone / name).write_text(text + "\n")
    return folder


def test_a_machine_without_counters_can_run_with_a_model(run, tmp_path):
    result = run("--powercap", str(tmp_path / "none"))
    assert result.exit_code == 0
    assert "energy       modelled by CPU time x 6.25 W a core (laptop-core) (scope: process)" in result.stdout
    assert f"no: no energy counter of a processor package below {tmp_path / 'none'}" in result.stdout
    assert f"cache        {tmp_path / 'cache'}" in result.stdout
    assert "JAX computes on" in result.stdout
    assert "versions" in result.stdout


def test_counters_that_can_be_read_are_named(run, tmp_path):
    result = run("--powercap", str(counters(tmp_path / "powercap")), "--require-measured")
    assert result.exit_code == 0
    assert "measured by powercap package-0 (scope: package)" in result.stdout


def test_require_measured_fails_where_nothing_can_be_read(run, tmp_path):
    result = run("--powercap", str(tmp_path / "none"), "--require-measured")
    assert result.exit_code == 1
    assert "PROBLEM: energy cannot be measured here" in result.stdout


def test_a_cache_that_cannot_be_written_is_a_problem(run, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEWJOULE_CACHE", str(tmp_path / "file"))
    result = run("--powercap", str(tmp_path / "none"))
    assert result.exit_code == 1
    assert "cache        PROBLEM: " in result.stdout


def test_a_run_that_fails_is_a_problem(run, tmp_path, monkeypatch):
    def broken():
        raise RuntimeError("no such device")

    monkeypatch.setattr(doctor, "_small_run", broken)
    result = run("--powercap", str(tmp_path / "none"))
    assert result.exit_code == 1
    assert "a small run  PROBLEM: RuntimeError: no such device" in result.stdout


def test_the_small_run_works_here():
    assert doctor._small_run().startswith("works: ")
