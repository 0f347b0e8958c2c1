"""A run from the operator's side: start it, watch it, ask again after anything that died, and write the run folder.

The server keeps the run and goes on with it by itself; whoever follows only looks. Starting twice starts once, so after
a lost connection or a restarted server the same question is simply asked again.
"""

import contextlib
import time
from pathlib import Path
from typing import Any

from fewjoule.errors import InputError
from fewjoule.federation.carrier.facts import read_facts, write_facts
from fewjoule.federation.carrier.jobs import STOPPED_BY_OPERATOR
from fewjoule.federation.carrier.operator import Away, Operator
from fewjoule.federation.carrier.page import LivePage
from fewjoule.federation.carrier.view import View
from fewjoule.federation.results import Result, read_result, write_federated_folder
from fewjoule.federation.spec import read_spec, specs_of
from fewjoule.studies.parts import new_folder, stopped_study
from fewjoule.studies.settings import Study

POLL_SECONDS = 0.5


def start_run(study: Study, operator: Operator, out: str | None) -> Path:
    """Create the run folder with everything that `follow` and `resume` need."""
    facts = operator.kit.facts
    specs = specs_of(study, tuple(operator.status()["agents"]))  # who is a member now
    folder = new_folder(study, out)
    write_facts(
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
    study = stopped_study(folder, None)
    for text in facts["specs"]:
        read_spec(text)  # of this release
    with LivePage(folder, study, view.line) as page:
        results = _carry(folder, facts, operator, view, page, patience_seconds)
        write_federated_folder(folder, study, results)
    with contextlib.suppress(OSError):
        (folder / ".parts").rmdir()


def _carry(
    folder: Path, facts: dict[str, Any], operator: Operator, view: View, page: LivePage, patience_seconds: float | None
) -> list[Result]:
    """Ask again until all runs are complete; their results."""
    specs, cure = facts["specs"], f"continue with: fewjoule federation resume {folder}."
    while True:
        try:
            job = operator.start(specs, facts["begun"])
            ended = _watch(folder, facts, operator, job, view, page)
            if ended["state"] == "complete":
                return [read_result(operator.fetch(job, number)) for number in range(len(specs))]
        except Away as error:
            view.line(f"{error}; the run goes on as soon as it is back")
            operator.await_server(lambda line: None, patience_seconds)
            continue
        if ended["state"] == "unknown":
            continue
        if ended["reason"] == STOPPED_BY_OPERATOR:
            raise InputError(f"the run was asked to stop; {cure}")
        raise InputError(f"the run stopped: {ended['reason']}; {cure}")


def _watch(
    folder: Path, facts: dict[str, Any], operator: Operator, job: str, view: View, page: LivePage
) -> dict[str, Any]:
    """Watch a job to its end; what the server says of it then."""
    while True:
        seen = operator.look(job)
        view.progress(seen)
        page.show(seen)
        if not facts["begun"] and (seen["finished"] or seen["progress"].get("exchange")):
            facts["begun"] = True
            write_facts(folder, facts)
        if seen["state"] in ("complete", "stopped", "unknown"):
            return seen
        time.sleep(POLL_SECONDS)
