"""What kind of machine this is, as far as it explains why energy cannot be measured, and what would help."""

import errno
import platform
from pathlib import Path

COUNTER_RIGHTS = "sudo chmod a+r /sys/class/powercap/intel-rapl*/energy_uj (again after each boot, or by a udev rule)"


def in_virtual_machine() -> bool:
    """Whether the processor says that it is virtual."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    return any(line.startswith("flags") and " hypervisor" in line for line in lines)


def in_container() -> bool:
    """Whether the usual marks of Docker, Podman, Kubernetes or systemd-nspawn are there."""
    if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists():
        return True
    try:
        return any(word in Path("/proc/1/cgroup").read_text() for word in ("docker", "kubepods", "lxc", "containerd"))
    except OSError:
        return False


def powercap_cure(error: OSError | None) -> str:
    """Why powercap gives nothing here, and what to do."""
    if error is not None and error.errno in (errno.EACCES, errno.EPERM):
        return f"since Linux 5.10 only root may read it: {COUNTER_RIGHTS}."
    if error is not None:
        return "the kernel's powercap files are not complete here; run on the host itself."
    if platform.system() != "Linux":
        return f"powercap is Linux only and this is {platform.system()}; install 'fewjoule[zeus]' for Apple silicon."
    if in_virtual_machine():
        return "a virtual machine has no energy counters; run on the host itself, or accept a model."
    if in_container():
        return (
            "a container does not see the host's counters unless they are handed in: run it with "
            "-v /sys/devices/virtual/powercap:/powercap:ro and read them from /powercap/intel-rapl."
        )
    return "load the driver with: sudo modprobe intel_rapl_msr (Linux 3.13 for Intel, 5.8 for AMD)."
