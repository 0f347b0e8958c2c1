"""The operator's side without a network: a session that answers from a script, and sockets of this process."""

import json
import logging
import re
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fewjoule import InputError
from fewjoule.federation.nvflare import jobs, operator
from fewjoule.federation.nvflare.jobs import Away, Operator, write_job
from fewjoule.federation.nvflare.operator import View, describe, follow, read_facts, start_run
from fewjoule.federation.nvflare.traffic import Traffic
from fewjoule.federation.spec import read_spec
from fewjoule.study.settings import Study, make_study
from tests.federation.bench import NAMES, SHORT, Bench


class NoConnection(Exception):  # noqa: N818 - NVFlare's name
    pass


class InternalError(Exception):
    pass


class Session:
    """NVFlare's session: runs a submitted job in this process. `fail` may raise before any answer."""

    def __init__(self, bench: Bench, fail: Callable[[str], None] = lambda what: None) -> None:
        self.bench, self.fail, self.calls = bench, fail, []
        self.finished: dict[str, Any] = {}

    def __getattr__(self, what: str) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(what)
            self.fail(what)
            return getattr(self, f"on_{what}")(*args, **kwargs)

        return ask

    def close(self) -> None:
        pass

    def on_get_system_info(self) -> Any:
        return SimpleNamespace(client_info=[SimpleNamespace(name=n, last_connect_time=1.0) for n in NAMES])

    def on_submit_job(self, folder: str) -> str:
        config = json.loads((Path(folder) / "app" / "config" / "config_fed_server.json").read_text())
        texts = config["components"][0]["args"]["specs"]
        self.finished["job"] = [self.bench.run(read_spec(text))[0].result() for text in texts]
        return "job"

    def on_get_job_meta(self, job: str) -> dict[str, str]:
        return {"status": "FINISHED:COMPLETED"}

    def on_download_job_result(self, job: str, folder: str) -> str:
        for i, data in enumerate(self.finished[job]):
            (Path(folder) / f"result-{i}.state").write_bytes(data)
        (Path(folder) / "outcome.json").write_text(json.dumps({"status": "complete", "reason": "", "missing": []}))
        return folder


@pytest.fixture
def study(bench: Bench) -> Study:
    entry = {"name": "fedavg", "method": "fedavg", **SHORT["fedavg"]}
    table = {"name": "test", "seeds": [0], "model": {"spec": bench.model.spec}, "methods": [entry], "federation": {}}
    return make_study(table, "test")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    made: list[float] = []
    monkeypatch.setattr(operator.time, "sleep", made.append)
    return made


def connected(bench: Bench, session: Session) -> Operator:
    kit = bench.folder / "kit"
    kit.mkdir(mode=0o700)
    facts = {"role": "operator", "name": "operator", "federation": "test", "agents": NAMES, "host": "here", "port": 1}
    (kit / "fewjoule.json").write_text(json.dumps(facts))
    made = Operator(kit)

    def connect() -> None:
        made._session = session

    made.connect = connect  # type: ignore[method-assign]
    made.connect()
    return made


def test_trial_22_a_run_is_submitted_fetched_and_written(bench: Bench, study: Study, pauses: list[float]) -> None:
    session = Session(bench)
    made = connected(bench, session)
    folder = start_run(study, made, str(bench.folder / "run"))
    follow(folder, made, View(lambda line: None))
    assert {path.name for path in folder.iterdir()} >= {"summary.json", "traffic.csv", "energy.csv", "federation.json"}
    assert read_facts(folder)["jobs"] == ["job"]
    assert session.calls.count("submit_job") == 1
    (folder / ".parts").mkdir()  # as if the operator's machine had died before it wrote the results
    follow(folder, made, View(lambda line: None))
    assert session.calls.count("submit_job") == 1


def test_trial_14_a_server_that_fails_is_asked_a_few_times_with_pauses(
    bench: Bench, study: Study, pauses: list[float]
) -> None:
    def fail(what: str) -> None:
        if what == "submit_job":
            raise InternalError("disk full")

    session = Session(bench, fail)
    made = connected(bench, session)
    folder = start_run(study, made, str(bench.folder / "run"))
    with pytest.raises(InputError, match=r"the server failed 5 times in a row \(InternalError: disk full\).*resume"):
        follow(folder, made, View(lambda line: None))
    assert session.calls.count("submit_job") == 5
    assert pauses == [2.0, 4.0, 8.0, 16.0]


def test_trial_14_a_connection_that_breaks_again_and_again_is_waited_for(
    bench: Bench, study: Study, pauses: list[float]
) -> None:
    left = [8]

    def fail(what: str) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise NoConnection("gone")

    made = connected(bench, Session(bench, fail))
    folder = start_run(study, made, str(bench.folder / "run"))
    follow(folder, made, View(lambda line: None))
    assert pauses[:8] == [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]


def test_errors_of_a_session_are_told_apart(bench: Bench) -> None:
    errors: list[Exception] = [NoConnection("x"), InternalError("x"), InternalError("Authentication failed")]

    def fail(what: str) -> None:
        raise errors.pop(0)

    made = connected(bench, Session(bench, fail))
    for lost in (True, False):
        with pytest.raises(Away) as caught:
            made.status("job")
        assert caught.value.lost == lost
    with pytest.raises(InputError, match="the server refused this kit"):
        made.status("job")
    made.close()
    with pytest.raises(Away, match="not connected") as caught:
        made.status("job")
    assert caught.value.lost


def test_trial_21_only_nvflares_own_lines_are_silenced(capsys: pytest.CaptureFixture[str]) -> None:
    def record(path: str) -> logging.LogRecord:
        return logging.LogRecord("root", logging.ERROR, path, 1, "attempt", None, None)

    assert not jobs._is_not_of_nvflare(record("/site-packages/nvflare/fuel/session.py"))
    assert jobs._is_not_of_nvflare(record("scripts/my_script.py"))
    source = Path(jobs.__file__).read_text()
    assert not re.search(r"getLogger\(\)\.setLevel|disable\(", source)


def test_a_job_names_classes_and_brings_no_code(bench: Bench, tmp_path: Path) -> None:
    write_job(tmp_path / "job", "job", [bench.spec()], 2)
    files = {str(path.relative_to(tmp_path / "job")) for path in (tmp_path / "job").rglob("*") if path.is_file()}
    assert files == {"meta.json", "app/config/config_fed_server.json", "app/config/config_fed_client.json"}
    assert json.loads((tmp_path / "job" / "meta.json").read_text())["min_clients"] == 2


def test_a_line_of_progress_says_what_is_known(bench: Bench) -> None:
    server, _ = bench.run(bench.spec("fedavg"))
    answer = {"progress": server.status(), "finished": 0, "runs": 1, "agents": NAMES}
    assert "round 4/4  agents 3/3 (2 connected)" in describe(answer, 2)
    fresh = {**answer, "progress": bench.server(bench.spec("fedavg", nonce="new")).status()}
    assert "loss -  spread -  0.0 kB  no joules read" in describe(fresh, 0)


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
