"""Choosing a meter, and saying which and why."""

from pathlib import Path
from typing import NamedTuple

from fewjoule.energy.devices import Device
from fewjoule.energy.meters import CpuTimeMeter, Meter, NoMeterError, Together
from fewjoule.energy.powercap import POWERCAP, PowercapMeter
from fewjoule.energy.presets import device as named_device
from fewjoule.energy.third_party import ZeusMeter

DEFAULT_DEVICE = "laptop-core"


class Choice(NamedTuple):
    """A meter, and one sentence for the user: what was chosen, and what was not available and why."""

    meter: Meter
    reason: str


def auto(
    *,
    require_measured: bool = False,
    device: Device | str = DEFAULT_DEVICE,
    powercap: Path = POWERCAP,
) -> Choice:
    """The best meter of this machine: counters where they can be read, else the CPU-time model of `device`.

    With `require_measured` a machine without counters is an error that says why and what would help.
    """
    measured: list[Meter] = []
    reasons: list[str] = []
    try:
        measured.append(PowercapMeter(powercap, watch=True))
    except NoMeterError as error:
        reasons.append(str(error))
    try:
        measured.append(ZeusMeter())
    except NoMeterError as error:
        reasons.append(str(error))
    if measured:
        meter = measured[0] if len(measured) == 1 else Together(*measured)
        return Choice(meter, f"measured by {meter.source}.")
    why = " ".join(reasons)
    if require_measured:
        raise NoMeterError(f"energy cannot be measured here: {why}")
    model = CpuTimeMeter(named_device(device) if isinstance(device, str) else device)
    return Choice(model, f"modelled by {model.source}, since energy cannot be measured here: {why}")
