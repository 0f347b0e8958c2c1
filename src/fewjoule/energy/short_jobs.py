"""Energy of a job that is too short for a meter: many repeats in batches, between two idle windows.

A counter that moves every millisecond says little about a job of a microsecond. So the job is warmed up (compiled),
repeated in batches that together last a stated time, and waited for at the end of each batch. The machine's idle power,
from windows before and after, gives the net energy. Where the two idle windows disagree, something else was running:
the reading is marked doubtful.
"""

import math
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from fewjoule.energy.meters import Meter, OperationMeter, Reading
from fewjoule.errors import InputError

IDLE_TOLERANCE = 0.1


class ShortJob(NamedTuple):
    """Energy of one run of the job.

    `gross` is what the meter counted; `net` is gross less the idle power for the same time, and its standard error
    includes half the difference of the idle windows. Both are means over `repeats` runs.
    """

    gross: Reading
    net: Reading
    idle_watts_before: float
    idle_watts_after: float
    doubtful: bool


def measure(
    job: Callable[[], Any],
    meter: Meter,
    *,
    total_seconds: float = 2.0,
    batches: int = 5,
    idle_seconds: float = 0.5,
    idle_tolerance: float = IDLE_TOLERANCE,
) -> ShortJob:
    """Measure one run of `job`, a function without arguments that returns its arrays (so that they can be waited for).

    Doubtful means that the two idle windows differ by more than `idle_tolerance` of the job's own power.
    """
    if isinstance(meter, OperationMeter):
        raise InputError("a meter by operation counts has nothing to repeat; use its reading as it is.")
    if batches < 2:
        raise InputError(f"batches must be at least 2 for a standard error, got {batches}.")
    for what, value in (("total_seconds", total_seconds), ("idle_seconds", idle_seconds)):
        if not (math.isfinite(value) and value > 0):
            raise InputError(f"{what} must be above 0, got {value}.")
    repeats = _repeats(job, total_seconds / batches)
    before = _idle_watts(meter, idle_seconds)
    windows = [_batch(job, meter, repeats) for _ in range(batches)]
    after = _idle_watts(meter, idle_seconds)

    each = [window.joules / repeats for window in windows]
    seconds = statistics.fmean(window.seconds for window in windows) / repeats
    cpu_seconds = statistics.fmean(window.cpu_seconds for window in windows) / repeats
    joules, error = statistics.fmean(each), statistics.stdev(each) / math.sqrt(batches)
    runs = repeats * batches
    gross = Reading(joules, seconds, cpu_seconds, meter.kind, meter.source, meter.scope, runs, error)
    idle, spread = (before + after) / 2, abs(before - after)
    net = gross._replace(
        joules=joules - idle * seconds,
        source=f"{meter.source}, less {idle:.3g} W idle",
        standard_error_joules=math.hypot(error, spread / 2 * seconds),
    )
    return ShortJob(gross, net, before, after, doubtful=spread > idle_tolerance * joules / seconds)


def _repeats(job: Callable[[], Any], seconds: float) -> int:
    """How many runs last `seconds`: after a warm-up, runs are doubled until they take a tenth of that."""
    _run(job, 1)
    runs = 1
    while True:
        begin = time.perf_counter()
        _run(job, runs)
        took = time.perf_counter() - begin
        if took >= seconds / 10:
            return max(1, round(runs * seconds / took))
        runs *= 2


def _run(job: Callable[[], Any], runs: int) -> None:
    result = None
    for _ in range(runs):
        result = job()
    wait: Callable[[Any], Any] = jax.block_until_ready
    wait(result)


def _batch(job: Callable[[], Any], meter: Meter, runs: int) -> Reading:
    meter.start()
    _run(job, runs)
    return meter.stop()


def _idle_watts(meter: Meter, seconds: float) -> float:
    meter.start()
    time.sleep(seconds)
    reading = meter.stop()
    return reading.joules / reading.seconds
