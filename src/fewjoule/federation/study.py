"""A study for a federation: the settings of any study, with `[federation]` beside them, and no need for data.

    [federation]
    policy = "skip"             # wait | skip | stop
    quorum = 2                  # for skip: at least this many agents in every round
    deadline_seconds = 60.0     # for an agent's answer

Agents have their data at home, so `[family]` is only the source of the new tasks that the operator judges by; without
it the run folder has no evaluation.
"""

import secrets
from pathlib import Path
from typing import Literal

import pydantic
from pydantic import Field

from fewjoule.federation.spec import Spec, contract
from fewjoule.study.families import Count, MnistFamily, Positive, SinusoidFamily
from fewjoule.study.settings import Study, make_study_of, read_source, read_toml


class FederationSettings(pydantic.BaseModel):
    """What happens when an agent is absent, late or sends what cannot be used."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    policy: Literal["wait", "skip", "stop"] = "wait"
    deadline_seconds: Positive = 60.0
    quorum: Count = 1
    largest_rms: Positive = 1e4


class FederatedStudy(Study):
    """A study whose agents are real."""

    family: SinusoidFamily | MnistFamily | None = Field(default=None, discriminator="kind")  # type: ignore[assignment]
    federation: FederationSettings = FederationSettings()


def load_federated_study(source: str) -> FederatedStudy:
    """A study by built-in name or file."""
    table, where = read_source(source)
    table.pop("quick", None)
    return make_study_of(FederatedStudy, table, where)


def read_federated_study(folder: Path) -> FederatedStudy:
    """The study of a run folder."""
    table = read_toml(folder / "study.toml")
    table.pop("host", None)
    return make_study_of(FederatedStudy, table, str(folder / "study.toml"))


def specs_of(study: FederatedStudy, agents: tuple[str, ...]) -> list[Spec]:
    """One spec per method and seed, in the order of the study; each is built once here, so mistakes show before."""
    specs = []
    for entry in study.methods:
        for seed in study.seeds:
            spec = Spec(
                method={"method": entry.method, **entry.settings},
                model=study.model.model_dump(),
                agents=agents,
                seed=seed,
                local=study.local.model_dump(),
                nonce=secrets.token_hex(8),
                **study.federation.model_dump(),
            )
            contract(spec)
            specs.append(spec)
    return specs
