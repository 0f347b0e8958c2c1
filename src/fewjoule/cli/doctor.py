"""`fewjoule doctor`: what this machine can measure, why not where it cannot, and whether a run would work."""

import importlib.metadata
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from fewjoule.errors import InputError

PACKAGES = ("jax", "jaxlib", "numpy", "optax", "scipy", "safetensors", "zeus", "pyRAPL")


class Finding(NamedTuple):
    """One line of the report; `problem` is set where a run would fail."""

    subject: str
    text: str
    problem: bool = False


def doctor(
    require_measured: Annotated[
        bool, typer.Option("--require-measured", help="Fail unless energy can be measured here, not only modelled.")
    ] = False,
    powercap: Annotated[
        Path | None,
        typer.Option(help="Folder of the energy counters (default: $FEWJOULE_POWERCAP or the kernel's)."),
    ] = None,
) -> None:
    """Say what this machine can measure and whether a run would work; exit code 0 only if it would."""
    findings = examine(require_measured=require_measured, powercap=powercap)
    width = max(len(finding.subject) for finding in findings)
    for subject, text, problem in findings:
        print(f"{subject:<{width}}  {'PROBLEM: ' if problem else ''}{text}")
    if any(finding.problem for finding in findings):
        print("A run would not work on this machine; see PROBLEM above.", file=sys.stderr)
        raise typer.Exit(1)


def examine(*, require_measured: bool = False, powercap: Path | None = None) -> list[Finding]:
    """Everything the command prints."""
    from fewjoule.energy import PowercapMeter, PyraplMeter, ZeusMeter, auto

    def chosen() -> str:
        meter = auto(require_measured=require_measured, powercap=powercap).meter
        return f"{meter.kind} by {meter.source} (scope: {meter.scope})"

    checks: dict[str, Callable[[], str]] = {
        "fewjoule": lambda: f"{_version('fewjoule')}, Python {platform.python_version()}, {platform.platform()}",
        "energy": chosen,
        "  powercap": lambda: f"measures {PowercapMeter(powercap).source}",
        "  zeus": lambda: f"measures {ZeusMeter().source}",
        "  pyRAPL": lambda: f"measures {PyraplMeter().source}",
        "device": _devices,
        "cache": _cache,
        "folder": _folder,
        "a small run": _small_run,
        "versions": lambda: ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
    }
    return [_finding(subject, look) for subject, look in checks.items()]


def _finding(subject: str, look: Callable[[], str]) -> Finding:
    from fewjoule.energy import NoMeterError

    try:
        return Finding(subject, look())
    except NoMeterError as error:  # a problem only where measuring is required
        return Finding(subject, str(error), True) if subject == "energy" else Finding(subject, f"no: {error}")
    except Exception as error:  # whatever is broken on this machine belongs in the report, not in a traceback
        return Finding(subject, f"{type(error).__name__}: {error}", problem=True)


def _devices() -> str:
    import jax

    devices = jax.devices()
    kinds = ", ".join(f"{device.platform} {device.device_kind} ({device})" for device in devices)
    return f"JAX computes on {kinds}; {os.cpu_count()} processor cores"


def _cache() -> str:
    from fewjoule.files import cache_dir, use_compile_cache

    folder, programs = cache_dir(), use_compile_cache()
    folder.mkdir(parents=True, exist_ok=True)
    _write_in(folder)
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return f"{folder} ({size / 1e6:.1f} MB; FEWJOULE_CACHE moves it), compiled programs in {programs}"


def _folder() -> str:
    _write_in(Path.cwd())
    return f"{Path.cwd()} can be written; runs go below it"


def _write_in(folder: Path) -> None:
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".fewjoule-"):
        pass


def _small_run() -> str:
    """Two agents, two rounds, a link and a meter: every part that a study needs, in a second or two."""
    import numpy as np

    from fewjoule.energy import CpuTimeMeter, Ledger, charge_radio, device, link
    from fewjoule.methods import method
    from fewjoule.models.nets import mlp
    from fewjoule.simulate.simulate import simulate
    from fewjoule.tasks.samples import make_agents

    x = np.linspace(-1, 1, 8)[:, None]
    agents, model = make_agents([(x, x), (x, -x)]), mlp([1, 4, 1])
    meter = CpuTimeMeter(device("laptop-core"))
    meter.start()
    run = simulate(method("fedsgd", rounds=2, start="random"), model, agents)
    spent = meter.stop()
    if not np.isfinite(np.asarray(run.meta)).all():
        raise InputError("two rounds of FedSGD gave numbers that are not finite; JAX does not compute rightly here.")
    ledger = Ledger()
    charge_radio(ledger, link("paper"), method="fedsgd", seed=0, agents=agents.names, uplink_bits=run.uplink_bits)
    return (
        f"works: compiled and run in {spent.seconds:.1f} s; its four messages cost {ledger.total():.3g} J on the "
        "paper's link"
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
