"""A run from the operator's side: submit, watch, go on after anything that died, and write the run folder.

The server keeps the state of a run; a job is only what carries it for a while. When a job ends before the run does
(an agent or the server died, an agent is missing, somebody asked to stop), a new job goes on from the last complete
exchange as soon as enough agents are there.
"""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fewjoule.errors import InputError
from fewjoule.federation.drive import Outcome
from fewjoule.federation.nvflare.jobs import Away, Operator
from fewjoule.federation.results import read_result, write_federated_folder
from fewjoule.federation.spec import Spec, read_spec, specs_of
from fewjoule.files import write_atomically
from fewjoule.study.parts import new_folder, stopped_study
from fewjoule.study.settings import Study

POLL_SECONDS = 1.0
START_SECONDS = 120.0  # a job that says nothing for this long after its start is given up
REJOIN_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 30.0
MOST_FAILURES = 5
"""Jobs in a row that died without finishing an exchange: then something is wrong that trying again will not cure."""


class View:
    """Where a run shows itself; this one is plain lines, and one line per round."""

    def __init__(self, line: Callable[[str], None] = print) -> None:
        self.line, self._last = line, (-1, -1)

    def progress(self, answer: dict[str, Any], connected: int) -> None:
        p = answer.get("progress") or {}
        if not p or (answer["finished"], p["exchange"]) == self._last:
            return
        self._last = (answer["finished"], p["exchange"])
        self.line(describe(answer, connected))


def describe(answer: dict[str, Any], connected: int) -> str:
    """One line: rounds, agents, loss, spread, bytes, joules so far."""
    p = answer["progress"]
    joules = ", ".join(f"{amount:.3g} J {kind}" for kind, amount in p["joules"].items()) or "no joules read"
    loss = "-" if p["loss"] is None else f"{p['loss']:.4g}"
    spread = "-" if p["spread"] is None else f"{p['spread']:.3g}"
    return (
        f"run {min(answer['finished'] + 1, answer['runs'])}/{answer['runs']}  round {p['round']}/{p['rounds']}  "
        f"agents {p['present']}/{len(answer['agents'])} ({connected} connected)  loss {loss}  spread {spread}  "
        f"{p['payload_bytes'] / 1000:.1f} kB  {joules}"
    )


def start_run(study: Study, operator: Operator, out: str | None) -> Path:
    """Create the run folder with everything that `follow` and `resume` need."""
    specs = specs_of(study, tuple(operator.facts["agents"]))
    folder = new_folder(study, out)
    _remember(folder, {"federation": operator.facts["federation"], "specs": [s.text for s in specs], "jobs": []})
    return folder


def follow(folder: Path, operator: Operator, view: View, *, patience_seconds: float | None = None) -> None:
    """Carry the run of `folder` to its end, whatever dies on the way; `InputError` where it cannot go on.

    `patience_seconds` is how long to wait for a server that is away, or for agents; None waits for ever.
    """
    facts = read_facts(folder)
    if facts["federation"] != operator.facts["federation"]:
        raise InputError(
            f"{folder} belongs to federation {facts['federation']!r}, the kit to {operator.facts['federation']!r}."
        )
    study, specs = stopped_study(folder, None), [read_spec(text) for text in facts["specs"]]
    failures, troubles, furthest, cure = 0, 0, (-1, -1), f"go on with: fewjoule federation resume {folder}."
    while True:
        try:
            job = _running(operator, facts["jobs"]) or _submit(folder, facts, operator, specs, view, patience_seconds)
            reached = _watch(operator, job, specs, view)
            outcome, results = operator.fetch(job)
        except Away as error:
            troubles += 1
            if troubles >= MOST_FAILURES and not error.lost:  # it is there, and cannot do what it is asked
                raise InputError(
                    f"the server failed {troubles} times in a row ({error}); look at its log.txt, then {cure}"
                ) from None
            time.sleep(min(2.0**troubles, LONGEST_PAUSE_SECONDS))
            operator.reconnect(view.line, patience_seconds)
            continue
        troubles = 0
        if outcome is None:
            view.line("the job ended before the run did; going on from the last complete exchange")
            outcome = Outcome("paused", "the job died")
        if outcome.status == "complete" and len(results) == len(specs):
            write_federated_folder(folder, study, [read_result(results[i]) for i in range(len(specs))])
            with contextlib.suppress(OSError):
                (folder / ".parts").rmdir()
            return
        if outcome.status == "stopped":
            raise InputError(f"the run stopped: {outcome.reason}; {cure}")
        if outcome.reason.startswith("stop: "):
            raise InputError(f"the run was asked to stop; {cure}")
        view.line(f"paused: {outcome.reason}")
        failures = 0 if reached > furthest else failures + 1
        furthest = max(furthest, reached)
        if failures >= MOST_FAILURES:
            raise InputError(
                f"{failures} jobs in a row ended without progress ({outcome.reason}); look at the sites' log.txt, "
                f"then {cure}"
            )


def read_facts(folder: Path) -> dict[str, Any]:
    path = folder / "federation.json"
    if not path.is_file():
        raise InputError(f"{folder} is not the run folder of a federation: it has no federation.json.")
    return json.loads(path.read_text())


def _remember(folder: Path, facts: dict[str, Any]) -> None:
    write_atomically(folder / "federation.json", (json.dumps(facts, indent=1) + "\n").encode(), force=True)


def _running(operator: Operator, jobs: list[str]) -> str | None:
    """The last job of this run if it is still at work, or finished with results to fetch."""
    if not jobs:
        return None
    try:
        status = operator.status(jobs[-1])
    except Away as error:
        if type(error.__cause__).__name__ == "JobNotFound":
            return None
        raise
    if status == "FINISHED:COMPLETED":
        outcome, _ = operator.fetch(jobs[-1])
        return jobs[-1] if outcome is not None and outcome.status == "complete" else None
    if status.startswith("FINISHED"):
        return None
    if status == "RUNNING" and operator.progress(jobs[-1]) is None:
        time.sleep(REJOIN_SECONDS)  # it may be starting or ending
        if operator.status(jobs[-1]) == "RUNNING" and operator.progress(jobs[-1]) is None:
            operator.abort(jobs[-1])  # listed as running since before the server was started again
            return None
    return jobs[-1]


def _submit(
    folder: Path, facts: dict[str, Any], operator: Operator, specs: list[Spec], view: View, patience: float | None
) -> str:
    spec = specs[0]
    least = spec.quorum if spec.policy == "skip" else len(spec.agents)
    _await_agents(operator, spec, least, view, patience)
    job = operator.submit(f"fewjoule-{spec.run.hex()[:8]}", specs, least)
    facts["jobs"].append(job)
    _remember(folder, facts)
    return job


def _await_agents(operator: Operator, spec: Spec, least: int, view: View, patience: float | None) -> None:
    """Wait until enough agents are connected; where some may be skipped, give the others a moment too."""
    began, told = time.monotonic(), None
    while True:
        missing = sorted(set(spec.agents) - operator.agents())
        waited = time.monotonic() - began
        if not missing or (len(spec.agents) - len(missing) >= least and waited >= REJOIN_SECONDS):
            return
        if patience is not None and waited > patience:
            raise InputError(
                f"agents {', '.join(missing)} did not connect; start them with: fewjoule federation agent."
            )
        if missing != told:
            view.line(f"waiting for agents: {', '.join(missing)}")
            told = missing
        time.sleep(POLL_SECONDS)


def _watch(operator: Operator, job: str, specs: list[Spec], view: View) -> tuple[int, int]:
    """Watch a job to its end; how far it came (runs finished, exchanges of the next)."""
    reached, began, spoke, asked = (-1, -1), time.monotonic(), False, False
    lost: dict[str, float] = {}  # agents that the job goes on without, and when the server had last heard of them
    while True:
        status = operator.status(job)
        if status.startswith("FINISHED"):
            return reached
        answer = operator.progress(job) if status == "RUNNING" else None
        heard = operator.heard()
        if answer and answer.get("progress"):
            spoke = True
            reached = max(reached, (answer["finished"], answer["progress"]["exchange"]))
            view.progress(answer, len(set(heard) & set(specs[0].agents)))
            for name in answer["gone"]:
                lost.setdefault(name, heard.get(name, 0.0))
            # an agent that came back cannot enter a running job: a new one begins at the next exchange
            back = [name for name, last in lost.items() if heard.get(name, 0.0) > last + 1.0]
            if back and not asked:
                view.line(f"{', '.join(back)} came back: going on with all that are there")
                operator.ask_to_stop(job, f"{', '.join(back)} came back")
                asked = True
        elif status == "RUNNING" and not spoke and time.monotonic() - began > START_SECONDS:
            operator.abort(job)
        time.sleep(POLL_SECONDS)
