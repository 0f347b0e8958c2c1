"""What a site knows of itself: its kit, its own data and model, its meter, and how it speaks to its log."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import jax

from fewjoule.energy.metering import DEFAULT_DEVICE, Metering
from fewjoule.errors import InputError
from fewjoule.federation.agent import Home, Meter
from fewjoule.federation.spec import Contract
from fewjoule.federation.wire import AgentReport
from fewjoule.models.model import OwnModel
from fewjoule.models.weights import read_header, read_model
from fewjoule.tasks.files import DataFormat, read_tables
from fewjoule.tasks.samples import AgentData, make_agents

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


def check_files(site: dict[str, Any]) -> int:
    """How many samples the agent has; refused where its data or model cannot be read at all."""
    if site["model"]:
        read_header(Path(site["model"]))
    return int(agent_data(site, None).train.mask.sum())


def agent_home(site: dict[str, Any]) -> Home:
    """The agent's samples and the model it brings, from its own files, as a run wants them."""
    data = lru_cache(maxsize=1)(lambda classes: agent_data(site, classes))

    def home(agreed: Contract) -> tuple[AgentData, OwnModel | None]:
        if not site["model"]:
            return data(agreed.spec.classes), None
        known: dict[str, Any] = {"loss": agreed.model.loss_name} if agreed.method.asks else {"model": agreed.model}
        loaded = read_model(site["model"], **known)
        return data(agreed.spec.classes), OwnModel(loaded.model, loaded.vector)

    return home


def agent_data(site: dict[str, Any], classes: tuple[str, ...] | None) -> AgentData:
    """The agent's samples. Text targets are numbered by the run's `classes`, refused where it has none: numbers
    that each agent gave by itself would differ in meaning. None takes the file's own, to check the file alone."""
    (table,), format, _ = read_tables([Path(site["data"])], DataFormat(classes=classes or None))
    if format.classes and classes == ():
        raise InputError(
            f"the targets of agent {site['name']!r} are text, and the run does not say which class is which number; "
            'name all classes in the study, as [federation] classes = ["cat", "dog"].'
        )
    one = make_agents([table.train], table.test and [table.test], names=[site["name"]])
    data: AgentData = jax.tree.map(lambda a: a[0], one.data)
    return data


def agent_meter(site: dict[str, Any]) -> tuple[Meter, str]:
    """The best meter of this machine, as a function around a piece of work, and what it is."""
    metering = Metering(device=site.get("device") or DEFAULT_DEVICE)

    def meter(work: Callable[[], Any]) -> tuple[Any, AgentReport]:
        result, reading = metering.read(lambda around: around(work), None)
        return result, AgentReport(**reading)

    return meter, metering.describe()
