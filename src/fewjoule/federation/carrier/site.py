"""What an agent knows of itself: its own data and model, and its meter. Nobody else is told."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fewjoule.energy.metering import DEFAULT_DEVICE, Metering
from fewjoule.energy.meters import NoMeterError
from fewjoule.errors import InputError
from fewjoule.federation.agent import Home, Meter
from fewjoule.federation.spec import Contract
from fewjoule.federation.wire import AgentReport
from fewjoule.models.model import OwnModel
from fewjoule.models.weights import read_header, read_model
from fewjoule.tasks.files import read_tables
from fewjoule.tasks.format import DataFormat
from fewjoule.tasks.samples import AgentData, make_agents


class Site(NamedTuple):
    """An agent's own files, and how it counts joules: `meter` None takes the counters of this machine where it has
    any, else the model of `device`."""

    name: str
    data: Path
    model: Path | None = None
    device: str | None = None
    meter: str | None = None


def check_files(site: Site) -> int:
    """How many samples the agent has; refused where its data or model cannot be read at all."""
    if site.model is not None:
        read_header(site.model)
    return int(agent_data(site, None).train.mask.sum())


def agent_home(site: Site) -> Home:
    """The agent's samples and the model it brings, from its own files, as a run wants them."""
    data = lru_cache(maxsize=1)(lambda classes: agent_data(site, classes))

    def home(agreed: Contract) -> tuple[AgentData, OwnModel | None]:
        if site.model is None:
            return data(agreed.spec.classes), None
        known: dict[str, Any] = {"loss": agreed.model.loss_name} if agreed.method.asks else {"model": agreed.model}
        loaded = read_model(site.model, **known)
        return data(agreed.spec.classes), OwnModel(loaded.model, loaded.vector)

    return home


def agent_data(site: Site, classes: tuple[str, ...] | None) -> AgentData:
    """The agent's samples. Text targets are numbered by the run's `classes`, refused where it has none: numbers
    that each agent gave by itself would differ in meaning. None takes the file's own, to check the file alone."""
    (table,), format, _ = read_tables([site.data], DataFormat(classes=classes or None))
    if format.classes and classes == ():
        raise InputError(
            f"the targets of agent {site.name!r} are text, and the run does not say which class is which number; "
            'name all classes in the study, as [federation] classes = ["cat", "dog"].'
        )
    one = make_agents([table.train], table.test and [table.test], names=[site.name])
    data: AgentData = jax.tree.map(lambda a: a[0], one.data)
    return data


def agent_meter(site: Site) -> tuple[Meter, str]:
    """The meter as a function around a piece of work, and what it is. Vendors' libraries are large, so they are only
    loaded where the meter `auto` asks for them."""
    device = site.device or DEFAULT_DEVICE
    try:
        metering = Metering(meter=site.meter or "powercap", device=device)
        reason = metering.describe()
    except NoMeterError as error:
        if site.meter is not None:
            raise
        metering = Metering(meter="cpu-time", device=device)
        reason = f"{metering.describe().removesuffix(', as the study asks.')}, since there are no counters: {error}"

    def meter(work: Callable[[], Any]) -> tuple[Any, AgentReport]:
        result, reading = metering.read(lambda around: around(work), None)
        return result, AgentReport(**reading)

    return meter, reason
