"""The operator's side without a network: a server that answers from a script, and sockets of this process."""

import io
import re
import socket
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

pytest.importorskip("grpc", reason="needs the extra: pip install 'fewjoule[federation]'")

from fewjoule import InputError
from fewjoule.federation.carrier import follow as following
from fewjoule.federation.carrier import page
from fewjoule.federation.carrier.facts import job_id, read_facts
from fewjoule.federation.carrier.follow import follow, start_run
from fewjoule.federation.carrier.jobs import Job
from fewjoule.federation.carrier.live import LiveView, picture
from fewjoule.federation.carrier.operator import Away
from fewjoule.federation.carrier.traffic import Traffic
from fewjoule.federation.carrier.view import View, describe
from fewjoule.federation.spec import read_spec
from fewjoule.studies.settings import Study, make_study
from tests.federation.bench import NAMES, SHORT, Bench


class Scripted:
    """Answers like the server, and runs a started job in this process. `fail` may raise before any answer."""

    def __init__(self, bench: Bench, fail: Callable[[str], None] = lambda what: None) -> None:
        self.bench, self.fail = bench, fail
        self.kit = SimpleNamespace(facts=SimpleNamespace(federation="test", id="ab" * 16, agents=NAMES))
        self.calls: list[str] = []
        self.jobs: dict[str, Job] = {}

    def _called(self, what: str) -> None:
        self.calls.append(what)
        self.fail(what)

    def await_server(self, tell: Callable[[str], None], patience_seconds: float | None) -> None:
        self.calls.append("await")

    def status(self) -> dict[str, Any]:
        return {"agents": dict.fromkeys(NAMES)}

    def start(self, specs: Sequence[str], begun: bool) -> str:
        self._called(f"start {begun}")
        id = job_id(specs)
        if id not in self.jobs:
            job = self.jobs[id] = Job(id, [read_spec(text) for text in specs], state="complete", finished=len(specs))
            for spec in job.specs:
                job.server, _ = self.bench.run(spec)
        return id

    def look(self, job: str) -> dict[str, Any]:
        self._called("look")
        return {**self.jobs[job].describe(), "connected": list(NAMES)}

    def fetch(self, job: str, number: int) -> bytes:
        self._called("fetch")
        return self.bench.server(self.jobs[job].specs[number]).result()


@pytest.fixture
def study(bench: Bench) -> Study:
    entry = {"name": "fedavg", "method": "fedavg", **SHORT["fedavg"]}
    table = {"name": "test", "seeds": [0], "model": {"spec": bench.model.spec}, "methods": [entry], "federation": {}}
    return make_study(table, "test")


def followed(server: Scripted, study: Study, lines: list[str] | None = None) -> Path:
    folder = start_run(study, server, str(server.bench.folder / "run"))  # type: ignore[arg-type]
    follow(folder, server, View([].append if lines is None else lines.append))  # type: ignore[arg-type]
    return folder


def test_trial_22_a_run_is_started_fetched_and_written(bench: Bench, study: Study) -> None:
    server = Scripted(bench)
    folder = followed(server, study)
    assert {path.name for path in folder.iterdir()} >= {"summary.json", "traffic.csv", "energy.csv", "federation.json"}
    assert server.calls == ["start False", "look", "fetch"]
    assert read_facts(folder)["begun"]
    (folder / ".parts").mkdir()  # as if the operator's machine had died before it wrote the results
    follow(folder, server, View([].append))  # type: ignore[arg-type]
    assert server.calls[3:] == ["start True", "look", "fetch"]
    assert len(server.jobs) == 1


def test_trial_14_a_connection_that_breaks_again_and_again_is_waited_for_each_time(bench: Bench, study: Study) -> None:
    left = [8]

    def fail(what: str) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise Away("the server is away")

    server, lines = Scripted(bench, fail), []
    followed(server, study, lines)
    assert server.calls.count("await") == 8  # which pauses, with back-off
    assert len([line for line in lines if "away" in line]) == 8


def test_a_job_that_a_restarted_server_does_not_know_is_started_again(bench: Bench, study: Study) -> None:
    server = Scripted(bench)
    real, forgot = server.look, [False]

    def look(job: str) -> dict[str, Any]:
        if not forgot[0]:
            forgot[0] = True
            return {"job": job, "state": "unknown", "reason": "", "progress": {}, "finished": 0}
        return real(job)

    server.look = look  # type: ignore[method-assign]
    followed(server, study)
    assert [call for call in server.calls if call.startswith("start")] == ["start False", "start False"]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("asked by the operator", "asked to stop; continue with"),
        ("it broke", "the run stopped: it broke; continue with"),
    ],
)
def test_a_run_that_stopped_ends_with_the_cure(bench: Bench, study: Study, reason: str, words: str) -> None:
    server = Scripted(bench)
    ended = {"state": "stopped", "reason": reason, "progress": {}, "finished": 0}
    server.look = lambda job: ended  # type: ignore[method-assign]
    with pytest.raises(InputError, match=words):
        followed(server, study)


def test_a_run_of_another_federation_is_refused(bench: Bench, study: Study) -> None:
    server = Scripted(bench)
    folder = followed(server, study)
    (folder / ".parts").mkdir()
    server.kit.facts.id = "cd" * 16
    with pytest.raises(InputError, match="belongs to federation 'test' \\(abababab\\), the kit to"):
        follow(folder, server, View([].append))  # type: ignore[arg-type]
    (folder / "federation.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match="is damaged or of another release"):
        read_facts(folder)


def test_a_line_of_progress_says_what_is_known(bench: Bench) -> None:
    spec = bench.spec("fedavg")
    server, _ = bench.run(spec)
    job = {**Job("ab", [spec], server=server).describe(), "connected": ["north", "west"]}
    assert "round 4/4  agents 3/3 (2 connected)" in describe(job)
    fresh = {**job, "progress": bench.server(bench.spec("fedavg", nonce="new")).status()}
    assert "loss -  spread -  0.0 kB  no joules read" in describe(fresh)


def test_the_live_view_shows_agents_and_takes_no_markup(bench: Bench) -> None:
    spec = bench.spec("fedavg")
    server, _ = bench.run(spec)
    job = {**Job("ab", [spec], state="running", server=server).describe(), "connected": ["north", "west"]}
    job["progress"] = {**job["progress"], "waiting": {"north": "round 3: no answer for 9 s [/red]"}}
    console = Console(file=io.StringIO(), width=100)
    console.print(picture(job))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "round 4/4" in shown
    assert re.search(r"north +connected +round 3: no answer for 9 s \[/red\]", shown)
    assert re.search(r"south +away", shown)
    live = Console(file=io.StringIO(), force_terminal=True, width=100)
    with LiveView(live) as view:
        view.progress(job)
        view.line("a line [/red]")
    assert "a line [/red]" in live.file.getvalue()  # type: ignore[attr-defined]
    assert "paused: agent north: round 3: no answer" in live.file.getvalue()  # type: ignore[attr-defined]


class Reloads(HTMLParser):
    """What a browser makes of a page: its text, whether it loads itself again, and what it would fetch or run."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.again, self.fetched, self.words = "", [], []
        self.feed(page)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        if facts.get("http-equiv") == "refresh":
            self.again = str(facts["content"])
        if (
            tag in ("script", "img", "iframe", "object")
            or facts.get("src")
            or str(facts.get("href", "data:"))[:5] != "data:"
        ):
            self.fetched.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_runs_page_is_kept_up_to_date_until_the_run_ends(
    bench: Bench, study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the server says `running`, every look may write the page; at the end it is not loaded again."""
    monkeypatch.setattr(following, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(page, "EVERY_SECONDS", 0)
    server, pages = Scripted(bench), []
    looks = iter(range(3))

    def look(job: str) -> dict[str, Any]:
        if (folder / "report.html").exists():
            pages.append(Reloads((folder / "report.html").read_text()))
        seen = {**Scripted.look(server, job), "connected": ["north", "west"], "finished": 0, "state": "running"}
        done = next(looks, None)
        if done is None:
            return {**seen, "finished": 1, "state": "complete"}
        before = {"payload_bytes": 1000, "joules": {"measured": 0.5}}
        after = {"payload_bytes": 2000, "joules": {"measured": 1.0, "modelled": 3.0}, "round": done, "rounds": 4}
        gone = {"south": "<script>alert(1)</script>"}
        return {**seen, "before": before, "progress": {**seen["progress"], **after}, "gone": gone}

    server.look = look  # type: ignore[method-assign]
    folder = bench.folder / "run"
    followed(server, study)
    assert [f"{i} of 4" in each.text for i, each in enumerate(pages)] == [True] * 3
    last = pages[-1]
    for words in ("3.00 kB", "joules, measured 1.50 J", "joules, modelled 3.00 J", "north connected"):
        assert words in last.text
    assert "south away <script>alert(1)</script>" in last.text  # as text
    assert {each.again for each in pages} == {"0"}
    over = Reloads((folder / "report.html").read_text())
    assert (over.again, [each.fetched for each in (*pages, over)]) == ("", [[]] * 4)
    assert "complete: the results are in this folder" in over.text


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (InputError("a disk broke."), "ended: a disk broke."),
        (KeyboardInterrupt(), "not watched: it goes on; look"),
    ],
)
def test_the_page_says_why_a_run_is_no_longer_watched(
    bench: Bench, study: Study, error: BaseException, words: str
) -> None:
    job = {**Job("ab", [bench.spec("fedavg")], state="running").describe(), "connected": []}

    def watched() -> None:
        with page.LivePage(bench.folder, study, print) as shown:
            shown.show(job)
            raise error

    with pytest.raises(type(error)):
        watched()
    over = Reloads((bench.folder / "report.html").read_text())
    assert words in over.text
    assert over.again == ""


def test_a_page_that_cannot_be_written_is_told_once_and_stops_nothing(bench: Bench, study: Study) -> None:
    server, lines = Scripted(bench), []
    folder = start_run(study, server, str(bench.folder / "run"))  # type: ignore[arg-type]
    (folder / "report.html").mkdir()
    follow(folder, server, View(lines.append))  # type: ignore[arg-type]
    assert len([line for line in lines if "report.html is a folder" in line]) == 1
    assert (folder / "summary.json").is_file()


def test_traffic_counts_the_bytes_of_connections_to_one_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        traffic = Traffic(port)
        assert traffic() == (0.0, 0.0)
        traffic._looked = -np.inf
        with socket.create_connection(("127.0.0.1", port)) as near, listening.accept()[0] as far:
            near.sendall(bytes(1000))
            assert len(far.recv(1000, socket.MSG_WAITALL)) == 1000
            far.sendall(bytes(300))
            assert len(near.recv(300, socket.MSG_WAITALL)) == 300
            sent, received = traffic()
        if sent or received:  # Linux
            assert received == 300
            assert 1000 <= sent <= 1001  # the kernel counts the opening of a connection too
            assert traffic() == (sent, received)  # closed connections stay counted
