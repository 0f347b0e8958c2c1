"""Choosing a meter, and putting it around a job: readings as plain tables for studies, commands and federated agents.

A counter that moves every millisecond says little about a job of a microsecond, so short jobs are repeated within one
window. `Metering` does that for every execution of a run; `measure` for one job, with the idle power taken off.
"""

import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

from fewjoule.energy.limits import ABOVE_0
from fewjoule.energy.meters import CpuTimeMeter, Device, Meter, NoMeterError, OperationMeter, Reading, Together
from fewjoule.energy.powercap import PowercapMeter
from fewjoule.energy.presets import device as named_device
from fewjoule.energy.third_party import ZeusMeter
from fewjoule.errors import InputError, unknown

DEFAULT_DEVICE = "laptop-core"
MODELS = ("cpu-time", "operations")
METERS = ("auto", "powercap", *MODELS)
SHORTEST_SECONDS = 0.1
IDLE_TOLERANCE = 0.1
Result = TypeVar("Result")
Execute = Callable[[], Any]
Around = Callable[[Execute], Any]
"""Takes a function that runs a compiled program and waits for its result; gives back that result."""


class ChosenMeter(NamedTuple):
    """A meter, and one sentence for the user: what was chosen, and what was not available and why."""

    meter: Meter
    reason: str


def auto(
    *, require_measured: bool = False, device: Device | str = DEFAULT_DEVICE, powercap: Path | None = None
) -> ChosenMeter:
    """The best meter of this machine: counters where they can be read, else the CPU-time model of `device`.

    With `require_measured` a machine without counters is an error that says why and what would help. `powercap` is the
    folder of the counters, where it is not the one of `PowercapMeter`.
    """
    measured: list[Meter] = []
    reasons: list[str] = []
    counters: tuple[Callable[[], Meter], ...] = (lambda: PowercapMeter(powercap, watch=True), lambda: ZeusMeter())
    for build in counters:
        try:
            measured.append(build())
        except NoMeterError as error:
            reasons.append(str(error))
    if measured:
        meter = measured[0] if len(measured) == 1 else Together(*measured)
        return ChosenMeter(meter, f"measured by {meter.source}.")
    why = " ".join(reasons)
    if require_measured:
        raise NoMeterError(f"energy cannot be measured here: {why}")
    model = CpuTimeMeter(named_device(device) if isinstance(device, str) else device)
    return ChosenMeter(model, f"modelled by {model.source}, since energy cannot be measured here: {why}")


def check_meter(meter: str, *, require_measured: bool) -> None:
    """Refuse a meter that does not exist, and a model where measured joules are required."""
    if meter not in METERS:
        raise unknown("meter", meter, METERS)
    if require_measured and meter in MODELS:
        raise InputError(
            f"require_measured asks for joules that a counter read, but the meter {meter!r} is a model; choose the "
            "meter auto or powercap, or leave require_measured out."
        )


class Metering:
    """The meter of a run: readings as plain tables (joules, seconds, kind, source) of one execution."""

    def __init__(self, *, meter: str = "auto", device: str = DEFAULT_DEVICE, require_measured: bool = False) -> None:
        check_meter(meter, require_measured=require_measured)
        self._device = named_device(device)
        self._by_operations = meter == "operations"
        self._meter: Meter = CpuTimeMeter(self._device)
        self._reason = f"modelled by {self._meter.source}, as the study asks."
        if self._by_operations:
            self._reason = f"modelled by FLOPs x {self._device.joules_per_flop:.3g} J ({self._device.name})."
        elif meter == "powercap":
            self._meter = PowercapMeter(watch=True)
            self._reason = f"measured by {self._meter.source}."
        elif meter == "auto":
            self._meter, self._reason = auto(require_measured=require_measured, device=self._device)
            if self._meter.kind != "measured":
                self._reason = f"modelled, {self._meter.source}; see `fewjoule doctor`"

    def describe(self) -> str:
        """One sentence for the user: which meter, and why not a better one."""
        return self._reason

    @property
    def measured(self) -> bool:
        """Whether a counter of the machine is read."""
        return self._meter.kind == "measured" and not self._by_operations

    def read(self, job: Callable[[Around], Result], flops: int | None) -> tuple[Result, dict[str, Any]]:
        """Run a job that hands its execution to the meter; `flops` are its operations, where they are known.

        An execution shorter than `SHORTEST_SECONDS` is repeated within one window until that has passed, and the mean
        is taken.
        """
        readings: list[Reading] = []

        def around(execute: Execute) -> Any:
            done, reading = _window(self._meter, execute, seconds=0.0 if self._by_operations else SHORTEST_SECONDS)
            readings.append(reading)
            return done

        result = job(around)
        assert readings, "a job hands its execution to the meter"
        mean = {
            "joules": sum(reading.joules for reading in readings),
            "seconds": sum(reading.seconds for reading in readings),
            "kind": self._meter.kind,
            "source": self._meter.source,
        }
        return result, mean if flops is None else self.of_flops(mean, flops)

    def of_flops(self, reading: dict[str, Any], flops: int) -> dict[str, Any]:
        """The reading, or what the device would spend on this many FLOPs where operation counts are asked for."""
        if not self._by_operations:
            return reading
        meter = OperationMeter(self._device, flops=flops)
        meter.start()
        counted = meter.stop()._asdict()
        return {key: counted[key] for key in reading}


class ShortJob(NamedTuple):
    """Energy of one run of the job.

    `gross` is what the meter counted; `net` is gross less the idle power for the same time, and its standard error
    includes half the difference of the idle windows. Both are means over `repeats` runs.
    """

    gross: Reading
    net: Reading
    idle_watts_before: float
    idle_watts_after: float
    doubtful: bool


def measure(
    job: Execute,
    meter: Meter,
    *,
    total_seconds: float = 2.0,
    batches: int = 5,
    idle_seconds: float = 0.5,
    idle_tolerance: float = IDLE_TOLERANCE,
) -> ShortJob:
    """Measure one run of `job`, a function without arguments that returns its arrays (so that they can be waited for).

    The job is warmed up (compiled), repeated in batches that together last `total_seconds`, and waited for at the end
    of each batch. The idle power comes from a window before and one after. Where these differ by more than
    `idle_tolerance` of the job's own power, something else was running: the result is marked doubtful.
    """
    if isinstance(meter, OperationMeter):
        raise InputError("a meter by operation counts has nothing to repeat; use its reading as it is.")
    if batches < 2:
        raise InputError(f"batches must be at least 2 for a standard error, got {batches}.")
    ABOVE_0.check("total_seconds", total_seconds)
    ABOVE_0.check("idle_seconds", idle_seconds)
    repeats = _repeats(job, total_seconds / batches)
    before = _idle_watts(meter, idle_seconds)
    windows = [_window(meter, job, runs=repeats)[1] for _ in range(batches)]
    after = _idle_watts(meter, idle_seconds)

    joules = statistics.fmean(window.joules for window in windows)
    seconds = statistics.fmean(window.seconds for window in windows)
    cpu_seconds = statistics.fmean(window.cpu_seconds for window in windows)
    error = statistics.stdev(window.joules for window in windows) / math.sqrt(batches)
    runs = repeats * batches
    gross = Reading(joules, seconds, cpu_seconds, meter.kind, meter.source, meter.scope, runs, error)
    idle, spread = (before + after) / 2, abs(before - after)
    net = gross._replace(
        joules=joules - idle * seconds,
        source=f"{meter.source}, less {idle:.3g} W idle",
        standard_error_joules=math.hypot(error, spread / 2 * seconds),
    )
    return ShortJob(gross, net, before, after, doubtful=spread > idle_tolerance * joules / seconds)


def _window(meter: Meter, job: Execute, *, runs: int = 1, seconds: float = 0.0) -> tuple[Any, Reading]:
    """Run a job in one window, at least `runs` times and until `seconds` have passed, and wait for its last result.

    That result, and the mean reading of one run.
    """
    meter.start()
    begin, done = time.perf_counter(), 0
    while done < runs or time.perf_counter() - begin < seconds:
        result = job()
        done += 1
    wait: Callable[[Any], Any] = jax.block_until_ready
    wait(result)
    joules, took, cpu_seconds, kind, source, scope, *_ = meter.stop()
    return result, Reading(joules / done, took / done, cpu_seconds / done, kind, source, scope, done)


def _repeats(job: Execute, seconds: float) -> int:
    """How many runs last `seconds`: after a warm-up, runs are doubled until they take a tenth of that."""
    stopwatch = CpuTimeMeter(watts_per_core=1.0)
    _window(stopwatch, job)
    runs = 1
    while (each := _window(stopwatch, job, runs=runs)[1].seconds) * runs < seconds / 10:
        runs *= 2
    return max(1, round(seconds / each))


def _idle_watts(meter: Meter, seconds: float) -> float:
    _, idle = _window(meter, lambda: time.sleep(seconds))
    return idle.joules / idle.seconds
