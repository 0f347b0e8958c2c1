"""Meters: start, do the work, stop, and have its joules with where they come from.

    meter = auto().meter
    meter.start()
    work()
    reading = meter.stop()      # Reading(joules=..., seconds=..., kind="measured", source="powercap ...", ...)

A meter that counts real energy is in `powercap` (Linux, Intel and AMD) or `third_party` (zeus, pyRAPL); the models that
stand in where nothing can be read, and the device they assume, are here; `metering` chooses among them. A reading is
never 0 because something could not be read: that is an error.
"""

import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from fewjoule.energy.limits import Checked, Positive, PositiveInt, amount
from fewjoule.errors import InputError, positive

CLOCK_TOLERANCE_SECONDS = 0.1
"""Two clocks are not read at once; a machine sleeps for longer."""


class Reading(NamedTuple):
    """Energy of one window, or the mean over `repeats` windows with its standard error.

    `scope` is "package" (everything the processor did, other programs too), "process" (this program alone) or "device"
    (a whole board, or an accelerator).
    """

    joules: float
    seconds: float
    cpu_seconds: float
    kind: str  # "measured" or "modelled"
    source: str
    scope: str
    repeats: int = 1
    standard_error_joules: float | None = None


class Meter(ABC):
    """What can be started and stopped, one window at a time; a meter says how it begins one and what it counted."""

    kind: str
    source: str
    scope: str
    _since: tuple[float, float, float] | None = None

    def start(self) -> None:
        self._begin()
        self._since = _clocks()

    def stop(self) -> Reading:
        now = _clocks()
        if self._since is None:
            raise InputError("the meter was stopped without a start; call start() before the work.")
        seconds, cpu_seconds, asleep = (end - begin for begin, end in zip(self._since, now, strict=True))
        self._since = None
        joules = self._joules(seconds, cpu_seconds)
        if self.kind == "measured" and asleep > CLOCK_TOLERANCE_SECONDS:
            raise InputError(
                f"the machine slept for {asleep:.3g} s while {self.source} measured, and counters may start again "
                "after that; keep the machine awake and measure again."
            )
        return Reading(joules, seconds, cpu_seconds, self.kind, self.source, self.scope)

    def _begin(self) -> None:  # noqa: B027, a model has nothing to read
        """Note where the counters stand."""

    @abstractmethod
    def _joules(self, seconds: float, cpu_seconds: float) -> float:
        """Joules of the window that ends now."""


def _clocks() -> tuple[float, float, float]:
    """Seconds awake, of this process on processors, and asleep: those that only the clock since booting counts."""
    now = time.perf_counter()
    since_boot = getattr(time, "CLOCK_BOOTTIME", None)  # Linux, as powercap
    asleep = 0.0 if since_boot is None else time.clock_gettime(since_boot) - time.clock_gettime(time.CLOCK_MONOTONIC)
    return now, time.process_time(), asleep


class NoMeterError(InputError):
    """A meter that this machine does not offer; the text says why and what would help."""


@dataclass(frozen=True, kw_only=True)
class Device(Checked):
    """A processor under load: `watts` for all `cores` together while it does `flops_per_second`.

    Named devices with published numbers are in `fewjoule.energy.presets`. `clock_hz` is that at which the watts were
    measured, where one clock drives all of the chip.
    """

    watts: Positive
    flops_per_second: Positive
    cores: PositiveInt = 1
    clock_hz: Positive | None = None
    name: str = "device"

    @property
    def watts_per_core(self) -> float:
        return self.watts / self.cores

    @property
    def joules_per_flop(self) -> float:
        return self.watts / self.flops_per_second

    def energy_joules(self, flops: float) -> float:
        return amount("flops", flops) * self.joules_per_flop

    def seconds(self, flops: float) -> float:
        return amount("flops", flops) / self.flops_per_second


class CpuTimeMeter(Meter):
    """Modelled: CPU seconds of this process (all its threads) times the watts of one busy core."""

    kind, scope = "modelled", "process"

    def __init__(self, device: Device | None = None, *, watts_per_core: float | None = None) -> None:
        if device is not None and watts_per_core is None:
            self.watts_per_core, whose = device.watts_per_core, device.name
        elif device is None and watts_per_core is not None:
            positive("watts_per_core", watts_per_core)
            self.watts_per_core, whose = watts_per_core, "given"
        else:
            raise InputError("give either a device or watts_per_core for the CPU-time model.")
        self.source = f"CPU time x {self.watts_per_core:.3g} W a core ({whose})"

    def _joules(self, seconds: float, cpu_seconds: float) -> float:
        return cpu_seconds * self.watts_per_core


class OperationMeter(Meter):
    """Modelled: a known number of FLOPs in every window times a device's joules per FLOP.

    The seconds are the device's own, from its FLOP rate, not those of the machine that simulates it.
    """

    kind, scope = "modelled", "device"

    def __init__(self, device: Device, *, flops: float) -> None:
        self._counted, self._seconds = device.energy_joules(flops), device.seconds(flops)
        self.source = f"FLOPs x {device.joules_per_flop:.3g} J ({device.name})"

    def stop(self) -> Reading:
        return super().stop()._replace(seconds=self._seconds, cpu_seconds=self._seconds)

    def _joules(self, seconds: float, cpu_seconds: float) -> float:
        return self._counted


class Together(Meter):
    """Several measured meters over the same window, added up: an accelerator beside the processor's package."""

    kind, scope = "measured", "device"

    def __init__(self, *meters: Meter) -> None:
        if any(meter.kind != "measured" for meter in meters) or not meters:
            raise InputError("only measured meters are added up; a model beside a measurement is its own row.")
        self._meters = meters
        self.source = " + ".join(meter.source for meter in meters)

    def _begin(self) -> None:
        for meter in self._meters:
            meter.start()

    def _joules(self, seconds: float, cpu_seconds: float) -> float:
        return sum(meter.stop().joules for meter in reversed(self._meters))
