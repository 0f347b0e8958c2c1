"""Devices as two numbers: watts of a busy core, and joules per floating-point operation.

Named devices with published numbers are in `fewjoule.energy.presets`.
"""

import math
from dataclasses import dataclass

from fewjoule.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Device:
    """A processor under load: `watts` for all `cores` together while it does `flops_per_second`."""

    watts: float
    flops_per_second: float
    cores: int = 1
    name: str = "device"
    source: str = ""

    def __post_init__(self) -> None:
        for field in ("watts", "flops_per_second", "cores"):
            value = getattr(self, field)
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{self.name}: {field} must be above 0, got {value}.")

    @property
    def watts_per_core(self) -> float:
        return self.watts / self.cores

    @property
    def joules_per_flop(self) -> float:
        return self.watts / self.flops_per_second

    def energy_joules(self, flops: float) -> float:
        return _work(flops) * self.joules_per_flop

    def seconds(self, flops: float) -> float:
        return _work(flops) / self.flops_per_second


def _work(flops: float) -> float:
    if not (math.isfinite(flops) and flops >= 0):
        raise InputError(f"flops must be a finite number of at least 0, got {flops}.")
    return float(flops)
