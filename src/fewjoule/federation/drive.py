"""The loop of a run over any channel: ask, take answers, apply the absence policy, go on.

A channel carries bytes to named agents and back. It says for each agent that did not answer whether the agent refused
(and why) or was not heard; the loop asks again while the agent is alive, because asking twice changes nothing.
"""

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from fewjoule.federation import blocks
from fewjoule.federation.server import ServerRunner
from fewjoule.federation.wire import EXCHANGES, MessageError

FIRST_WAIT_SECONDS = 5.0
LONGEST_WAIT_SECONDS = 60.0


class Answers(NamedTuple):
    """Bytes by agent; and for agents that answered with an error, its text. Others were not heard."""

    replies: dict[str, bytes]
    errors: dict[str, str]


class Channel(Protocol):
    def agree(self, names: Iterable[str], spec: str, timeout_seconds: float) -> Answers: ...

    def call(self, names: Iterable[str], request: bytes, timeout_seconds: float) -> Answers: ...

    def alive(self, names: Iterable[str]) -> set[str]: ...


class Outcome(NamedTuple):
    """How a drive ended: `complete`; `paused` (go on from the state when `missing` are back); or `stopped`."""

    status: str
    reason: str
    missing: tuple[str, ...] = ()


def drive(
    server: ServerRunner,
    channel: Channel,
    *,
    report: Callable[[str], None] = lambda line: None,
    asked_to_stop: Callable[[], str] = lambda: "",
    gone: dict[str, str] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Run `server` to its end over `channel`, or to where the policy stops it. `asked_to_stop` gives a reason or "".

    `gone` is filled with the agents that this drive goes on without for good, and why.
    """
    driver = _Driver(server, channel, report, asked_to_stop, clock, {} if gone is None else gone)
    if server.complete:
        return Outcome("complete", "the run was complete before")
    try:
        outcome = driver.agree()
        while outcome is None and not server.complete:
            outcome = driver.exchange()
    except _Asked as reason:
        return Outcome("paused", str(reason))
    return Outcome("complete", "all exchanges done") if outcome is None else outcome


class _Asked(Exception):  # noqa: N818 - a wish, not a mistake
    """Somebody asked the run to stop here."""


@dataclass
class _Driver:
    server: ServerRunner
    channel: Channel
    report: Callable[[str], None]
    asked_to_stop: Callable[[], str]
    clock: Callable[[], float]
    gone: dict[str, str]  # agents that cannot take part any more in this drive, with the reason
    told: tuple[str, ...] = ()  # who was missing when that was last reported

    def agree(self) -> Outcome | None:
        """All agents that can be reached. Agents train their own models here, which takes as long as it takes, so the
        deadline of a round does not count."""
        text = self.server.spec.text
        absent, refused = self._collect(
            set(self.server.spec.agents),
            lambda names, timeout: self.channel.agree(names, text, timeout),
            self.server.accept_agreement,
            math.inf,
        )
        self.gone.update({**absent, **refused})
        return self._judge("agreement", self.server.spec.agents, absent, refused)

    def exchange(self) -> Outcome | None:
        kind, round = self.server.at
        what = f"round {round}" if kind == blocks.ROUND else EXCHANGES[kind]
        due = self.server.due()
        request = self.server.request()
        absent, refused = self._collect(
            set(due) - set(self.gone),
            lambda names, timeout: self.channel.call(names, request, timeout),
            self.server.accept,
            self.server.spec.deadline_seconds,
        )
        self.gone.update({name: reason for name, reason in absent.items() if reason != _LATE})
        absent |= {name: reason for name, reason in self.gone.items() if name in due}
        outcome = None if self.server.may_miss else self._judge(what, due, absent, refused)
        if outcome is None:
            self.server.finish({**absent, **refused})
        return outcome

    def _collect(
        self,
        due: set[str],
        ask: Callable[[Iterable[str], float], Answers],
        accept: Callable[[str, bytes], None],
        deadline_seconds: float,
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Ask until all answered, or are gone, or the deadline is over; who is absent and who was refused, and why."""
        absent: dict[str, str] = {}
        refused: dict[str, str] = {}
        deadline = self.clock() + deadline_seconds
        patience = FIRST_WAIT_SECONDS
        while due:
            if reason := self.asked_to_stop():
                raise _Asked(reason)
            remaining = deadline - self.clock()
            waits = self.server.spec.policy == "wait"
            if remaining <= 0 and not waits:
                absent |= dict.fromkeys(due, _LATE)
                break
            timeout = patience if waits else min(patience, max(remaining, 0.05))
            answers = ask(sorted(due), timeout)
            for name, data in answers.replies.items():
                if name not in due:
                    continue
                due.discard(name)
                try:
                    accept(name, data)
                except MessageError as error:
                    refused[name] = str(error)
            for name, error_text in answers.errors.items():
                if name in due:
                    due.discard(name)
                    refused[name] = error_text
            lost = due - self.channel.alive(sorted(due)) if due else set()
            absent |= dict.fromkeys(lost, "not reachable")
            due -= lost
            if due and deadline_seconds == math.inf and patience == FIRST_WAIT_SECONDS:
                self.report(f"waiting for {', '.join(sorted(due))} to agree; an agent may train its own model first")
            patience = min(2 * patience, LONGEST_WAIT_SECONDS)
        for name, reason in sorted({**absent, **refused}.items()):
            self.report(f"agent {name}: {reason}")
        return absent, refused

    def _judge(self, what: str, due: Iterable[str], absent: dict[str, str], refused: dict[str, str]) -> Outcome | None:
        """What the policy makes of those missing; None to go on without them."""
        missing = tuple(sorted({*absent, *refused}))
        if not missing:
            self.told = ()
            return None
        reasons = "; ".join(f"agent {name}: {reason}" for name, reason in sorted({**absent, **refused}.items()))
        present = len(set(due)) - len(missing)
        needed = min(self.server.spec.quorum, len(set(due)))
        if self.server.spec.policy == "skip" and present >= needed:
            if missing != self.told:
                self.report(f"{what}: going on with {present} agents, without {', '.join(missing)}")
                self.told = missing
            return None
        if self.server.spec.policy == "stop" or refused:
            return Outcome("stopped", f"{what}: {reasons}", missing)
        return Outcome("paused", f"{what}: waiting for {', '.join(missing)} ({reasons})", missing)


_LATE = "did not answer before the deadline"
