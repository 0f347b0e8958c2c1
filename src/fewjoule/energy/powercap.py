"""Energy counters of Linux powercap (RAPL of Intel and AMD processors).

The counters are cumulative, in microjoules, and wrap to 0 at `max_energy_range_uj`. Zones overlap, so only these are
added up: every package (or every die of a package), and the memory (dram) of each. Left out: `core` and `uncore`, which
a package contains; `psys`, which contains the packages; the memory-mapped twin (intel-rapl-mmio) of a package that the
processor's own registers report too; and dies that all mirror one counter of their package.
"""

import errno
import os
import platform
import re
import threading
import time
from pathlib import Path
from typing import NamedTuple

from fewjoule.energy.meters import Meter, NoMeterError
from fewjoule.errors import InputError

POWERCAP = "/sys/class/powercap"
POWERCAP_VARIABLE = "FEWJOULE_POWERCAP"
MAX_WATTS = 1000.0
COUNTER_LAG_SECONDS = 0.01
"""A counter moves in jumps: what it shows may be this old, so a short window can hold the energy of a longer one."""
LOOKS_PER_RANGE = 4
_COUNTER_RIGHTS = "sudo chmod a+r /sys/class/powercap/intel-rapl*/energy_uj (again after each boot, or by a udev rule)"
_ZONE = re.compile(r"intel-rapl(-mmio)?:\d+(:\d+)?")
_PACKAGE = re.compile(r"package-\d+(-die-\d+)?")


class Zone(NamedTuple):
    """One counter: its folder, a name such as `package-0` or `package-0 dram`, and where it wraps (microjoules)."""

    path: Path
    name: str
    range_uj: int


class PowercapMeter(Meter):
    """Measured: the packages and their memory, as the kernel counts them.

    `root` is the folder of the counters; without it $FEWJOULE_POWERCAP, or else the kernel's own. A counter may wrap
    once between two looks at it, so a window is exact as long as nobody could have used its whole range in that time:
    `max_watts` is what one zone can draw at most. A longer window is refused, unless `watch` lets a background thread
    look often enough; so is more than `max_watts`, which a counter shows that was set back. `dram=False` leaves memory
    out.
    """

    kind, scope = "measured", "package"

    def __init__(
        self, root: Path | None = None, *, dram: bool = True, max_watts: float = MAX_WATTS, watch: bool = False
    ) -> None:
        self.zones = find_zones(Path(root or os.environ.get(POWERCAP_VARIABLE) or POWERCAP), dram=dram)
        self.source = "powercap " + ", ".join(zone.name for zone in self.zones)
        self._files = [_open(zone.path / "energy_uj") for zone in self.zones]
        self.longest_seconds = min(zone.range_uj for zone in self.zones) / 1e6 / max_watts
        self._max_watts = max_watts
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._used_uj: list[int] | None = None
        self._refusal: InputError | None = None
        self._last_uj, self._looked = self._read(), time.monotonic()
        if watch:
            threading.Thread(target=self._watch, name="fewjoule-powercap", daemon=True).start()

    def _begin(self) -> None:
        with self._lock:
            self._last_uj, self._looked = self._read(), time.monotonic()
            self._used_uj, self._refusal = [0] * len(self.zones), None

    def _joules(self, seconds: float, cpu_seconds: float) -> float:
        with self._lock:
            self._look()
            used, self._used_uj = self._used_uj, None
            if self._refusal is not None:
                raise self._refusal
        assert used is not None
        for zone, microjoules in zip(self.zones, used, strict=True):
            if microjoules == 0:
                raise InputError(
                    f"the counter of {zone.name} did not move in {seconds:.3g} s, so there is no reading; measure for "
                    "at least 10 ms" + (", or leave memory out with dram=False." if "dram" in zone.name else ".")
                )
        return sum(used) / 1e6

    def close(self) -> None:
        """Close the counters and end the background thread."""
        self._closed.set()
        with self._lock:
            for file in self._files:
                os.close(file)
            self._files = []

    def _read(self) -> list[int]:
        return [_counter(file, zone.path) for file, zone in zip(self._files, self.zones, strict=True)]

    def _look(self) -> None:
        """Add what was used since the last look, or keep why that is not known; the caller holds the lock."""
        if self._used_uj is None or self._refusal is not None:
            return
        try:
            now, gap = self._read(), time.monotonic() - self._looked
            for i, (zone, last, current) in enumerate(zip(self.zones, self._last_uj, now, strict=True)):
                self._used_uj[i] += self._used(zone, last, current, gap)
        except InputError as error:
            self._refusal = error  # for the whole window, whoever looked
            return
        self._last_uj, self._looked = now, time.monotonic()

    def _used(self, zone: Zone, last: int, current: int, gap: float) -> int:
        """Microjoules between two looks `gap` seconds apart; one wrap is undone, what cannot be is refused."""
        if gap > self.longest_seconds:
            raise InputError(
                f"{gap:.3g} s passed without a look at the counters, which can wrap more than once after "
                f"{self.longest_seconds:.3g} s; measure in shorter windows, or use PowercapMeter(watch=True)."
            )
        used = current - last + (zone.range_uj if current < last else 0)
        if used > self._max_watts * 1e6 * (gap + COUNTER_LAG_SECONDS):
            raise InputError(
                f"the counter of {zone.name} went from {last / 1e6:.6f} J to {current / 1e6:.6f} J in {gap:.3g} s, "
                f"which is neither a use below {self._max_watts:g} W nor a wrap: it was set back or jumped; measure "
                "again, or give PowercapMeter a higher max_watts if the processor can draw more."
            )
        return used

    def _watch(self) -> None:
        while not self._closed.wait(self.longest_seconds / LOOKS_PER_RANGE):
            with self._lock:
                if self._closed.is_set():
                    return
                self._look()


def find_zones(root: Path, *, dram: bool = True) -> list[Zone]:
    """The counters to add up, none counted twice; `NoMeterError` with the reason and the cure where there are none."""
    folders = sorted(p for p in root.glob("intel-rapl*:*") if _ZONE.fullmatch(p.name)) if root.is_dir() else []
    # Below /sys/class every zone is listed beside its parent; below /sys/devices it is inside it.
    folders += [p for folder in folders for p in folder.glob("intel-rapl*:*:*") if not (root / p.name).exists()]
    names = {folder: _text(folder / "name") for folder in folders}
    packages: dict[str, Path] = {}
    for folder in sorted(folders, key=lambda p: (p.name.startswith("intel-rapl-mmio"), p.name)):
        if _PACKAGE.fullmatch(names[folder]):
            packages.setdefault(names[folder], folder)
    if not packages:
        raise NoMeterError(f"no energy counter of a processor package below {root}; {_cure(None)}")
    for name in _mirrors(packages):
        del packages[name]
    zones = []
    for name, folder in packages.items():
        zones.append(_zone(folder, name))
        for sub in folders:
            if dram and names[sub] == "dram" and sub.name.rpartition(":")[0] == folder.name:
                zones.append(_zone(sub, f"{name} dram"))
    return zones


def _mirrors(packages: dict[str, Path]) -> list[str]:
    """Dies whose counter is another die's of the same package."""
    mirrored: list[str] = []
    for name in packages:
        package, die, _ = name.partition("-die-")
        others = [n for n in packages if n.startswith(package + "-die-") and n < name and n not in mirrored]
        if die and any(_same_counter(packages[name], packages[other]) for other in others):
            mirrored.append(name)
    return mirrored


def _same_counter(one: Path, other: Path) -> bool:
    """Whether one counter reads between two reads of the other; tried again, since either may wrap meanwhile."""

    def read(folder: Path) -> int:
        return _number(_text(folder / "energy_uj").encode(), folder)

    return any(0 < read(other) <= read(one) <= read(other) for _ in range(3))


def _zone(folder: Path, name: str) -> Zone:
    path = folder / "max_energy_range_uj"
    text = _text(path)
    if not text.isdecimal() or int(text) == 0:
        raise NoMeterError(f"{path} must hold the range in microjoules, got {text!r}; a wrap could not be undone.")
    return Zone(folder, name, int(text))


def _open(path: Path) -> int:
    try:
        file = os.open(path, os.O_RDONLY)
        os.pread(file, 1, 0)
    except OSError as error:
        raise _unreadable(path, error) from error
    return file


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise _unreadable(path, error) from error


def _counter(file: int, folder: Path) -> int:
    try:
        return _number(os.pread(file, 32, 0), folder)
    except OSError as error:
        raise _unreadable(folder / "energy_uj", error) from error


def _number(text: bytes, folder: Path) -> int:
    try:
        return int(text)
    except ValueError:
        path = folder / "energy_uj"
        raise NoMeterError(f"{path} must hold a whole number, got {text!r}; this counter is not usable.") from None


def _unreadable(path: Path, error: OSError) -> NoMeterError:
    return NoMeterError(f"{path} cannot be read ({error.strerror}); {_cure(error)}")


def in_virtual_machine() -> bool:
    """Whether the processor says that it is virtual."""
    return re.search(r"^flags.* hypervisor", _proc("cpuinfo"), re.MULTILINE) is not None


def in_container() -> bool:
    """Whether the usual marks of Docker, Podman, Kubernetes or systemd-nspawn are there."""
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return True
    return any(word in _proc("1/cgroup") for word in ("docker", "kubepods", "lxc", "containerd"))


def _proc(name: str) -> str:
    try:
        return Path("/proc", name).read_text()
    except OSError:
        return ""


def _cure(error: OSError | None) -> str:
    """Why powercap gives nothing here, and what to do."""
    if error is not None and error.errno in (errno.EACCES, errno.EPERM):
        return f"since Linux 5.10 only root may read it: {_COUNTER_RIGHTS}."
    if error is not None and error.errno == errno.EIO:
        return "the processor did not answer; measure again, or accept a model with the meter cpu-time."
    if error is not None:
        return "the kernel's powercap files are not complete here; run on the host itself."
    if platform.system() != "Linux":
        return f"powercap is Linux only and this is {platform.system()}; install 'fewjoule[zeus]' for Apple silicon."
    if in_virtual_machine():
        return "a virtual machine has no energy counters; run on the host itself, or accept a model."
    if in_container():
        return (
            "a container does not see the host's counters unless they are handed in: run it with "
            f"-v /sys/devices/virtual/powercap:/powercap:ro -e {POWERCAP_VARIABLE}=/powercap/intel-rapl."
        )
    return "load the driver with: sudo modprobe intel_rapl_msr (Linux 3.13 for Intel, 5.8 for AMD)."
