"""Seconds per round and memory of real federations on this machine, beside NVFlare's own no-op round.

    python bench/federation.py [--agents 3 10 30] [--rounds 100]

Each federation is a server and that many agents as separate processes on loopback with mutual TLS; the model is
mlp:784-8-8-10 (d = 6442), FedSGD with a mini-batch of 100. The no-op job sends the same number of bytes both ways and
does nothing with them. It runs twice: with NVFlare's logs as they come (`no-op`; five files, two lines a call), and in
the very processes of our run, whose kits log less (`lean no-op`). All are medians on the server, from the end of one
round to the end of the next, state on disk included.
"""

import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from nvflare.fuel.utils import log_utils

from fewjoule.federation import blocks, wire
from fewjoule.federation.nvflare.demo import Site, free_port
from fewjoule.federation.nvflare.jobs import Operator, write_job
from fewjoule.federation.nvflare.provision import Federation, provision
from fewjoule.federation.spec import Spec, contract
from fewjoule.federation.state import unpack

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[3, 10, 30])
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    print("agents  no-op ms  fewjoule ms  overhead  lean no-op ms  overhead  server MB  agent MB (daemon + run)")
    for count in arguments.agents:
        print(measure(count, arguments.rounds), flush=True)


def measure(count: int, rounds: int) -> str:
    spec = Spec(
        method={"method": "fedsgd", "rounds": rounds, "start": "random"},
        model={"spec": "mlp:784-8-8-10", "init": "glorot", "loss": "cross_entropy"},
        agents=tuple(f"agent-{i}" for i in range(count)),
    )
    with federation(spec, default_logs=True) as (folder, operator, _):
        no_op = run_no_op(operator, folder, spec, rounds)
    with federation(spec, default_logs=False) as (folder, operator, sites):
        lean = run_no_op(operator, folder, spec, rounds)
        ours, memory = run_ours(operator, spec, sites)
    return (
        f"{count:>6}  {1e3 * no_op:>8.1f}  {1e3 * ours:>11.1f}  {100 * (ours / no_op - 1):>6.0f} %  "
        f"{1e3 * lean:>13.1f}  {100 * (ours / lean - 1):>6.0f} %  {memory['server']:>9.0f}  {memory['agent']:>8.0f}"
    )


@contextlib.contextmanager
def federation(spec: Spec, default_logs: bool) -> Iterator[tuple[Path, Operator, list[Site]]]:
    """A federation with its processes; its folder, its operator and its sites, the server first."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        provision(Federation("bench", "localhost", free_port(), spec.agents), folder / "kits")
        rng = np.random.default_rng(0)
        for agent in spec.agents:
            np.savez(
                folder / f"{agent}.npz",
                x=rng.uniform(0, 1, (200, 784)).astype(np.float32),
                y=rng.integers(0, 10, 200).astype(np.int32),
            )
        for site in ("server", *spec.agents):  # the no-op is no class of fewjoule, so these kits must allow it
            local = folder / "kits" / site / "local"
            resources = json.loads((local / "resources.json").read_text())
            resources["class_allow_list"] = [*resources["class_allow_list"], "federation_no_op."]
            (local / "resources.json").write_text(json.dumps(resources))
            if default_logs:
                shutil.copy(Path(log_utils.__file__).with_name("log_config.json"), local)
        os.environ["PYTHONPATH"] = str(HERE)
        sites = [Site(folder, site, lambda line: None) for site in ("server", *spec.agents)]
        operator = Operator(folder / "kits" / "operator")
        try:
            operator.reconnect(lambda line: None, 120)
            while len(operator.agents()) < len(spec.agents):
                time.sleep(1)
            yield folder, operator, sites
        finally:
            operator.close()
            for site in sites:
                site.stop()
            for site in sites:
                site.wait()


def run_no_op(operator: Operator, folder: Path, spec: Spec, rounds: int) -> float:
    """Median seconds of a round that carries the same bytes and does nothing."""
    agreed = contract(spec)
    down, up = wire.size(agreed.request_forms(blocks.ROUND)), wire.size(agreed.reply_forms(blocks.ROUND))
    job = folder / "no-op"
    write_job(job, "no-op", [spec], len(spec.agents))
    for side, name, settings in (
        ("server", "NoOpServer", {"rounds": rounds, "size": down}),
        ("client", "NoOpAgent", {"size": up}),
    ):
        path = job / "app" / "config" / f"config_fed_{side}.json"
        config = json.loads(path.read_text())
        config["components"][0] |= {"path": f"federation_no_op.{name}", "args": settings}
        path.write_text(json.dumps(config))
    number = operator._session.submit_job(str(job))
    finish(operator, number)
    return times(folder, "no-op round ")


def run_ours(operator: Operator, spec: Spec, sites: list[Site]) -> tuple[float, dict[str, float]]:
    number = operator.submit("ours", [spec], len(spec.agents))
    memory: dict[str, float] = {}

    def look(answer: Any) -> None:
        # Once, half-way: walking all processes takes time that the rounds would pay for.
        if not memory and answer and (answer.get("progress", {}).get("round") or 0) >= spec.method["rounds"] // 2:
            memory["server"] = resident(sites[0])
            memory["agent"] = statistics.mean(resident(site) for site in sites[1:])

    finish(operator, number, look)
    outcome, results = operator.fetch(number)
    assert outcome is not None, "the run died"
    assert outcome.status == "complete", outcome
    seconds = unpack(results[0], blocks.RESULT, None).arrays["seconds"]
    return float(np.median(seconds[2:-1])), memory


def finish(operator: Operator, job: str, look: Any = None) -> None:
    while not operator.status(job).startswith("FINISHED"):
        if look is not None:
            look(operator.progress(job))
        time.sleep(0.5)


def times(folder: Path, mark: str) -> float:
    found = re.findall(mark + r"(\d+\.\d{6}) s", (folder / "server.log").read_text())
    return statistics.median(float(seconds) for seconds in found[2:])


def resident(site: Site) -> float:
    """Megabytes of a site's daemon and the process of its run (the supervisor left out)."""
    total = 0
    for process in psutil.Process(site.process.pid).children(recursive=True):
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total / 1e6


if __name__ == "__main__":
    main()
