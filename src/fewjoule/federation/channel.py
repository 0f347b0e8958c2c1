"""A channel to agents in this process: for tests, and to try a study before it goes out."""

from collections.abc import Callable, Iterable, Mapping

from fewjoule.federation.agent import AgentRunner
from fewjoule.federation.drive import Answers


class LocalChannel:
    """Agents as objects. An agent that is taken out of `agents` is not heard any more."""

    def __init__(self, agents: Mapping[str, AgentRunner]) -> None:
        self.agents = dict(agents)

    def agree(self, names: Iterable[str], spec: str, timeout_seconds: float) -> Answers:
        return self._each(names, lambda agent: agent.agree(spec))

    def call(self, names: Iterable[str], request: bytes, timeout_seconds: float) -> Answers:
        return self._each(names, lambda agent: agent.handle(request))

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
