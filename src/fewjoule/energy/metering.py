"""A meter around the execution of a job, for studies, commands and federated agents: readings as plain tables."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

from fewjoule.energy.choice import DEFAULT_DEVICE, auto
from fewjoule.energy.meters import CpuTimeMeter, Meter, OperationMeter, Reading
from fewjoule.energy.powercap import PowercapMeter
from fewjoule.energy.presets import device as named_device

SHORTEST_SECONDS = 0.1
Result = TypeVar("Result")
Execute = Callable[[], Any]
Around = Callable[[Execute], Any]
"""Takes a function that runs a compiled program and waits for its result; gives back that result."""


class Metering:
    """The meter of a run: readings as plain tables (joules, seconds, kind, source) of one execution."""

    def __init__(self, *, meter: str = "auto", device: str = DEFAULT_DEVICE, require_measured: bool = False) -> None:
        self._device = named_device(device)
        self._by_operations = meter == "operations"
        if meter == "powercap":
            self._meter: Meter = PowercapMeter(watch=True)
            self._reason = f"measured by {self._meter.source}."
        elif meter == "auto" or require_measured:
            self._meter, self._reason = auto(require_measured=require_measured, device=self._device)
        else:
            self._meter = CpuTimeMeter(self._device)
            self._reason = f"modelled by {self._meter.source}, as the study asks."
        if self._by_operations:
            self._reason = f"modelled by FLOPs x {self._device.joules_per_flop:.3g} J ({self._device.name})."

    def describe(self) -> str:
        """One sentence for the user: which meter, and why not a better one."""
        return self._reason

    def read(self, job: Callable[[Around], Result], flops: int | None) -> tuple[Result, dict[str, Any]]:
        """Run a job that hands its execution to the meter; `flops` are its operations, where they are known.

        An execution shorter than `SHORTEST_SECONDS` is repeated within one window until that has passed, since a
        counter moves every millisecond at best; the mean is taken.
        """
        readings: list[tuple[Reading, int]] = []

        def around(execute: Execute) -> Any:
            self._meter.start()
            begin, runs = time.perf_counter(), 0
            while True:
                result = execute()
                runs += 1
                if self._by_operations or time.perf_counter() - begin >= SHORTEST_SECONDS:
                    readings.append((self._meter.stop(), runs))
                    return result

        result = job(around)
        assert readings, "a job hands its execution to the meter"
        mean = {
            "joules": sum(reading.joules / runs for reading, runs in readings),
            "seconds": sum(reading.seconds / runs for reading, runs in readings),
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
        counted = meter.stop()
        return {"joules": counted.joules, "seconds": counted.seconds, "kind": counted.kind, "source": counted.source}
