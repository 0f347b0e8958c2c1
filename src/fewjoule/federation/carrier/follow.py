"""A run from the operator's side: start it, watch it, ask again after anything that died, and write the run folder.

The server keeps the run and goes on with it by itself; whoever follows only looks. Starting twice starts once, so after
a lost connection or a restarted server the same question is simply asked again.
"""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fewjoule.errors import InputError
from fewjoule.federation.carrier.jobs import STOPPED_BY_OPERATOR, job_id
from fewjoule.federation.carrier.operator import Away, Operator
from fewjoule.federation.results import read_result, write_federated_folder
from fewjoule.federation.spec import read_spec, specs_of
from fewjoule.files import write_atomically
from fewjoule.studies.parts import new_folder, stopped_study
from fewjoule.studies.settings import Study

POLL_SECONDS = 0.5


class View:
    """Where a run shows itself; this one is plain lines, and one line per round."""

    def __init__(self, line: Callable[[str], None] = print) -> None:
        self.line = line
        self._last: tuple[Any, ...] = ()
        self._reason = ""

    def progress(self, job: dict[str, Any]) -> None:
        self.pauses(job)
        p = job["progress"]
        if p and (job["finished"], p["exchange"]) != self._last:
            self._last = (job["finished"], p["exchange"])
            self.line(describe(job))

    def pauses(self, job: dict[str, Any]) -> None:
        """A line when a run begins to wait, and for what."""
        late = "; ".join(f"agent {name}: {why}" for name, why in job["progress"].get("waiting", {}).items())
        reason = (job["reason"].removeprefix("paused: ") if job["state"] in ("running", "waiting") else "") or late
        if reason != self._reason:
            self._reason = reason
            if reason:
                self.line(f"paused: {reason}")


def describe(job: dict[str, Any]) -> str:
    """One line: rounds, agents, loss, spread, bytes, joules so far."""
    p = job["progress"]
    joules = ", ".join(f"{amount:.3g} J {kind}" for kind, amount in p["joules"].items()) or "no joules read"
    loss = "-" if p["loss"] is None else f"{p['loss']:.4g}"
    spread = "-" if p["spread"] is None else f"{p['spread']:.3g}"
    connected = f" ({len(job['connected'])} connected)" if "connected" in job else ""
    return (
        f"run {min(job['finished'] + 1, job['runs'])}/{job['runs']}  round {p['round']}/{p['rounds']}  "
        f"agents {p['present']}/{len(job['agents'])}{connected}  loss {loss}  spread {spread}  "
        f"{p['payload_bytes'] / 1000:.1f} kB  {joules}"
    )


def start_run(study: Study, operator: Operator, out: str | None) -> Path:
    """Create the run folder with everything that `follow` and `resume` need."""
    facts = operator.kit.facts
    specs = specs_of(study, tuple(operator.status()["agents"]))  # who is a member now
    folder = new_folder(study, out)
    _remember(
        folder, {"federation": facts.federation, "id": facts.id, "specs": [s.text for s in specs], "begun": False}
    )
    return folder


def follow(folder: Path, operator: Operator, view: View, *, patience_seconds: float | None = None) -> None:
    """Carry the run of `folder` to its end, whatever dies on the way; `InputError` where it cannot go on.

    `patience_seconds` is how long to wait for a server that is away; None waits for ever.
    """
    facts = read_facts(folder)
    if facts["id"] != operator.kit.facts.id:
        raise InputError(
            f"{folder} belongs to federation {facts['federation']!r} ({facts['id'][:8]}), the kit to "
            f"{operator.kit.facts.federation!r} ({operator.kit.facts.id[:8]})."
        )
    study, specs = stopped_study(folder, None), facts["specs"]
    cure = f"go on with: fewjoule federation resume {folder}."
    while True:
        try:
            job = operator.start(specs, facts["begun"])
            ended = _watch(folder, facts, operator, job, view)
            if ended["state"] == "complete":
                results = [read_result(operator.fetch(job, number)) for number in range(len(specs))]
                break
        except Away as error:
            view.line(f"{error}; the run goes on as soon as it is back")
            operator.await_server(lambda line: None, patience_seconds)
            continue
        if ended["state"] == "unknown":
            continue
        if ended["reason"] == STOPPED_BY_OPERATOR:
            raise InputError(f"the run was asked to stop; {cure}")
        raise InputError(f"the run stopped: {ended['reason']}; {cure}")
    write_federated_folder(folder, study, results)
    with contextlib.suppress(OSError):
        (folder / ".parts").rmdir()


def job_of(folder: Path) -> str:
    """The id of the job that the run of this folder is on the server."""
    return job_id(read_facts(folder)["specs"])


def read_facts(folder: Path) -> dict[str, Any]:
    path = folder / "federation.json"
    if not path.is_file():
        raise InputError(f"{folder} is not the run folder of a federation: it has no federation.json.")
    try:
        facts = json.loads(path.read_bytes())
        for text in facts["specs"]:
            read_spec(text)
        return {key: facts[key] for key in ("federation", "id", "specs", "begun")}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged or of another release ({error}); start a new run.") from None


def _remember(folder: Path, facts: dict[str, Any]) -> None:
    write_atomically(folder / "federation.json", (json.dumps(facts, indent=1) + "\n").encode(), force=True)


def _watch(folder: Path, facts: dict[str, Any], operator: Operator, job: str, view: View) -> dict[str, Any]:
    """Watch a job to its end; what the server says of it then."""
    while True:
        seen = operator.look(job)
        view.progress(seen)
        if not facts["begun"] and (seen["finished"] or seen["progress"].get("exchange")):
            facts["begun"] = True
            _remember(folder, facts)
        if seen["state"] in ("complete", "stopped", "unknown"):
            return seen
        time.sleep(POLL_SECONDS)
