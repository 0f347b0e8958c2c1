"""`fewjoule doctor`: what this machine can measure, why not where it cannot, and whether a run would work."""

import importlib.metadata
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer

from fewjoule import energy, files
from fewjoule.errors import InputError
from fewjoule.methods import method
from fewjoule.models.nets import mlp
from fewjoule.simulation.simulate import simulate
from fewjoule.tasks.samples import make_agents

PACKAGES = ("jax", "jaxlib", "numpy", "optax", "scipy", "safetensors", "zeus", "pyRAPL")


def doctor(
    require_measured: Annotated[
        bool, typer.Option("--require-measured", help="Fail unless energy can be measured here, not only modelled.")
    ] = False,
    powercap: Annotated[
        Path | None,
        typer.Option(help="Folder of the energy counters (default: $FEWJOULE_POWERCAP or the kernel's)."),
    ] = None,
) -> None:
    """Check what this machine can measure and whether a run would work; exit code 0 only if it would."""

    def chosen() -> str:
        meter = energy.auto(require_measured=require_measured, powercap=powercap).meter
        return f"{meter.kind} by {meter.source} (scope: {meter.scope})"

    checks: dict[str, Callable[[], str]] = {
        "fewjoule": lambda: f"{_version('fewjoule')}, Python {platform.python_version()}, {platform.platform()}",
        "energy": chosen,
        "  powercap": lambda: f"measures {energy.PowercapMeter(powercap).source}",
        "  zeus": lambda: f"measures {energy.ZeusMeter().source}",
        "  pyRAPL": lambda: f"measures {energy.PyraplMeter().source}",
        "device": _devices,
        "cache": _cache,
        "folder": _folder,
        "a small run": _small_run,
        "versions": lambda: ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
    }
    works = True
    for subject, look in checks.items():
        text, fine = _finding(subject, look)
        works &= fine
        print(f"{subject:<{max(map(len, checks))}}  {'' if fine else 'PROBLEM: '}{text}")
    if not works:
        print("A run would not work on this machine; see PROBLEM above.", file=sys.stderr)
        raise typer.Exit(1)


def _finding(subject: str, look: Callable[[], str]) -> tuple[str, bool]:
    """What a check says, and whether a run would work."""
    try:
        return look(), True
    except energy.NoMeterError as error:  # a problem only where measuring is required
        return (str(error), False) if subject == "energy" else (f"no: {error}", True)
    except Exception as error:  # whatever is broken on this machine belongs in the report, not in a traceback
        return f"{type(error).__name__}: {error}", False


def _devices() -> str:
    kinds = ", ".join(f"{found.platform} {found.device_kind} ({found})" for found in jax.devices())
    return f"JAX computes on {kinds}; {os.cpu_count()} processor cores"


def _cache() -> str:
    folder, programs = files.cache_dir(), files.use_compile_cache()
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
    x = np.linspace(-1, 1, 8)[:, None]
    agents, model = make_agents([(x, x), (x, -x)]), mlp([1, 4, 1])
    meter = energy.CpuTimeMeter(energy.device("laptop-core"))
    meter.start()
    run = simulate(method("fedsgd", rounds=2, start="random"), model, agents)
    spent = meter.stop()
    if not np.isfinite(np.asarray(run.meta)).all():
        raise InputError("two rounds of FedSGD gave numbers that are not finite; JAX does not compute rightly here.")
    sent = run.energy("paper").select(phase="uplink").total()
    return f"works: compiled and run in {spent.seconds:.1f} s; its four messages cost {sent:.3g} J on the paper's link"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"
