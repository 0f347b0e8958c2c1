"""A run's report.html while the run goes. Whoever follows a run writes it, so there is no server behind the page."""

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fewjoule.energy.show import si_text
from fewjoule.errors import InputError
from fewjoule.files import write_atomically
from fewjoule.reporting.live_page import AgentState, RunState, Standing, live_page
from fewjoule.studies.settings import Study

FILE = "report.html"
EVERY_SECONDS = 5


class LivePage:
    """Kept up to date in a `with` block; what is written last says how it ended, and is not loaded again."""

    def __init__(self, folder: Path, study: Study, tell: Callable[[str], None]) -> None:
        self._folder, self._study, self._tell = folder, study, tell
        self._job: dict[str, Any] | None = None
        self._due = 0.0
        self._failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._job is None:
            return
        if kind is None:
            self._write({**self._job, "reason": "the results are in this folder"}, None)
        elif isinstance(error, InputError):
            self._write({**self._job, "state": "ended", "reason": str(error)}, None)
        else:
            again = f"fewjoule federation resume {self._folder}"
            self._write({**self._job, "state": "not watched", "reason": f"it goes on; look again with: {again}"}, None)

    def show(self, job: dict[str, Any]) -> None:
        """What the server says of the job; written every few seconds."""
        if "agents" not in job:  # a server that does not know it any more
            return
        self._job = job
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + EVERY_SECONDS
            self._write(job, EVERY_SECONDS)

    def _write(self, job: dict[str, Any], seconds: int | None) -> None:
        page = live_page(standing(self._study, job, time.time()), seconds)
        try:
            write_atomically(self._folder / FILE, page.encode(), force=True)
        except InputError as error:  # the run needs no page
            if not self._failed:
                self._tell(str(error))
            self._failed = True


def standing(study: Study, job: dict[str, Any], now: float) -> Standing:
    """A job as `Jobs` describes it, for people; `now` is in seconds since 1970."""
    p, done = job["progress"], job["finished"]
    names = [(entry.label or entry.name, seed) for entry in study.methods for seed in study.seeds]
    runs = [
        RunState(*name, "done" if i < done else "to come", (p["round"], p["rounds"]) if i == done and p else None)
        for i, name in enumerate(names)
    ]
    counted = [each for each in (job["before"], p) if each]
    kinds = sorted({kind for each in counted for kind in each["joules"]})
    amounts = [("bytes of messages", si_text(sum(each["payload_bytes"] for each in counted), "B"))]
    for kind in kinds:
        amounts.append((f"joules, {kind}", si_text(sum(each["joules"].get(kind, 0.0) for each in counted), "J")))
    amounts += [] if p.get("loss") is None else [("mean loss of the last round", f"{p['loss']:.4g}")]
    if p:
        amounts.append(("agents in the last round", f"{p['present']} of {len(job['agents'])}"))
    late, connected = p.get("waiting", {}), job.get("connected", ())
    agents = [
        AgentState(name, "connected" if name in connected else "away", late.get(name) or job["gone"].get(name, ""))
        for name in job["agents"]
    ]
    at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    return Standing(study.title or study.name, job["state"], job["reason"], at, runs, amounts, agents)
