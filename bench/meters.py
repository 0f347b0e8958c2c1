"""Cost of one start and stop of each meter, in microseconds: `python bench/meters.py`.

The powercap meter is timed on this machine's own counters where they can be read, and always on a tree of files in
memory (two packages, each with its memory), so that the reader's own cost is seen. Asked: below 100 µs each.
"""

import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path

from fewjoule.energy import CpuTimeMeter, NoMeterError, PowercapMeter, device
from fewjoule.errors import InputError

LIMIT_MICROSECONDS = 100.0
ROUNDS, WINDOWS = 7, 300


def tree(root: Path) -> Path:
    """Two packages with memory, as the kernel lays them out; the counters stand still."""
    for number in range(2):
        for zone, name in ((f"intel-rapl:{number}", f"package-{number}"), (f"intel-rapl:{number}:0", "dram")):
            (root / zone).mkdir()
            for file, text in (("name", name), ("energy_uj", "123456789"), ("max_energy_range_uj", "262143328850")):
                (root / zone / file).write_text(text + "\n")
    return root


def microseconds(meter: CpuTimeMeter | PowercapMeter) -> list[float]:
    """Mean cost of a start and stop, once per round."""
    means = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(WINDOWS):
            meter.start()
            with contextlib.suppress(InputError):  # a counter that did not move is refused, after it was read
                meter.stop()
        means.append((time.perf_counter() - begin) / WINDOWS * 1e6)
    return means


def main() -> int:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        meters = {
            "CPU-time model": CpuTimeMeter(device("laptop-core")),
            "powercap, 4 zones in files": PowercapMeter(tree(Path(folder))),
        }
        try:
            meters["powercap, this machine"] = PowercapMeter()
        except NoMeterError as error:
            print(f"powercap, this machine: not timed; {error}")
        slow = False
        print(f"{'meter':<28} median   worst of {ROUNDS} (µs per start and stop)")
        for name, meter in meters.items():
            means = microseconds(meter)
            slow |= statistics.median(means) > LIMIT_MICROSECONDS
            print(f"{name:<28} {statistics.median(means):6.1f}  {max(means):6.1f}")
    print(f"limit {LIMIT_MICROSECONDS:.0f} µs: {'MISSED' if slow else 'kept'}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
