"""How the simulator grows: cohorts, populations on disk, all agents at once, cores. Ratios, all taken in one run.

    python bench/scale.py [--quick] [JOB ...]

    cohort       a round of 100 agents out of 1000 and out of 10 000, in memory
    million      a round of 100 agents out of a million on disk, beside one out of 1000 in memory and one out of 1000 on
                 disk: FedAvg, and where agents keep a state (FedAvg with error feedback; Meta-Backward)
    all          all of 10 000 and of 100 000 agents in every round
    cores        the methods of the sinusoid study on one core and on all of them
    processes    the same on one core and by two processes of one core each
    stages       where the time of `fewjoule run sinusoid` goes, without a cache of compiled programs and with one;
                 these three are written into docs/scale.md

Agents are sinusoids of 20 samples, the model has 1761 weights, FedAvg takes 5 local steps. Every job is a process of
its own, so that its peak memory is its own. Times are seconds of a process with one thread, which a busy machine does
not stretch; `cores` is on the clock.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
SAMPLES, LOCAL_STEPS, BATCH = 20, 5, 10
PAGE = Path(__file__).parents[1] / "docs/scale.md"


def draws(agents: int, block: int = 10_000) -> Iterator[tuple[Any, Any]]:
    """x and y of sinusoids with random amplitudes and phases, one agent after another."""
    import numpy as np

    rng = np.random.default_rng(0)
    for begin in range(0, agents, block):
        count = min(block, agents - begin)
        x = rng.uniform(-5, 5, (count, SAMPLES, 1)).astype(np.float32)
        amplitude, phase = rng.uniform(0.1, 5, (count, 1, 1)), rng.uniform(0, 3, (count, 1, 1))
        yield from zip(x, (amplitude * np.sin(x + phase)).astype(np.float32), strict=True)


def in_memory(agents: int) -> Any:
    """Agents of `draws` without a check of each, which 100 000 of them would wait for."""
    import numpy as np

    import fewjoule as fj

    x, y = (np.stack(each) for each in zip(*draws(agents), strict=True))
    none = np.zeros((agents, 1), np.float32)
    data = fj.AgentData(fj.Samples(x, y, np.ones((agents, SAMPLES), np.float32)), fj.Samples(x[:, :1], y[:, :1], none))
    return fj.Agents(data, tuple(map(str, range(agents))))


def method(name: str, rounds: int) -> Any:
    import fewjoule as fj

    steps: dict[str, Any] = {"rounds": rounds, "batch": BATCH}
    if name == "meta_backward":
        return fj.meta_backward(radius=1e-3, learning_rate=1e-4, **steps)
    codec = {"codec": "top-k:0.1:4"} if name == "feedback" else {}
    return fj.method("fedavg", local_steps=LOCAL_STEPS, start="random", **steps, **codec)


def per_round(run: Callable[[int], Any], few: int, many: int) -> float:
    """Seconds of a round: the difference of two runs, so that what stands before the first round does not count."""
    times = []
    for rounds in (few, many):
        run(rounds)  # compile
        best = 1e9
        for _ in range(2):
            before = time.process_time()
            run(rounds)
            best = min(best, time.process_time() - before)
        times.append(best)
    return (times[1] - times[0]) / (many - few)


def round_in_memory(name: str, agents: int, cohort: int, few: int, many: int) -> dict[str, float]:
    import jax
    import numpy as np

    import fewjoule as fj

    net, everyone = fj.mlp([1, 40, 40, 1]), in_memory(agents)
    local = None
    if name == "meta_backward":
        local = np.repeat(np.asarray(net.init(jax.random.key(0)))[None], agents, 0)

    def run(rounds: int) -> None:
        share = cohort / agents
        jax.block_until_ready(
            fj.simulate(method(name, rounds), net, everyone, local, participation=share, diverged_at=1e9).meta
        )

    return {"seconds": per_round(run, few, many)}


def round_on_disk(name: str, folder: str, cohort: int, few: int, many: int) -> dict[str, float]:
    import fewjoule as fj

    net, people = fj.mlp([1, 40, 40, 1]), fj.population(folder)
    local = Path(folder) / "models.npy" if name == "meta_backward" else None
    best = 1e9
    for _ in range(2):
        ends: list[float] = []  # of the rounds
        with tempfile.TemporaryDirectory(dir=folder) as states:
            fj.simulate_population(
                method(name, many), net, people, local, cohort=cohort, states=states, diverged_at=1e9,
                told=lambda share, ends=ends: ends.append(time.process_time()),
            )  # fmt: skip
        best = min(best, (ends[-1] - ends[few]) / (many - 1 - few))
    return {"seconds": best}


def written(folder: str, agents: int) -> dict[str, float]:
    """A population on disk, and models of its agents: a common start and noise."""
    import jax
    import numpy as np

    import fewjoule as fj

    fj.population(draws(agents), folder)
    net = fj.mlp([1, 40, 40, 1])
    models = np.lib.format.open_memmap(Path(folder) / "models.npy", "w+", np.float32, (agents, net.size))
    start, rng = np.asarray(net.init(jax.random.key(0))), np.random.default_rng(1)
    for begin in range(0, agents, 10_000):
        part = models[begin : begin + 10_000]
        part[:] = start + 0.01 * rng.standard_normal(part.shape, np.float32)
    return {}


def in_a_process(job: str, *args: Any, flags: str = ONE_THREAD) -> dict[str, Any]:
    """Run a function of this file in a process of its own; what it gives, and its peak memory in GB."""
    command = [sys.executable, __file__, "--job", json.dumps([job, *args])]
    found = subprocess.run(command, env={**os.environ, "XLA_FLAGS": flags}, capture_output=True, text=True)
    if found.returncode:
        raise SystemExit(f"{job}{args} failed:\n{found.stderr}")
    return json.loads(found.stdout.splitlines()[-1])


def write(block: str, lines: list[str]) -> None:
    """Put lines into a block of docs/scale.md, and show them."""
    begin, end = f"<!-- written by bench/scale.py {block} -->", "<!-- end -->"
    head, found, rest = PAGE.read_text("utf-8").partition(begin)
    if not found or end not in rest:
        raise SystemExit(f"{PAGE} must have a block from {begin} to {end}.")
    PAGE.write_text("\n".join([head + begin, *lines, end + rest.partition(end)[2]]), "utf-8")
    print("\n".join(lines), flush=True)


def conditions(quick: bool) -> str:
    """What was run, when, and how busy the machine was."""
    return (
        f"`fewjoule run sinusoid{' --quick' if quick else ''}`, {len(os.sched_getaffinity(0))} cores, "
        f"{time.strftime('%Y-%m-%d')}, load average {os.getloadavg()[0]:.0f} at the end (a quiet machine has at most "
        "its cores)"
    )


def show(what: str, asked: str, ratio: float, notes: str) -> None:
    print(f"{what:58}{asked:>14}{ratio:9.2f}   {notes}", flush=True)


def cohort(quick: bool) -> None:
    rounds = (10, 60) if quick else (20, 220)
    small, large = (in_a_process("round_in_memory", "fedavg", n, 100, *rounds) for n in (1000, 10_000))
    notes = f"{1e3 * small['seconds']:.1f} and {1e3 * large['seconds']:.1f} ms a round"
    show("cohort of 100: 10 000 agents over 1000, in memory", "", large["seconds"] / small["seconds"], notes)


def million(quick: bool) -> None:
    agents, rounds = 100_000 if quick else 1_000_000, (10, 60) if quick else (20, 220)
    most = {"fedavg": "at most 1.3"}
    with tempfile.TemporaryDirectory(prefix="fewjoule-scale-") as place:
        few_people, folder = (str(Path(place) / each) for each in ("few", "many"))
        in_a_process("written", few_people, 1000)
        in_a_process("written", folder, agents)
        for name in ("fedavg", "feedback", "meta_backward"):
            large = in_a_process("round_on_disk", name, folder, 100, *rounds)
            in_memory = in_a_process("round_in_memory", name, 1000, 100, *rounds)
            on_disk = in_a_process("round_on_disk", name, few_people, 100, *rounds)
            for where, small in (("in memory", in_memory), ("on disk", on_disk)):
                notes = f"{1e3 * small['seconds']:.1f} and {1e3 * large['seconds']:.1f} ms"
                notes += f", peak {large['gigabytes']:.2f} GB"
                what = f"{name}: {agents} agents on disk over 1000 {where}"
                show(what, most.get(name, "at most 2"), large["seconds"] / small["seconds"], notes)


def all_of_them(agents: int, rounds: int) -> dict[str, float]:
    import jax

    import fewjoule as fj

    net, everyone = fj.mlp([1, 40, 40, 1]), in_memory(agents)

    def run() -> None:
        jax.block_until_ready(fj.simulate(method("fedavg", rounds), net, everyone).meta)

    run()
    before = time.process_time()
    run()
    return {"seconds": time.process_time() - before}


def all_agents(quick: bool) -> None:
    small, large = (in_a_process("all_of_them", n, 3) for n in ((1000, 10_000) if quick else (10_000, 100_000)))
    notes = f"{small['seconds']:.1f} and {large['seconds']:.1f} s, peak {large['gigabytes']:.2f} GB"
    show("all present: ten times the agents", "8 to 12", large["seconds"] / small["seconds"], notes)


class Stages:
    """Progress of a study that notes the clock, this process's seconds and those of its busiest thread, by stage."""

    def __init__(self) -> None:
        self._name, self._before, self.took = "", (0.0, 0.0, {}), {}

    def line(self, text: str) -> None: ...

    def advance(self, work: float) -> None: ...

    def finish(self) -> None:
        self.stage("", 0)

    def stage(self, name: str, work: float) -> None:
        now = (time.perf_counter(), time.process_time(), self._threads())
        if self._name:
            most = max(seconds - self._before[2].get(thread, 0.0) for thread, seconds in now[2].items())
            self.took[self._name] = (now[0] - self._before[0], now[1] - self._before[1], most)
        self._name, self._before = name, now

    def _threads(self) -> dict[str, float]:
        """Seconds of every thread of this process (Linux)."""
        seconds = {}
        for path in Path("/proc/self/task").glob("*/stat"):
            fields = path.read_text().rpartition(")")[2].split()
            seconds[path.parent.name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return seconds


def study_methods(
    name: str, cores: list[int], quick: bool, cache: str, placed: list[Any] | None = None
) -> dict[str, float]:
    """The methods of a study on these cores, by one process or by one of several."""
    os.sched_setaffinity(0, cores)
    os.environ["FEWJOULE_CACHE"] = cache
    from fewjoule.files import use_compile_cache
    from fewjoule.studies.parts import new_folder
    from fewjoule.studies.prepare import prepare
    from fewjoule.studies.run import run_study, take_part
    from fewjoule.studies.settings import load_study
    from fewjoule.training.mesh import use_all_cores
    from fewjoule.training.processes import ALONE, meet

    use_all_cores()
    use_compile_cache()
    team = ALONE if placed is None else meet(*placed)
    prepared, stages = prepare(load_study(name, quick=quick)), Stages()
    if team.index:
        take_part(prepared, team)
        return {}
    with tempfile.TemporaryDirectory() as place:
        run_study(prepared, new_folder(prepared.study, str(Path(place) / "run")), stages, team)
    clock, process, busiest = stages.took["methods"]
    return {"seconds": clock, "cpu": process, "busiest": busiest}


def by_turns(quick: bool, first: Callable[[str], Any], second: Callable[[str], Any]) -> list[dict[str, float]]:
    """The best of two runs of each, in turns: a machine that others use has slow minutes. Programs are kept."""
    with tempfile.TemporaryDirectory() as kept:
        runs = [(first(kept), second(kept)) for _ in range(1 if quick else 2)]
    return [min(of_one, key=lambda took: took["seconds"]) for of_one in zip(*runs, strict=True)]


def on_cores(quick: bool, each: list[int]) -> Callable[[str], dict[str, float]]:
    return lambda kept: in_a_process("study_methods", "sinusoid", each, quick, kept, flags="")


def cores(quick: bool) -> None:
    every = sorted(os.sched_getaffinity(0))
    one, many = by_turns(quick, on_cores(quick, every[:1]), on_cores(quick, every))
    write("cores", [
        f"{conditions(quick)}. Methods alone, with their judging; seconds on the clock, of all threads, and of the "
        "busiest one; the better of two runs, in turns.",
        "",
        "| cores | clock | all threads | busiest thread |",
        "|---|---|---|---|",
        *(f"| {count} | {took['seconds']:.1f} s | {took['cpu']:.1f} s | {took['busiest']:.1f} s |"
          for count, took in ((1, one), (len(every), many))),
        "",
        f"Ratio of the clocks: {one['seconds'] / many['seconds']:.2f} (target: at least 1.7).",
    ])  # fmt: skip


def processes(quick: bool) -> None:
    from fewjoule.training.processes import free_address

    first, second = sorted(os.sched_getaffinity(0))[:2]

    def pair(kept: str) -> dict[str, float]:
        address = free_address()
        with ThreadPoolExecutor(2) as pool:
            both = [
                pool.submit(in_a_process, "study_methods", "sinusoid", [core], quick, kept, [address, k, 2], flags="")
                for k, core in enumerate((first, second))
            ]
            both[1].result()
            return both[0].result()

    one, two = by_turns(quick, on_cores(quick, [first]), pair)
    write("processes", [
        f"{conditions(quick)}. Methods alone, the better of two runs, in turns: one process on one core took "
        f"{one['seconds']:.1f} s, two processes of one core each {two['seconds']:.1f} s. Ratio: "
        f"{one['seconds'] / two['seconds']:.2f} (target: at least 1.6).",
    ])  # fmt: skip


def study_stages(name: str, cache: str, quick: bool) -> dict[str, Any]:
    """Seconds on the clock and of all threads for every stage of a study, and how many programs were compiled."""
    os.environ["FEWJOULE_CACHE"] = cache
    stages, compiled = Stages(), []
    stages.stage("imports and data", 0)
    import jax

    from fewjoule.files import use_compile_cache
    from fewjoule.studies.parts import new_folder
    from fewjoule.studies.prepare import prepare
    from fewjoule.studies.run import run_study
    from fewjoule.studies.settings import load_study
    from fewjoule.training.mesh import use_all_cores

    def heard(event: str, **facts: Any) -> None:
        compiled.extend([event] if event == "/jax/compilation_cache/cache_misses" else [])

    jax.monitoring.register_event_listener(heard)
    use_all_cores()
    use_compile_cache()
    with tempfile.TemporaryDirectory() as place:
        prepared = prepare(load_study(name, quick=quick))
        run_study(prepared, new_folder(prepared.study, str(Path(place) / "run")), stages)
    return {"took": stages.took, "compiled": len(compiled)}


def stages(quick: bool) -> None:
    with tempfile.TemporaryDirectory() as cache:
        cold, warm = (in_a_process("study_stages", "sinusoid", cache, quick, flags="") for _ in range(2))
    nothing = (0.0, 0.0, 0.0)
    lines = ["| stage | cold: clock | all threads | warm: clock | all threads |", "|---|---|---|---|---|"]
    for name in cold["took"]:
        times = [seconds for run in (cold, warm) for seconds in run["took"].get(name, nothing)[:2]]
        lines.append(f"| {name} | " + " | ".join(f"{seconds:.1f} s" for seconds in times) + " |")
    sums = [sum(times[k] for times in run["took"].values()) for run in (cold, warm) for k in (0, 1)]
    lines.append("| all | " + " | ".join(f"{seconds:.1f} s" for seconds in sums) + " |")
    compiled = f"programs compiled: {cold['compiled']} cold, {warm['compiled']} warm"
    write("stages", [f"{conditions(quick)}; {compiled}.", "", *lines])


JOBS: dict[str, Callable[[bool], None]] = {
    "cohort": cohort, "million": million, "all": all_agents,
    "cores": cores, "processes": processes, "stages": stages,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=", ".join(JOBS))
    parser.add_argument("--quick", action="store_true", help="a tenth of the agents, and the quick study")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        name, *args = json.loads(options.job)
        found = globals()[name](*args)
        print(json.dumps({**found, "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}))
        return
    print(f"{'job':58}{'asked':>14}{'ratio':>9}")
    for name in options.jobs or JOBS:
        JOBS[name](options.quick)


if __name__ == "__main__":
    main()
