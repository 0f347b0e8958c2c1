"""Small rounds on one thread, as fewjoule runs them, beside XLA's way to hand kernels to all cores. Ratios of turns.

    python bench/threads.py

The jobs of bench/peers that have less than two milliseconds of work in a round.
"""

import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import numpy as np

import fewjoule as fj
from bench.peers.jobs import DIGITS, JOBS, SINE
from fewjoule.simulation.simulate import Simulation
from fewjoule.training.program import Program

TURNS = 15
METHODS = {
    "J1": lambda rounds: fj.maml(rounds=rounds, batch=None),
    "J5-2": lambda rounds: fj.fedavg(rounds=rounds, local_steps=1, batch=100),
    "J6": lambda rounds: fj.meta_backward(rounds=rounds, learning_rate=1e-4, radius=1e-3),
}


def programs(name: str) -> dict[bool, Program]:
    """The rounds of a job, as small ones and not."""
    length = JOBS[name].length
    data = {key: np.asarray(value) for key, value in JOBS[name].arrays(length).items()}
    parts = [("xa", "ya"), ("xb", "yb")] if "xa" in data else [("x", "y")]
    agents = fj.make_agents(*(list(zip(data[x], data[y], strict=True)) for x, y in parts))
    local = np.repeat(data["start"][None], len(agents), 0)
    ready = Simulation(METHODS[name](length), DIGITS if name == "J5-2" else SINE, agents, local)
    whole = ready._program
    return {small: Program(whole._jitted, whole._static, whole.arrays, small) for small in (True, False)}


def main() -> None:
    print("job     rounds/s: one thread   all cores   times as fast   CPU seconds, all cores over one thread")
    for name in METHODS:
        each = programs(name)
        rates, cpu = {True: [], False: []}, {True: [], False: []}
        for turn in range(TURNS + 1):
            for small, program in each.items():
                program.compile()
                before, spent = time.perf_counter(), time.process_time()
                for _ in range(3):
                    jax.block_until_ready(program.run())
                if turn:  # the first is warming up
                    rates[small].append(3 * JOBS[name].length / (time.perf_counter() - before))
                    cpu[small].append(time.process_time() - spent)
        ratio = statistics.median(a / b for a, b in zip(rates[True], rates[False], strict=True))
        joules = statistics.median(a / b for a, b in zip(cpu[False], cpu[True], strict=True))
        one, every = (statistics.median(rates[small]) for small in (True, False))
        print(f"{name:8}{one:20.0f}{every:12.0f}{ratio:16.2f}{joules:20.2f}", flush=True)


if __name__ == "__main__":
    main()
