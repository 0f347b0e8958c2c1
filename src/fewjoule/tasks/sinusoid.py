"""The sinusoid family of few-shot regression: y = amplitude * sin(x + phase), x uniform in a range.

An agent owns one amplitude and phase; a new task draws both from ranges.
"""

from collections.abc import Sequence

import numpy as np

from fewjoule.errors import InputError, not_negative
from fewjoule.tasks.samples import Agents, Pair, Tasks, draw_agents, generator_of_tasks, make_tasks

Range = tuple[float, float]


def agents(
    amplitudes: Sequence[float] = (2, 6, 10),
    *,
    phases: float | Sequence[float] = 0.0,
    samples: int = 400,
    validation: int = 100,
    x_range: Range = (-5.0, 5.0),
    noise: float = 0.0,
    seed: int | Sequence[int] = 0,
) -> Agents:
    """One agent per amplitude, named `amplitude 2`, ... (a second one alike: `amplitude 2 again`).

    A sequence of seeds gives a leading axis of seeds.

    `phases` (radians) is one for all or one per agent; `noise` is the standard deviation added to y.
    """
    not_negative("noise", noise)
    _check_range("x_range", x_range)
    each = np.broadcast_to(phases, len(amplitudes)) if np.ndim(phases) == 0 else np.asarray(phases)
    if len(each) != len(amplitudes):
        raise InputError(f"phases must be one number or one per agent: {len(amplitudes)}, got {len(each)}.")
    names: list[str] = []
    for amplitude, phase in zip(amplitudes, each, strict=True):
        name = f"amplitude {amplitude:g}" + (f" phase {phase:g}" if phase else "")
        while name in names:
            name += " again"
        names.append(name)

    def pair(i: int, rng: np.random.Generator) -> Pair:
        x = rng.uniform(*x_range, samples + validation)
        return x, amplitudes[i] * np.sin(x + each[i]) + noise * rng.standard_normal(len(x))

    return draw_agents(names, pair, samples, validation, seed)


def new_tasks(
    count: int,
    *,
    amplitude: Range = (0.1, 10.0),
    phase: Range = (0.0, 0.0),
    shots: int = 40,
    queries: int = 100,
    x_range: Range = (-5.0, 5.0),
    seed: int = 0,
) -> Tasks:
    """New tasks with amplitude and phase drawn uniformly; a device sees `shots` samples and is tested on `queries`."""
    for name, value in (("amplitude", amplitude), ("phase", phase), ("x_range", x_range)):
        _check_range(name, value, may_be_point=name != "x_range")
    rng = generator_of_tasks(seed, count=count, shots=shots, queries=queries)
    a = rng.uniform(*amplitude, (count, 1))
    p = rng.uniform(*phase, (count, 1))
    x = rng.uniform(*x_range, (count, shots + queries))
    y = a * np.sin(x + p)
    support, query = (list(zip(x[:, part], y[:, part], strict=True)) for part in (slice(shots), slice(shots, None)))
    return make_tasks(support, query)


def _check_range(name: str, value: Range, may_be_point: bool = False) -> None:
    low, high = value
    if not (low < high or (may_be_point and low == high)):
        raise InputError(f"{name} must be (low, high) with low below high, got {value}.")
