"""A job over NVFlare that carries bytes both ways and does nothing with them: what that engine alone costs a round.

    pip install 'nvflare>=2.9,<2.10'
    python bench/federation_no_op.py [--agents 3] [--rounds 100] [--bytes 26000]

Beside it, `bench/federation.py` shows a round of ours with all its arithmetic and state. Provisioning, logs and
settings are NVFlare's own. Times are medians on the server.
"""

import argparse
import contextlib
import json
import logging
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from nvflare.collab import collab

HERE = Path(__file__).parent
OPERATOR = "operator@bench.example"


class NoOpAgent:
    """Answers at once."""

    def __init__(self, size: int) -> None:
        self._answer = bytes(size)

    @collab.publish
    def handle(self, request: bytes) -> bytes:
        return self._answer


class NoOpServer:
    """Asks all agents, `rounds` times."""

    def __init__(self, rounds: int, size: int) -> None:
        self._rounds, self._request = rounds, bytes(size)

    @collab.main
    def run(self) -> None:
        began = time.perf_counter()
        for _ in range(self._rounds):
            results = collab.clients(timeout=60.0).handle(self._request)
            assert len(results) == len(collab.clients)
            now = time.perf_counter()
            print(f"no-op round {now - began:.6f} s", flush=True)
            began = now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[3])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--bytes", type=int, default=26_000)
    arguments = parser.parse_args()
    print("agents  NVFlare no-op, ms a round")
    for count in arguments.agents:
        print(f"{count:>6}  {1e3 * no_op(count, arguments.rounds, arguments.bytes):>10.2f}", flush=True)


def no_op(count: int, rounds: int, size: int) -> float:
    """Median seconds of a round between a server and `count` agents on this machine."""
    from nvflare.fuel.flare_api.flare_api import new_secure_session

    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, agents = Path(name), [f"agent-{i}" for i in range(count)]
        kits = provision(folder, agents)
        for site in ("localhost", *agents):
            stack.callback(end, daemon(kits / site, site, folder))
        session = None
        while session is None:
            with contextlib.suppress(Exception):
                session = new_secure_session(OPERATOR, str(kits / OPERATOR), timeout=5.0)
        while len(session.get_system_info().client_info) < count:
            time.sleep(1)
        number = session.submit_job(str(write_job(folder / "job", agents, rounds, size)))
        while not str(session.get_job_meta(number).get("status")).startswith("FINISHED"):
            time.sleep(0.5)
        session.close()
        told = "".join((folder / f"{site}.log").read_text() for site in ("agent-0", "localhost"))
        found = re.findall(r"no-op round (\d+\.\d{6}) s", told)
        assert found, f"the job did not run:\n{told[-5000:]}"
    return statistics.median(float(seconds) for seconds in found[2:])


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def provision(folder: Path, agents: list[str]) -> Path:
    from nvflare.lighter.constants import CtxKey
    from nvflare.lighter.entity import Project
    from nvflare.lighter.impl.cert import CertBuilder
    from nvflare.lighter.impl.signature import SignatureBuilder
    from nvflare.lighter.impl.static_file import StaticFileBuilder
    from nvflare.lighter.impl.workspace import WorkspaceBuilder
    from nvflare.lighter.provisioner import Provisioner

    project, port = Project(name="bench", description="no-op"), free_port()
    project.set_server("localhost", "bench", {"fed_learn_port": port, "admin_port": port})
    for agent in agents:
        project.add_client(agent, "bench", {})
    project.add_admin(OPERATOR, "bench", {"role": "lead"})
    builders = [
        WorkspaceBuilder(template_file="master_template.yml"), StaticFileBuilder(config_folder="config", scheme="grpc"),
        CertBuilder(), SignatureBuilder(),
    ]  # fmt: skip
    context = Provisioner(str(folder / "work"), builders).provision(project, logger=logging.getLogger("no-op"))
    kits = Path(context[CtxKey.CURRENT_PROD_DIR])
    for site in ("localhost", *agents):
        local = kits / site / "local"
        resources = json.loads((local / "resources.json.default").read_text())
        resources["class_allow_list"] = ["federation_no_op.", "nvflare."]
        (local / "resources.json").write_text(json.dumps(resources))
    return kits


def daemon(kit: Path, site: str, folder: Path) -> "subprocess.Popen[bytes]":
    side, uid = ("server", []) if site == "localhost" else ("client", [f"uid={site}"])
    program = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{side}.{side}_train", "-m", str(kit)]
    settings = ["-s", f"fed_{side}.json", "--set", "secure_train=true", *uid, "org=bench", "config_folder=config"]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    with (folder / f"{site}.log").open("ab") as out:
        return subprocess.Popen(
            [*program, *settings], cwd=kit, env={**os.environ, "PYTHONPATH": path}, stdout=out, stderr=out
        )


def end(process: "subprocess.Popen[bytes]") -> None:
    """The daemon and the processes of its jobs."""
    import psutil

    family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    for each in family:
        with contextlib.suppress(psutil.Error):
            each.kill()
    process.wait()


def write_job(job: Path, agents: list[str], rounds: int, size: int) -> Path:
    config = job / "app" / "config"
    config.mkdir(parents=True)
    meta = {"name": "no-op", "resource_spec": {}, "min_clients": len(agents), "deploy_map": {"app": ["@ALL"]}}
    (job / "meta.json").write_text(json.dumps(meta))
    same: dict[str, Any] = {"format_version": 2, "task_data_filters": [], "task_result_filters": []}
    runtime, arguments = "nvflare.collab.runtime", {"collab_obj_ids": [], "props": {}}
    controller = {"path": f"{runtime}.controller.CollabController", "args": {**arguments, "server_obj_id": "_server"}}
    executor = {"path": f"{runtime}.executor.CollabExecutor", "args": {**arguments, "client_obj_id": "_client"}}
    server = {"id": "_server", "path": "federation_no_op.NoOpServer", "args": {"rounds": rounds, "size": size}}
    client = {"id": "_client", "path": "federation_no_op.NoOpAgent", "args": {"size": size}}
    sides = {
        "server": {**same, "workflows": [{"id": "controller", **controller}], "components": [server]},
        "client": {**same, "executors": [{"tasks": ["*"], "executor": executor}], "components": [client]},
    }
    for side, table in sides.items():
        (config / f"config_fed_{side}.json").write_text(json.dumps(table))
    return job


if __name__ == "__main__":
    main()
