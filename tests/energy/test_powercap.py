"""The powercap reader over a tree of files that the test moves: exact readings, or a clear error."""

import errno
import os
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewjoule.energy import NoMeterError, PowercapMeter, auto
from fewjoule.energy import powercap as module
from fewjoule.errors import InputError
from tests.energy.powercap_tree import RANGE_UJ, Tree, put, wait_until


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "powercap")


def read(meter, tree, joules, *zones):
    meter.start()
    tree.use(joules, *zones)
    return meter.stop()


def test_constant_power(tree):
    tree.zone("intel-rapl:0", "package-0")
    meter = PowercapMeter(tree.root)
    for watts in (15.0, 15.0, 15.0):
        reading = read(meter, tree, watts * 0.5, "intel-rapl:0")
        assert reading.joules == 7.5
        assert (reading.kind, reading.scope, reading.source) == ("measured", "package", "powercap package-0")
        assert reading.seconds > 0
        assert reading.cpu_seconds >= 0


def test_a_wrap_is_undone(tree):
    tree.zone("intel-rapl:0", "package-0", at=RANGE_UJ - 400_000)
    reading = read(PowercapMeter(tree.root), tree, 1.0, "intel-rapl:0")
    assert int((tree.path("intel-rapl:0") / "energy_uj").read_text()) == 600_000
    assert reading.joules == 1.0


@settings(max_examples=40, deadline=None)
@given(at=st.integers(0, 10**7 - 1), used=st.integers(1, 10**7 - 1))
def test_any_start_and_any_use_below_the_range_is_exact(tmp_path_factory, at, used):
    tree = Tree(tmp_path_factory.mktemp("powercap"))
    tree.zone("intel-rapl:0", "package-0", at=at, range_uj=10**7)
    meter = PowercapMeter(tree.root, max_watts=1e-3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "COUNTER_LAG_SECONDS", 1e4)  # the whole range may have been used at once
        assert read(meter, tree, used / 1e6, "intel-rapl:0").joules == pytest.approx(used / 1e6)
    meter.close()


def test_psys_core_and_uncore_are_not_counted_twice(tree):
    tree.zone("intel-rapl:0", "package-0")
    tree.zone("intel-rapl:0:0", "core")
    tree.zone("intel-rapl:0:1", "uncore")
    tree.zone("intel-rapl:1", "psys")
    meter = PowercapMeter(tree.root)
    meter.start()
    tree.use(5.0, "intel-rapl:0")
    tree.use(3.0, "intel-rapl:0:0", "intel-rapl:0:1")
    tree.use(20.0, "intel-rapl:1")
    assert meter.stop().joules == 5.0


@pytest.mark.parametrize("nested", [False, True])
def test_two_packages_with_dies_and_memory(tmp_path, nested):
    tree = Tree(tmp_path / "powercap", nested=nested)
    zones = []
    for package in range(2):
        for die in range(2):
            number = 2 * package + die
            tree.zone(f"intel-rapl:{number}", f"package-{package}-die-{die}", at=10**6 * (7 * number + 1))
            tree.zone(f"intel-rapl:{number}:0", "core")
            tree.zone(f"intel-rapl:{number}:1", "dram", at=10**6)
            zones += [f"intel-rapl:{number}", f"intel-rapl:{number}:1"]
    meter = PowercapMeter(tree.root)
    assert len(meter.zones) == 8
    meter.start()
    for joules, zone in enumerate(zones, start=1):
        tree.use(joules, zone)
    assert meter.stop().joules == sum(range(1, 9))
    without = PowercapMeter(tree.root, dram=False)
    assert [zone.name for zone in without.zones] == [f"package-{p}-die-{d}" for p in (0, 1) for d in (0, 1)]


def test_mirrored_dies_are_one_counter(tree):
    for number, name in enumerate(["package-0-die-0", "package-0-die-1", "package-1-die-0", "package-1-die-1"]):
        tree.zone(f"intel-rapl:{number}", name, at=10**6 * (1 + number // 2))
    meter = PowercapMeter(tree.root)
    assert [zone.name for zone in meter.zones] == ["package-0-die-0", "package-1-die-0"]
    assert read(meter, tree, 2.0, *(f"intel-rapl:{n}" for n in range(4))).joules == 4.0


def test_the_memory_mapped_twin_of_a_package_is_left_out(tree):
    tree.zone("intel-rapl:0", "package-0")
    tree.zone("intel-rapl-mmio:0", "package-0")
    assert read(PowercapMeter(tree.root), tree, 4.0, "intel-rapl:0", "intel-rapl-mmio:0").joules == 4.0


def test_the_memory_mapped_zone_alone_is_read(tree):
    tree.zone("intel-rapl-mmio:0", "package-0")
    assert read(PowercapMeter(tree.root), tree, 4.0, "intel-rapl-mmio:0").joules == 4.0


def test_a_missing_range_file_is_an_error(tree):
    folder = tree.zone("intel-rapl:0", "package-0")
    (folder / "max_energy_range_uj").unlink()
    with pytest.raises(NoMeterError, match="max_energy_range_uj cannot be read"):
        PowercapMeter(tree.root)
    (folder / "max_energy_range_uj").write_text("0\n")
    with pytest.raises(NoMeterError, match="a wrap could not be undone"):
        PowercapMeter(tree.root)


def test_an_unreadable_counter_is_an_error_with_the_cure(tree, monkeypatch):
    folder = tree.zone("intel-rapl:0", "package-0")

    def refuse(path, flags):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(module.os, "open", refuse)
    with pytest.raises(NoMeterError, match=r"Permission denied.*since Linux 5.10 only root may read it: sudo chmod"):
        PowercapMeter(tree.root)
    monkeypatch.undo()
    (folder / "energy_uj").unlink()
    (folder / "energy_uj").mkdir()  # root may open anything, but nobody reads numbers from a folder
    with pytest.raises(NoMeterError, match="energy_uj cannot be read"):
        PowercapMeter(tree.root)


def test_unreadable_memory_is_not_dropped_in_silence(tree):
    tree.zone("intel-rapl:0", "package-0")
    folder = tree.zone("intel-rapl:0:0", "dram")
    (folder / "energy_uj").write_text("no number\n")
    with pytest.raises(NoMeterError, match="must hold a whole number"):
        PowercapMeter(tree.root)
    assert PowercapMeter(tree.root, dram=False).source == "powercap package-0"


def test_a_counter_that_stands_still_is_no_reading_of_zero(tree):
    tree.zone("intel-rapl:0", "package-0")
    tree.zone("intel-rapl:0:0", "dram")
    meter = PowercapMeter(tree.root)
    meter.start()
    tree.use(1.0, "intel-rapl:0")
    with pytest.raises(InputError, match=r"package-0 dram did not move.*dram=False"):
        meter.stop()


def test_too_long_a_window_is_refused(tree):
    tree.zone("intel-rapl:0", "package-0", range_uj=2_000_000)
    meter = PowercapMeter(tree.root)  # 2 J at 1000 W: the counter could wrap every 2 ms
    assert meter.longest_seconds == pytest.approx(2e-3)
    meter.start()
    tree.use(1.0, "intel-rapl:0")
    time.sleep(0.01)
    with pytest.raises(InputError, match=r"can wrap more than once after 0.002 s.*watch=True"):
        meter.stop()


def test_a_watched_window_survives_several_wraps(tree, monkeypatch):
    monkeypatch.setattr(module, "LOOKS_PER_RANGE", 2000)
    monkeypatch.setattr(module, "COUNTER_LAG_SECONDS", 20.0)  # the test uses 20 s of power at once
    tree.zone("intel-rapl:0", "package-0", range_uj=10_000_000)
    meter = PowercapMeter(tree.root, max_watts=0.5, watch=True)  # may go 20 s unseen, is looked at every 10 ms
    meter.start()
    for _ in range(3):
        tree.use(6.0, "intel-rapl:0")
        now = int((tree.path("intel-rapl:0") / "energy_uj").read_text())
        wait_until(lambda now=now: meter._last_uj == [now])
    assert meter.stop().joules == 18.0
    meter.close()


def test_no_counters_say_why(tmp_path):
    with pytest.raises(NoMeterError, match="no energy counter of a processor package below"):
        PowercapMeter(tmp_path / "absent")
    Tree(tmp_path / "powercap").zone("intel-rapl:1", "psys")
    with pytest.raises(NoMeterError, match="no energy counter"):
        PowercapMeter(tmp_path / "powercap")


def test_auto_takes_the_counters_and_says_so(tree, no_accelerator):
    tree.zone("intel-rapl:0", "package-0")
    choice = auto(powercap=tree.root, require_measured=True)
    assert choice.meter.kind == "measured"
    assert choice.reason == "measured by powercap package-0."


def test_the_order_of_start_and_stop_is_checked(tree):
    tree.zone("intel-rapl:0", "package-0")
    with pytest.raises(InputError, match="stopped without a start"):
        PowercapMeter(tree.root).stop()


@pytest.mark.parametrize(
    ("before", "after"), [(200_000_000, 1_000), (5_000_000, 4_999_999), (1_000_000, 90_000_000_000)]
)
def test_trial_8_a_counter_that_was_set_back_or_jumped_is_no_measurement(tree, before, after):
    counter = tree.zone("intel-rapl:0", "package-0", at=before) / "energy_uj"
    meter = PowercapMeter(tree.root)
    meter.start()
    time.sleep(0.05)
    put(counter, after)
    with pytest.raises(InputError, match=r"package-0 went from .* J to .* J in .* s, .*below 1000 W nor a wrap"):
        meter.stop()
    assert read(meter, tree, 1.0, "intel-rapl:0").joules == 1.0  # the next window is as good as any


def test_trial_8_what_the_watching_thread_saw_is_not_forgotten(tree, monkeypatch):
    monkeypatch.setattr(module, "LOOKS_PER_RANGE", 20_000)
    counter = tree.zone("intel-rapl:0", "package-0", at=5_000_000, range_uj=200_000_000) / "energy_uj"
    meter = PowercapMeter(tree.root, max_watts=1.0, watch=True)  # looked at every 10 ms
    meter.start()
    put(counter, 4_000_000)
    wait_until(lambda: meter._refusal is not None)
    monkeypatch.setattr(
        module, "COUNTER_LAG_SECONDS", 1e3
    )  # at the end so much time has passed that it could be a wrap
    with pytest.raises(InputError, match="set back"):
        meter.stop()
    meter.start()
    tree.use(1.0, "intel-rapl:0")
    wait_until(lambda: meter._last_uj == [5_000_000])  # the thread is still there
    assert meter.stop().joules == 1.0
    meter.close()


def test_trial_8_a_window_in_which_the_machine_slept_is_refused(tree, monkeypatch):
    tree.zone("intel-rapl:0", "package-0")
    meter, read_clock, slept = PowercapMeter(tree.root), time.clock_gettime, []

    def clock(which):
        return read_clock(which) + (600.0 if slept and which == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr(time, "clock_gettime", clock)
    assert read(meter, tree, 1.0, "intel-rapl:0").joules == 1.0
    meter.start()
    slept.append(True)
    tree.use(1.0, "intel-rapl:0")
    with pytest.raises(InputError, match=r"slept for 600 s while powercap package-0 measured.*measure again"):
        meter.stop()
    assert read(meter, tree, 1.0, "intel-rapl:0").joules == 1.0


@pytest.mark.parametrize("watch", [False, True])
def test_trial_20_a_counter_that_fails_meanwhile_is_one_clear_line(tree, monkeypatch, watch):
    monkeypatch.setattr(module, "LOOKS_PER_RANGE", 26_000)
    tree.zone("intel-rapl:0", "package-0")
    meter, pread = PowercapMeter(tree.root, watch=watch), os.pread

    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    meter.start()
    monkeypatch.setattr(module.os, "pread", fail)
    wait_until(lambda: not watch or meter._refusal is not None)
    with pytest.raises(NoMeterError, match=r"energy_uj cannot be read \(Input/output error\); the processor did not"):
        meter.stop()
    with pytest.raises(NoMeterError, match="Input/output error"):
        meter.start()
    monkeypatch.setattr(module.os, "pread", pread)
    assert read(meter, tree, 1.0, "intel-rapl:0").joules == 1.0
    meter.close()


def test_the_environment_names_the_folder_of_the_counters(tree, no_accelerator, monkeypatch):
    tree.zone("intel-rapl:0", "package-0")
    monkeypatch.setenv("FEWJOULE_POWERCAP", str(tree.root))
    assert PowercapMeter().zones[0].path == tree.path("intel-rapl:0")
    assert auto(require_measured=True).meter.kind == "measured"
