"""Seconds per round and memory of real federations on this machine.

    python bench/federation.py [--agents 3 10 30] [--rounds 100]

Each federation is a server and that many agents as separate processes on loopback with mutual TLS; the model is
mlp:784-8-8-10 (d = 6442), FedSGD with a mini-batch of 100. Times are medians on the server, from the end of one round
to the end of the next, state on disk included. Memory is the proportional set size (PSS), looked at once, half-way.
"""

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from fewjoule.federation import blocks
from fewjoule.federation.authority import provision
from fewjoule.federation.carrier.demo import DATA, Site, free_port
from fewjoule.federation.carrier.operator import Operator
from fewjoule.federation.federation_file import Federation
from fewjoule.federation.spec import Spec
from fewjoule.federation.state import unpack


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[3, 10, 30])
    parser.add_argument("--rounds", type=int, default=100)
    arguments = parser.parse_args()
    print("agents  ms a round  server MB  threads  agent MB  threads")
    for count in arguments.agents:
        seconds, memory = measure(count, arguments.rounds)
        told = "  ".join(f"{memory[key]:>8.0f}" for key in ("server", "server threads", "agent", "agent threads"))
        print(f"{count:>6}  {1e3 * seconds:>10.2f}  {told}", flush=True)


def spec_for(count: int, rounds: int) -> Spec:
    return Spec(
        method={"method": "fedsgd", "rounds": rounds, "start": "random"},
        model={"spec": "mlp:784-8-8-10", "init": "glorot", "loss": "cross_entropy"},
        agents=tuple(f"agent-{i}" for i in range(count)),
    )


def measure(count: int, rounds: int) -> tuple[float, dict[str, float]]:
    """Median seconds of a round; megabytes (PSS) and threads of the server and of the mean agent."""
    spec, memory = spec_for(count, rounds), {}
    with federation(spec) as (operator, sites):
        job = operator.start([spec.text], begun=False)
        while (seen := operator.look(job))["state"] != "complete":
            if not memory and (seen["progress"].get("round") or 0) >= rounds // 2:
                memory = look(sites)
            time.sleep(0.1)
        memory = memory or look(sites)
        seconds = unpack(operator.fetch(job, 0), blocks.RESULT, None).arrays["seconds"]
    return float(np.median(seconds[2:-1])), memory


@contextlib.contextmanager
def federation(spec: Spec) -> Iterator[tuple[Operator, list[Site]]]:
    """A federation with its processes: its operator and its sites, the server first."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        provision(Federation("bench", "localhost", free_port(), spec.agents), folder / "kits")
        rng = np.random.default_rng(0)
        for agent in spec.agents:
            x, y = rng.uniform(0, 1, (200, 784)).astype(np.float32), rng.integers(0, 10, 200).astype(np.int32)
            np.savez(folder / "kits" / agent / DATA, x=x, y=y)
        sites = []
        for site in ("server", *spec.agents):
            sites.append(Site(folder, site, lambda line: None))
            stack.callback(sites[-1].wait)
            stack.callback(sites[-1].stop)
        operator = stack.enter_context(contextlib.closing(Operator(folder / "kits" / "operator")))
        operator.await_server(lambda line: None, 120)
        while None in operator.status()["agents"].values():
            time.sleep(0.5)
        yield operator, sites


def look(sites: list[Site]) -> dict[str, float]:
    facts: list[dict[str, Any]] = []
    for site in sites:
        process = psutil.Process(site.process.pid)
        family = [process, *process.children(recursive=True)]
        pss = sum(each.memory_full_info().pss for each in family) / 1e6
        facts.append({"pss": pss, "threads": sum(each.num_threads() for each in family)})
    mean = {key: statistics.mean(fact[key] for fact in facts[1:]) for key in ("pss", "threads")}
    return {
        "server": facts[0]["pss"], "server threads": facts[0]["threads"], "agent": mean["pss"],
        "agent threads": mean["threads"],
    }  # fmt: skip


if __name__ == "__main__":
    main()
