"""Three small agents and a way to run a federation of them in this process."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from jax import Array

from fewjoule import METHODS, Agents, Model, method
from fewjoule.federation.agent import AgentRunner
from fewjoule.federation.drive import Answers, Outcome, drive
from fewjoule.federation.server import ServerRunner
from fewjoule.federation.spec import Spec

NAMES = ("north", "south", "west")
SHORT: dict[str, dict[str, Any]] = {
    name: {k: v for k, v in (("rounds", 4), ("batch", 8)) if k in inspect.signature(build).parameters}
    for name, build in METHODS.items()
}
# conjugate gradients on a badly conditioned system amplify rounding without bound; this one is well conditioned
SHORT["answers"] = SHORT["invented"] = {"questions": "range:-5:5", "number": 9, "episodes": 3, "steps": 4}
SHORT["protonet"] |= {"ways": 2, "shots": 2, "queries": 4}
SHORT["imaml"] |= {"regularisation": 50.0, "inner_steps": 5, "cg_steps": 3}


class LocalChannel:
    """Agents as objects. An agent that is taken out of `agents` is not heard any more."""

    def __init__(self, agents: Mapping[str, AgentRunner]) -> None:
        self.agents = dict(agents)

    def agree(self, names: Iterable[str], spec: str, timeout_seconds: float) -> Answers:
        return self._each(names, lambda agent: agent.agree(spec))

    def call(self, requests: Mapping[str, bytes], timeout_seconds: float) -> Answers:
        return self._each(requests, lambda agent: agent.handle(requests[agent.name]))

    def alive(self, names: Iterable[str]) -> set[str]:
        return set(names) & set(self.agents)

    def _each(self, names: Iterable[str], ask: Callable[[AgentRunner], bytes]) -> Answers:
        replies, errors = {}, {}
        for name in names:
            if name in self.agents:
                try:
                    replies[name] = ask(self.agents[name])
                except ValueError as error:
                    errors[name] = str(error)
        return Answers(replies, errors)


@dataclass
class Bench:
    """Agents with equal numbers of samples, and folders for everybody's state."""

    model: Model
    agents: Agents
    local: Array
    folder: Path

    def spec(self, name: str = "meta_backward", **changes: Any) -> Spec:
        settings = {**SHORT.get(name, {}), **changes.pop("settings", {})}
        return Spec(
            method=method(name, **settings).describe(),
            model={"spec": self.model.spec, "init": "glorot", "loss": self.model.loss_name},
            agents=changes.pop("agents", NAMES),
            deadline_seconds=changes.pop("deadline_seconds", 0.2),
            **changes,
        )

    def agent(self, name: str, **changes: Any) -> AgentRunner:
        i = NAMES.index(name)
        data = jax.tree.map(lambda a: a[i], self.agents.data)
        own = changes.pop("own", self.local[i])
        return AgentRunner(name, lambda agreed: (data, own), self.folder / name, **changes)

    def channel(self, *names: str) -> LocalChannel:
        return LocalChannel({name: self.agent(name) for name in names or NAMES})

    def server(self, spec: Spec) -> ServerRunner:
        return ServerRunner(spec, self.folder / "server")

    def run(self, spec: Spec, **kwargs: Any) -> tuple[ServerRunner, Outcome]:
        server = self.server(spec)
        return server, drive(server, kwargs.pop("channel", None) or self.channel(), **kwargs)
