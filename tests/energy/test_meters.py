"""Models against their arithmetic, the choice of a meter, and short jobs on a meter whose answer is known."""

import time

import jax
import jax.numpy as jnp
import pytest

from fewjoule.energy import (
    DEVICES,
    CpuTimeMeter,
    NoMeterError,
    OperationMeter,
    Reading,
    Together,
    auto,
    count,
    device,
    measure,
)
from fewjoule.energy import powercap as powercap_module
from fewjoule.errors import InputError


def spin(seconds):
    begin = time.process_time()
    while time.process_time() - begin < seconds:
        pass


def test_cpu_time_model_is_cpu_seconds_times_watts():
    meter = CpuTimeMeter(watts_per_core=8.0)
    meter.start()
    spin(0.05)
    time.sleep(0.05)
    reading = meter.stop()
    assert reading.joules == pytest.approx(8.0 * reading.cpu_seconds)
    assert reading.cpu_seconds >= 0.05
    assert reading.seconds >= 0.1
    assert (reading.kind, reading.scope) == ("modelled", "process")
    assert "8 W a core" in reading.source


def test_cpu_time_model_takes_a_device():
    pi = device("raspberry-pi-4")
    assert CpuTimeMeter(pi).watts_per_core == pytest.approx(7.2 / 4)
    assert "raspberry-pi-4" in CpuTimeMeter(pi).source
    with pytest.raises(InputError, match="either a device or watts_per_core"):
        CpuTimeMeter()
    with pytest.raises(InputError, match="watts_per_core must be"):
        CpuTimeMeter(watts_per_core=0.0)


def test_operation_model_is_flops_times_joules_per_flop():
    flops = count(lambda a: a @ a, jnp.ones((64, 64))).flops
    meter = OperationMeter(device("cortex-m4"), flops=flops)
    meter.start()
    reading = meter.stop()
    assert reading.joules == pytest.approx(2 * 64**3 * 42.654e-3 / (2 * 120e6 / 8))
    assert reading.seconds == pytest.approx(64**3 * 8 / 120e6)
    assert (reading.kind, reading.scope) == ("modelled", "device")


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_has_a_source_and_sensible_numbers(name):
    preset = device(name)
    assert preset.name == name
    assert any(mark in preset.source for mark in ("top500-benchmark", "MLPerf Tiny"))
    assert 1e-11 < preset.joules_per_flop < 1e-8
    assert 1e-3 < preset.watts_per_core < 20


def test_the_m33s_rate_is_the_published_time_of_the_published_network():
    # GMP of ST's model zoo on 48 x 3 samples: two convolutions 5 x 1 with 16 filters, then 16 -> 4; 10.64 ms, 160 MHz.
    macs = 44 * 3 * 16 * 5 + 40 * 3 * 16 * 5 * 16 + 16 * 4
    assert device("cortex-m33").flops_per_second == pytest.approx(2 * macs / 10.64e-3, rel=0.01)


def test_wrong_devices_say_what_is_wrong():
    with pytest.raises(InputError, match="did you mean 'raspberry-pi-4'"):
        device("rasberry-pi-4")
    with pytest.raises(InputError, match="watts must be above 0"):
        device("laptop-core", watts=0)
    with pytest.raises(InputError, match="flops must be a finite number"):
        device("laptop-core").energy_joules(-1)


def test_auto_falls_back_to_the_model_and_says_why(tmp_path, no_accelerator):
    choice = auto(powercap=tmp_path)
    assert choice.meter.kind == "modelled"
    assert choice.reason.startswith(
        "modelled by CPU time x 6.25 W a core (laptop-core), since energy cannot be measured"
    )
    assert str(tmp_path) in choice.reason


def test_require_measured_fails_with_reason_and_cure(tmp_path, no_accelerator):
    with pytest.raises(NoMeterError, match="energy cannot be measured here: no energy counter"):
        auto(powercap=tmp_path, require_measured=True)


@pytest.mark.parametrize(
    ("virtual", "container", "system", "cure"),
    [
        (True, False, "Linux", "a virtual machine has no energy counters"),
        (True, True, "Linux", "a virtual machine has no energy counters"),
        (False, True, "Linux", "-v /sys/devices/virtual/powercap:/powercap:ro"),
        (False, False, "Linux", "sudo modprobe intel_rapl_msr"),
        (False, False, "Darwin", r"pip install 'fewjoule\[zeus\]'|install 'fewjoule\[zeus\]' for Apple"),
    ],
)
def test_the_cure_fits_the_machine(tmp_path, monkeypatch, no_accelerator, virtual, container, system, cure):
    monkeypatch.setattr(powercap_module, "in_virtual_machine", lambda: virtual)
    monkeypatch.setattr(powercap_module, "in_container", lambda: container)
    monkeypatch.setattr(powercap_module.platform, "system", lambda: system)
    with pytest.raises(NoMeterError, match=cure):
        auto(powercap=tmp_path, require_measured=True)


class Bench:
    """A measured meter of a machine that draws `idle` watts, and `joules_per_run` more for every run of the job."""

    kind, source, scope = "measured", "bench", "package"

    def __init__(self, idle=(10.0, 10.0), joules_per_run=2e-3):
        self.idle, self.joules_per_run = list(idle), joules_per_run
        self.runs, self.windows = 0, 0

    def job(self):
        self.runs += 1
        time.sleep(1e-3)
        return jnp.ones(3)

    def start(self):
        self._begin = (time.perf_counter(), self.runs)
        self.windows += 1

    def stop(self):
        seconds, runs = time.perf_counter() - self._begin[0], self.runs - self._begin[1]
        watts = self.idle[0] if self.windows == 1 else self.idle[1] if not runs else sum(self.idle) / 2
        return Reading(watts * seconds + runs * self.joules_per_run, seconds, 0.0, self.kind, self.source, self.scope)


def test_short_jobs_give_gross_and_net():
    bench = Bench()
    result = measure(bench.job, bench, total_seconds=0.2, batches=4, idle_seconds=0.02)
    assert result.net.joules == pytest.approx(2e-3, rel=1e-6)
    assert result.gross.joules == pytest.approx(2e-3 + 10 * result.gross.seconds)
    assert result.net.repeats == result.gross.repeats >= 4
    assert result.gross.standard_error_joules is not None
    assert (result.idle_watts_before, result.idle_watts_after) == (pytest.approx(10), pytest.approx(10))
    assert not result.doubtful
    assert "less 10 W idle" in result.net.source
    assert bench.windows == 6


def test_idle_windows_that_disagree_make_a_reading_doubtful():
    bench = Bench(idle=(10.0, 14.0))
    result = measure(bench.job, bench, total_seconds=0.1, batches=2, idle_seconds=0.02)
    assert result.doubtful
    assert result.net.standard_error_joules >= 2.0 * result.gross.seconds  # half of the 4 W between the windows


def test_short_jobs_warm_up_before_they_measure():
    compiled = []

    @jax.jit
    def square(a):
        compiled.append(1)
        return a @ a

    meter = CpuTimeMeter(watts_per_core=5.0)
    result = measure(lambda: square(jnp.ones((32, 32))), meter, total_seconds=0.1, batches=2, idle_seconds=0.01)
    assert compiled == [1]
    assert result.gross.repeats >= 2
    assert 0 < result.gross.joules < 0.1


def test_short_jobs_refuse_what_has_no_meaning():
    meter = CpuTimeMeter(watts_per_core=5.0)
    with pytest.raises(InputError, match="batches must be at least 2"):
        measure(lambda: None, meter, batches=1)
    with pytest.raises(InputError, match="total_seconds must be above 0"):
        measure(lambda: None, meter, total_seconds=0)
    with pytest.raises(InputError, match="nothing to repeat"):
        measure(lambda: None, OperationMeter(device("cortex-m4"), flops=1))


def test_only_measured_meters_are_put_together():
    both = Together(Bench(), Bench())
    both.start()
    time.sleep(0.01)
    reading = both.stop()
    assert reading.joules == pytest.approx(20 * reading.seconds, rel=0.05)
    assert reading.source == "bench + bench"
    with pytest.raises(InputError, match="only measured meters"):
        Together(Bench(), CpuTimeMeter(watts_per_core=1.0))
