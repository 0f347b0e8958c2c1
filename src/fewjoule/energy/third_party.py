"""Meters of other projects, as optional extras.

zeus reads accelerators: NVIDIA and AMD GPUs, Jetson, Apple silicon (`pip install 'fewjoule[zeus]'`). pyRAPL is what
Elgabli et al. 2021 measured with (`pip install 'fewjoule[pyrapl]'`); prefer `PowercapMeter`, which reads the same
counters and knows what to do when they wrap.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fewjoule.energy.meters import Meter, NoMeterError
from fewjoule.errors import InputError


@contextmanager
def _asking(source: str) -> Iterator[None]:
    """Another project's driver may fail at any time and in any way; that is no reading."""
    try:
        yield
    except Exception as error:
        raise NoMeterError(
            f"{source} failed while measuring: {type(error).__name__}: {error}; measure again."
        ) from error


class ZeusMeter(Meter):
    """Measured: all GPUs, or the system on a chip (Jetson, Apple silicon), by zeus.

    zeus' own CPU readings are left out: it adds `psys` to the packages that are part of it. `auto` puts
    `PowercapMeter` beside this meter instead.
    """

    kind, scope = "measured", "device"

    def __init__(self, monitor: Any = None) -> None:
        if monitor is None:
            try:
                from zeus.monitor import ZeusMonitor
            except ImportError as error:
                raise NoMeterError("zeus is not installed; pip install 'fewjoule[zeus]'.") from error
            try:
                monitor = ZeusMonitor(cpu_indices=[], sync_execution_with="jax")
            except Exception as error:  # vendors' bindings fail in ways of their own where their driver is not there
                raise NoMeterError(f"zeus fails on this machine: {type(error).__name__}: {error}.") from error
        if not monitor.gpu_indices and not monitor.soc_is_present:
            raise NoMeterError("zeus finds no GPU, Jetson or Apple silicon on this machine.")
        self._monitor = monitor
        parts = [f"GPU {i}" for i in monitor.gpu_indices] + (["system on a chip"] if monitor.soc_is_present else [])
        self.source = "zeus " + ", ".join(parts)

    def _begin(self) -> None:
        with _asking(self.source):
            self._monitor.begin_window("fewjoule", restart=True)

    def _joules(self, seconds: float, cpu_seconds: float) -> float:
        with _asking(self.source):
            measured = self._monitor.end_window("fewjoule")
        for gpu, energy in measured.gpu_energy.items():
            if energy <= 0:
                raise InputError(f"zeus read {energy} J for GPU {gpu} in {seconds:.3g} s; measure for at least 0.1 s.")
        chip = 0.0 if measured.soc_energy is None else _chip_joules(measured.soc_energy)
        return float(sum(measured.gpu_energy.values())) + chip


# Jetson reports the whole board, or only parts where it has no sensor for that; Apple silicon disjoint parts.
_CHIP_PARTS = (
    ("total_energy_mj",),
    ("cpu_total_mj", "gpu_mj", "gpu_sram_mj", "dram_mj", "ane_mj"),
    ("cpu_energy_mj", "gpu_energy_mj"),
)


def _chip_joules(energy: Any) -> float:
    """The first of these sums of which anything is known; a part that the chip cannot see is None."""
    sums = ([v for name in parts if (v := getattr(energy, name, None)) is not None] for parts in _CHIP_PARTS)
    total = sum(next(filter(None, sums), []))
    if total <= 0:
        raise InputError(f"zeus gave no energy of the chip ({energy}); measure for at least 0.1 s.")
    return float(total) / 1000


class PyraplMeter(Meter):
    """Measured: the packages and their memory, by pyRAPL. It cannot undo a counter's wrap, so that is refused."""

    kind, scope, source = "measured", "package", "pyRAPL"

    def __init__(self) -> None:
        logging.disable(logging.WARNING)  # on import it warns of a database driver that nobody asked for
        try:
            import pyRAPL
        except ImportError as error:
            raise NoMeterError("pyRAPL is not installed; pip install 'fewjoule[pyrapl]'.") from error
        finally:
            logging.disable(logging.NOTSET)
        try:
            self._sensor = pyRAPL.Sensor()
        except (OSError, pyRAPL.PyRAPLException) as error:
            raise NoMeterError(f"pyRAPL cannot read this machine's counters ({type(error).__name__}).") from error

    def _begin(self) -> None:
        with _asking(self.source):
            self._first = list(self._sensor.energy())

    def _joules(self, seconds: float, cpu_seconds: float) -> float:
        with _asking(self.source):
            ends = zip(self._first, self._sensor.energy(), strict=True)
        used = [end - begin for begin, end in ends if begin >= 0]  # -1 stands for a counter that is not there
        if not used or min(used) < 0:
            raise InputError("a counter wrapped, which pyRAPL cannot undo; measure again, or use PowercapMeter.")
        if min(used) == 0:
            raise InputError(f"a counter did not move in {seconds:.3g} s; measure for at least 10 ms.")
        return sum(used) / 1e6
