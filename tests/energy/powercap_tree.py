"""A powercap tree in a temporary folder, whose counters the test moves, or the metered programs themselves."""

import os
import time
from collections.abc import Callable
from pathlib import Path

from fewjoule.energy import NoMeterError, metering
from fewjoule.training.program import Program

RANGE_UJ = 262_143_328_850
JOULES_A_RUN = 1e-3


def put(counter: Path, value: int) -> None:
    """Set a counter in one write, as the kernel does: whoever reads meanwhile sees the old number or the new one."""
    file = os.open(counter, os.O_WRONLY)
    os.pwrite(file, f"{value:<20}\n".encode(), 0)
    os.close(file)


def wait_until(seen: Callable[[], bool]) -> None:
    """Until the watching thread has seen something."""
    for _ in range(6000):
        if seen():
            return
        time.sleep(0.005)
    raise AssertionError("nothing seen in 30 s")


class Tree:
    """`zone("intel-rapl:0", "package-0", at=5)` makes a zone; `use(joules, "intel-rapl:0")` moves its counter."""

    def __init__(self, root: Path, *, nested: bool = False) -> None:
        self.root, self.nested = root, nested
        root.mkdir(exist_ok=True)

    def path(self, zone: str) -> Path:
        kind, *numbers = zone.split(":")
        if self.nested and len(numbers) == 2:
            return self.root / f"{kind}:{numbers[0]}" / zone
        return self.root / zone

    def zone(self, zone: str, name: str, *, at: int = 1_000_000, range_uj: int = RANGE_UJ) -> Path:
        folder = self.path(zone)
        folder.mkdir()
        (folder / "name").write_text(name + "\n")
        (folder / "energy_uj").touch()
        put(folder / "energy_uj", at)
        (folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
        return folder

    def use(self, joules: float, *zones: str) -> None:
        """Move counters on, wrapping where the range ends."""
        for zone in zones:
            folder = self.path(zone)
            at = int((folder / "energy_uj").read_text()) + round(joules * 1e6)
            range_uj = int((folder / "max_energy_range_uj").read_text())
            put(folder / "energy_uj", at % range_uj)


def metered(root: Path, patch) -> list[Program]:
    """A machine with one counter, which each run of a metered program moves on by `JOULES_A_RUN`.

    Gives the metered programs, in their order, once they have run. `patch` is pytest's monkeypatch.
    """
    tree, window, run, programs = Tree(root), metering._window, Program.run, []
    tree.zone("intel-rapl:0", "package-0")

    def no_accelerator():
        raise NoMeterError("no accelerator in this test.")

    def using(meter, job, **settings):
        return window(meter, lambda: tree.use(JOULES_A_RUN, "intel-rapl:0") or job(), **settings)

    def noting(program, around=None, work=None):
        if around is not None:
            programs.append(program)
        return run(program, around, work)

    patch.setenv("FEWJOULE_POWERCAP", str(root))
    patch.setattr(metering, "ZeusMeter", no_accelerator)
    patch.setattr(metering, "_window", using)
    patch.setattr(Program, "run", noting)
    return programs
