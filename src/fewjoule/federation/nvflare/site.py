"""What a site knows of itself: its kit, its own data and model, its meter, and how it speaks to its log."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import jax.numpy as jnp
from jax import Array

from fewjoule.errors import InputError
from fewjoule.federation.agent import Meter
from fewjoule.federation.wire import AgentReport
from fewjoule.tasks.samples import AgentData, Samples

MARK = "fewjoule| "
"""Begins the lines that a site's log shows to people."""


def say(line: str) -> None:
    print(MARK + line, flush=True)


def template(name: str) -> str:
    """A text that kits and jobs are made from."""
    return resources.files(__package__).joinpath("templates", name).read_text("utf-8")


@contextlib.contextmanager
def lock(path: Path) -> Iterator[bool]:
    """Hold `path` for this process while the block runs; False where another process holds it."""
    import fcntl  # not on Windows, from where an operator may work

    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def read_kit(kit: Path, role: str | None = None) -> dict[str, Any]:
    """What `provision` wrote about a kit; refused where it is none, or not for this role."""
    path = kit / "fewjoule.json"
    if not path.is_file():
        raise InputError(f"{kit} is not a kit: it has no fewjoule.json; make kits with: fewjoule federation provision.")
    try:
        facts = json.loads(path.read_text())
        found = facts["role"]
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{path} is damaged; provision the kit again.") from None
    if role is not None and found != role:
        raise InputError(f"{kit} is the kit of {_a(found)}, {_a(role)}'s kit is needed here.")
    if os.name == "posix" and kit.stat().st_mode & 0o077:
        raise InputError(f"{kit} holds a private key but others may read it; run: chmod -R go= {kit}")
    return facts


def _a(role: str) -> str:
    return f"an {role}" if role[0] in "aeiou" else f"a {role}"


def write_site(kit: Path, data: Path, model: Path | None, device: str | None) -> None:
    """Remember where the agent's own files are; nobody else is told."""
    facts = {"data": str(data.resolve()), "model": None if model is None else str(model.resolve()), "device": device}
    path = kit / "site.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(facts))


def read_site(kit: Path) -> dict[str, Any]:
    facts = read_kit(kit, "agent")
    try:
        return {**facts, **json.loads((kit / "site.json").read_text())}
    except FileNotFoundError:
        raise InputError(f"{kit} has no data yet; start the agent with --data own.npz.") from None


def agent_data(site: dict[str, Any]) -> tuple[AgentData, Array | None]:
    """The agent's samples and the model it brings, from its own files."""
    from fewjoule.models.weights import read_model
    from fewjoule.tasks.files import DataFormat, read_task

    train, test = read_task(site["data"], DataFormat())
    own = None
    if site["model"]:
        loss = "cross_entropy" if train.y.dtype.kind == "i" else "mse"
        own = read_model(site["model"], loss=loss).vector
    return AgentData(train, _nothing_like(train) if test is None else test), own


def _nothing_like(samples: Samples) -> Samples:
    return Samples(jnp.zeros_like(samples.x[:1]), jnp.zeros_like(samples.y[:1]), jnp.zeros(1), samples.allowed)


def agent_meter(site: dict[str, Any]) -> tuple[Meter, str]:
    """The best meter of this machine, as a function around a piece of work, and what it is."""
    from fewjoule.energy import auto

    choice = auto(device=site["device"]) if site.get("device") else auto()

    def meter(work: Callable[[], Any]) -> tuple[Any, AgentReport]:
        choice.meter.start()
        result = work()
        read = choice.meter.stop()
        return result, AgentReport(joules=read.joules, seconds=read.seconds, kind=read.kind, source=read.source)

    return meter, f"{choice.meter.kind}, {choice.meter.source}"
