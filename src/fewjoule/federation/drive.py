"""The loop of a run over any channel: ask, take answers, apply the absence policy, go on.

A channel carries bytes to named agents and back. It says for each agent that did not answer whether the agent refused
(and why) or was not heard; the loop asks again while the agent is alive, because asking twice changes nothing.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from fewjoule.federation import blocks
from fewjoule.federation.patience import Asked, patiently
from fewjoule.federation.server import ServerRunner
from fewjoule.federation.trust import clean
from fewjoule.federation.wire import EXCHANGES, MessageError

FIRST_WAIT_SECONDS = 5.0
LONGEST_WAIT_SECONDS = 60.0
REMIND_SECONDS = 600.0
"""At the latest after so long, people are told again whom a run waits for."""
MOST_OFFENCES = 3
"""Refused answers after which a run that may skip goes on without their agent for good."""
LONGEST_REST = 64
"""Exchanges in which an agent that was late again and again is not asked."""


class Answers(NamedTuple):
    """Bytes by agent; and for agents that answered with an error, its text. Others were not heard."""

    replies: dict[str, bytes]
    errors: dict[str, str]


class Channel(Protocol):
    """An answer comes back when all have answered, the time is over, or somebody asked to stop. `requests` are by the
    agent's name."""

    def agree(self, names: Iterable[str], spec: str, timeout_seconds: float) -> Answers: ...

    def call(self, requests: Mapping[str, bytes], timeout_seconds: float) -> Answers: ...

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
    sleep: Callable[[float], None] = time.sleep,
) -> Outcome:
    """Run `server` to its end over `channel`, or to where the policy stops it. `asked_to_stop` gives a reason or "".

    `gone` is filled with the agents that this drive goes on without for good, and why. A full disk or too little memory
    is reported and waited for.
    """
    driver = _Driver(server, channel, report, asked_to_stop, clock, sleep, {} if gone is None else gone)
    if server.complete:
        return Outcome("complete", "the run was complete before")
    try:
        outcome = driver.agree()
        while outcome is None and not server.complete:
            outcome = driver.exchange()
    except Asked as reason:
        return Outcome("paused", str(reason))
    finally:
        server.waiting.clear()
    return Outcome("complete", "all exchanges done") if outcome is None else outcome


@dataclass
class _Driver:
    server: ServerRunner
    channel: Channel
    report: Callable[[str], None]
    asked_to_stop: Callable[[], str]
    clock: Callable[[], float]
    sleep: Callable[[float], None]
    gone: dict[str, str]  # agents that cannot take part any more in this drive, with the reason
    told: tuple[str, ...] = ()  # who was missing when that was last reported
    misses: Counter[str] = field(default_factory=Counter)  # deadlines in a row that an agent let pass
    asked_again_at: dict[str, int] = field(default_factory=dict)  # exchange
    offences: Counter[str] = field(default_factory=Counter)  # refused answers

    def agree(self) -> Outcome | None:
        """All agents that can be reached. Agents train their own models here, which takes as long as it takes, so the
        deadline of a round does not count."""
        text = self.server.spec.text
        absent, refused = self._collect(
            "agreement",
            set(self.server.spec.agents),
            lambda names, timeout: self.channel.agree(names, text, timeout),
            self.server.accept_agreement,
            math.inf,
        )
        self.gone.update({**absent, **refused})
        return self._judge("agreement", self.server.spec.agents, absent, refused)

    def exchange(self) -> Outcome | None:
        kind = self.server.at[0]
        round = self.server.contract.round_of(self.server.exchange)
        what = f"round {round}" if kind == blocks.ROUND else EXCHANGES[kind]
        due = self.server.due()
        left_out = {name: reason for name, reason in self.gone.items() if name in due}
        left_out |= self._resting(set(due) - set(left_out))
        absent, refused = self._collect(
            what,
            set(due) - set(left_out),
            lambda names, timeout: self.channel.call({name: self.server.request(name) for name in names}, timeout),
            self.server.accept,
            self.server.spec.deadline_seconds,
        )
        outliers = self.server.outliers()
        for name, reason in sorted(outliers.items()):
            self.report(f"agent {name}: {reason}")
        refused |= outliers
        # where the server learns by itself, an agent's part ends with its message: nobody is waited for at the close
        may_leave = kind == blocks.CLOSE and self.server.contract.method.learn is not None
        outcome = None if may_leave else self._judge(what, due, absent | left_out, refused)
        if outcome is None:
            self._remember(due, absent, refused)
            missing = {**absent, **left_out, **refused}
            for work in (lambda: self.server.finish(missing), self.server.save):
                patiently(work, self.report, asked_to_stop=self.asked_to_stop, sleep=self.sleep)
        return outcome

    def _resting(self, due: set[str]) -> dict[str, str]:
        """Agents that were late several times in a row and are not asked now, while enough others are."""
        rest = {n: at for n, at in self.asked_again_at.items() if n in due and at > self.server.exchange}
        if self.server.spec.policy != "skip" or len(due) - len(rest) < self.server.spec.quorum:
            return {}
        times = self.misses
        return {
            n: f"{_LATE}, {times[n]} times in a row; asked again in {_in(at, self.server)}" for n, at in rest.items()
        }

    def _remember(self, due: Iterable[str], absent: dict[str, str], refused: dict[str, str]) -> None:
        """Who was late, refused or lost in an exchange, for those that follow."""
        for name in due:
            if absent.get(name) == _LATE:
                self.misses[name] += 1
                rest = min(2 ** (self.misses[name] - 1), LONGEST_REST)
                self.asked_again_at[name] = self.server.exchange + rest
            elif name in absent:
                self.gone[name] = absent[name]
            elif name in refused:
                self.offences[name] += 1
                if self.offences[name] >= MOST_OFFENCES:
                    self.gone[name] = f"left out after {MOST_OFFENCES} refused answers: {refused[name]}"
                    self.report(f"agent {name}: {self.gone[name]}")
            elif self.asked_again_at.get(name, 0) <= self.server.exchange:
                self.misses.pop(name, None)

    def _collect(
        self,
        what: str,
        due: set[str],
        ask: Callable[[Iterable[str], float], Answers],
        accept: Callable[[str, bytes], None],
        deadline_seconds: float,
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Ask until all answered, or are gone, or the deadline is over; who is absent and who was refused, and why."""
        absent: dict[str, str] = {}
        refused: dict[str, str] = {}
        began = self.clock()
        deadline, patience = began + deadline_seconds, FIRST_WAIT_SECONDS
        waits = self.server.spec.policy == "wait" or deadline_seconds == math.inf
        pace = REMIND_SECONDS if deadline_seconds == math.inf else deadline_seconds  # of the lines about those late
        remind = began + pace if waits else math.inf
        while due:
            if reason := self.asked_to_stop():
                raise Asked(reason)
            remaining = deadline - self.clock()
            if remaining <= 0 and not waits:
                absent |= dict.fromkeys(due, _LATE)
                break
            timeout = patience if waits else min(patience, max(remaining, 0.05))
            answers = ask(sorted(due), min(timeout, max(remind - self.clock(), 0.05)))
            for name, data in answers.replies.items():
                if name not in due:
                    continue
                due.discard(name)
                try:
                    accept(name, data)
                except MessageError as error:
                    refused[name] = clean(str(error))
            for name, error_text in answers.errors.items():
                if name in due:
                    due.discard(name)
                    refused[name] = clean(str(error_text))
            lost = due - self.channel.alive(sorted(due)) if due else set()
            absent |= dict.fromkeys(lost, "not reachable")
            due -= lost
            if due and deadline_seconds == math.inf and patience == FIRST_WAIT_SECONDS:
                self.report(f"waiting for {', '.join(sorted(due))} to agree; an agent may train its own model first")
            elif due and self.clock() >= remind:
                self._remind(what, due, self.clock() - began)
                pace = min(2 * pace, REMIND_SECONDS)
                remind = self.clock() + pace
            patience = min(2 * patience, LONGEST_WAIT_SECONDS)
        self.server.waiting.clear()
        for name, reason in sorted({**absent, **refused}.items()):
            self.report(f"agent {name}: {reason}")
        return absent, refused

    def _remind(self, what: str, late: set[str], seconds: float) -> None:
        self.server.waiting.update(dict.fromkeys(late, f"{what}: no answer for {seconds:.0f} s"))
        self.report(
            f"{what}: still waiting for {', '.join(sorted(late))} after {seconds:.0f} s; connected, but without an "
            "answer: look at its log, or start it again, its state is kept"
        )

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
                self.report(f"{what}: going on with {present} of {len(set(due))}, without {', '.join(missing)}")
                self.told = missing
            return None
        if self.server.spec.policy == "stop" or refused:
            return Outcome("stopped", f"{what}: {reasons}", missing)
        return Outcome("paused", f"{what}: waiting for {', '.join(missing)} ({reasons})", missing)


def _in(exchange: int, server: ServerRunner) -> str:
    return "the close" if exchange >= len(server.contract.plan) - 1 else f"round {server.contract.round_of(exchange)}"


_LATE = "did not answer before the deadline"
