"""zeus and pyRAPL: the real packages where they are installed, over what runs without their hardware."""

import builtins
import os
import types

import pytest

from fewjoule.energy import NoMeterError, PowercapMeter, PyraplMeter, ZeusMeter
from fewjoule.errors import InputError
from tests.energy.powercap_tree import Tree


class Monitor:
    """Stands in for a machine with a GPU: zeus' own Measurement, with numbers that the test chooses."""

    def __init__(self, measurement, gpus=(), soc=False):
        self.measurement, self.gpu_indices, self.soc_is_present = measurement, list(gpus), soc

    def begin_window(self, key, restart=False):
        self.key = key

    def end_window(self, key):
        assert key == self.key
        return self.measurement


def zeus_measurement(**fields):
    energy = pytest.importorskip("zeus.monitor.energy", reason="zeus is not installed")
    return energy.Measurement(time=1.0, **fields)


def test_zeus_without_an_accelerator_is_no_meter():
    pytest.importorskip("zeus", reason="zeus is not installed")
    from zeus.monitor import ZeusMonitor

    monitor = ZeusMonitor(cpu_indices=[], sync_execution_with="jax")
    if monitor.gpu_indices or monitor.soc_is_present:
        pytest.skip("this machine has an accelerator")
    with pytest.raises(NoMeterError, match="zeus finds no GPU, Jetson or Apple silicon"):
        ZeusMeter()


def test_a_vendors_binding_that_breaks_is_no_meter(monkeypatch):
    monitor = pytest.importorskip("zeus.monitor", reason="zeus is not installed")

    def broken(**settings):
        raise AttributeError("module 'amdsmi' has no attribute 'AmdSmiLibraryException'")

    monkeypatch.setattr(monitor, "ZeusMonitor", broken)
    with pytest.raises(NoMeterError, match="zeus fails on this machine: AttributeError: module 'amdsmi'"):
        ZeusMeter()


def test_zeus_adds_up_its_gpus():
    meter = ZeusMeter(Monitor(zeus_measurement(gpu_energy={0: 3.0, 1: 4.5}, cpu_energy={0: 100.0}), gpus=[0, 1]))
    meter.start()
    reading = meter.stop()
    assert reading.joules == 7.5
    assert (reading.kind, reading.scope, reading.source) == ("measured", "device", "zeus GPU 0, GPU 1")


def test_a_gpu_that_reads_zero_is_an_error():
    meter = ZeusMeter(Monitor(zeus_measurement(gpu_energy={0: 3.0, 1: 0.0}), gpus=[0, 1]))
    meter.start()
    with pytest.raises(InputError, match="for GPU 1"):
        meter.stop()


class Lost(Monitor):
    def end_window(self, key):
        raise RuntimeError("GPU is lost")


def test_trial_20_a_driver_that_fails_meanwhile_is_one_clear_line():
    meter = ZeusMeter(Lost(None, gpus=[0]))
    meter.start()
    with pytest.raises(NoMeterError, match="zeus GPU 0 failed while measuring: RuntimeError: GPU is lost; measure"):
        meter.stop()


def test_chips_are_read_in_millijoules_without_counting_parts_twice():
    apple = pytest.importorskip("zeus.device.soc.apple", reason="zeus is not installed").AppleSiliconMeasurement
    jetson = pytest.importorskip("zeus.device.soc.jetson").JetsonMeasurement
    cases = [
        (
            apple(cpu_total_mj=2000, efficiency_cores_mj=[500], performance_cores_mj=[1500], gpu_mj=700, dram_mj=300),
            3.0,
        ),
        (jetson(cpu_energy_mj=1000.0, gpu_energy_mj=2000.0, total_energy_mj=5000.0), 5.0),
        (jetson(cpu_energy_mj=1000.0, gpu_energy_mj=2000.0), 3.0),
    ]
    for energy, joules in cases:
        meter = ZeusMeter(Monitor(zeus_measurement(gpu_energy={}, soc_energy=energy), soc=True))
        meter.start()
        assert meter.stop().joules == joules
    meter = ZeusMeter(Monitor(zeus_measurement(gpu_energy={}, soc_energy=apple()), soc=True))
    meter.start()
    with pytest.raises(InputError, match="no energy of the chip"):
        meter.stop()


@pytest.fixture
def redirected(tmp_path, monkeypatch):
    """A tree that pyRAPL takes for /sys: its module opens and looks up every path below the temporary folder."""
    pytest.importorskip("pyRAPL", reason="pyRAPL is not installed")
    from pyRAPL import device_api

    def moved(path):
        return str(tmp_path) + path if path.startswith("/sys/") else path

    def opened(path, *args):
        return builtins.open(moved(path), *args)

    exists = types.SimpleNamespace(exists=lambda path: os.path.exists(moved(path)))
    monkeypatch.setattr(device_api, "open", opened, raising=False)
    monkeypatch.setattr(device_api, "os", types.SimpleNamespace(path=exists))
    cpus = tmp_path / "sys/devices/system/cpu"
    for number in range(2):
        (cpus / f"cpu{number}/topology").mkdir(parents=True)
        (cpus / f"cpu{number}/topology/physical_package_id").write_text(f"{number}\n")
    (cpus / "present").write_text("0-1\n")
    root = tmp_path / "sys/class/powercap/intel-rapl"
    root.parent.mkdir(parents=True)
    tree = Tree(root, nested=True)
    for number in range(2):
        tree.zone(f"intel-rapl:{number}", f"package-{number}", at=5_000_000 * (number + 1), range_uj=10**9)
        tree.zone(f"intel-rapl:{number}:0", "core")
        tree.zone(f"intel-rapl:{number}:1", "dram")
    tree.zone("intel-rapl:2", "psys")
    return tree


def test_pyrapl_agrees_with_the_own_reader_on_the_same_counters(redirected):
    theirs, own = PyraplMeter(), PowercapMeter(redirected.root, max_watts=1e4)
    for joules in (0.25, 3.0, 41.5):
        theirs.start()
        own.start()
        redirected.use(joules, "intel-rapl:0", "intel-rapl:1")
        redirected.use(joules / 5, "intel-rapl:0:1", "intel-rapl:1:1")
        redirected.use(99.0, "intel-rapl:2", "intel-rapl:0:0")
        readings = own.stop(), theirs.stop()
        assert readings[0].joules == pytest.approx(2 * joules * 1.2)
        assert readings[1].joules == pytest.approx(readings[0].joules)


def test_pyrapl_refuses_the_wrap_that_the_own_reader_undoes(redirected):
    redirected.use(990.0, "intel-rapl:0")
    theirs, own = PyraplMeter(), PowercapMeter(redirected.root, max_watts=1e4)
    theirs.start()
    own.start()
    redirected.use(20.0, "intel-rapl:0", "intel-rapl:1", "intel-rapl:0:1", "intel-rapl:1:1")
    assert own.stop().joules == pytest.approx(80.0)
    with pytest.raises(InputError, match="a counter wrapped"):
        theirs.stop()


def test_pyrapl_without_counters_is_no_meter(redirected):
    for number in range(3):
        redirected.path(f"intel-rapl:{number}").rename(redirected.root / f"gone-{number}")
    with pytest.raises(NoMeterError, match="pyRAPL cannot read this machine"):
        PyraplMeter()
