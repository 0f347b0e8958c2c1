"""The sinusoid family of few-shot regression: y = amplitude * sin(x + phase), x uniform in a range.

An agent owns one amplitude and phase; a new task draws both from ranges.
"""

from collections.abc import Sequence

import numpy as np

from fewjoule.errors import InputError
from fewjoule.randomness import agent_id
from fewjoule.tasks.samples import Agents, Tasks, make_agents, stack, stack_seeds

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
    """One agent per amplitude, named `amplitude 2`, ...; a sequence of seeds gives a leading axis of seeds.

    `phases` (radians) is one for all or one per agent; `noise` is the standard deviation added to y.
    """
    if not isinstance(seed, int):

        def one(seed: int) -> Agents:
            return agents(
                amplitudes,
                phases=phases,
                samples=samples,
                validation=validation,
                x_range=x_range,
                noise=noise,
                seed=seed,
            )

        return stack_seeds([one(s) for s in seed], tuple(seed))
    if samples < 1 or validation < 0:
        raise InputError(f"samples must be at least 1 and validation at least 0, got {samples} and {validation}.")
    if not noise >= 0:
        raise InputError(f"noise must be 0 or more, got {noise}.")
    _check_range("x_range", x_range)
    each = [phases] * len(amplitudes) if isinstance(phases, int | float) else list(phases)
    if len(each) != len(amplitudes):
        raise InputError(f"phases must be one number or one per agent: {len(amplitudes)}, got {len(each)}.")
    names = [f"amplitude {a:g}" + (f" phase {p:g}" if p else "") for a, p in zip(amplitudes, each, strict=True)]
    train, held = [], []
    for amplitude, phase, name in zip(amplitudes, each, names, strict=True):
        rng = np.random.default_rng([seed, agent_id(name)])
        x = rng.uniform(*x_range, samples + validation)
        y = amplitude * np.sin(x + phase) + noise * rng.standard_normal(len(x))
        train.append((x[:samples], y[:samples]))
        held.append((x[samples:], y[samples:]))
    return make_agents(train, held, names=names)


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
    """New tasks with amplitude and phase drawn uniformly; a device sees `shots` samples and is judged on `queries`."""
    if count < 1 or shots < 1 or queries < 1:
        raise InputError(f"count, shots and queries must be at least 1, got {count}, {shots} and {queries}.")
    for name, value in (("amplitude", amplitude), ("phase", phase), ("x_range", x_range)):
        _check_range(name, value, may_be_point=name != "x_range")
    rng = np.random.default_rng([seed, agent_id("new tasks")])
    a = rng.uniform(*amplitude, (count, 1))
    p = rng.uniform(*phase, (count, 1))
    x = rng.uniform(*x_range, (count, shots + queries))
    y = a * np.sin(x + p)
    return Tasks(
        stack(list(zip(x[:, :shots], y[:, :shots], strict=True)), what="task"),
        stack(list(zip(x[:, shots:], y[:, shots:], strict=True)), what="task"),
    )


def _check_range(name: str, value: Range, may_be_point: bool = False) -> None:
    low, high = value
    if not (low < high or (may_be_point and low == high)):
        raise InputError(f"{name} must be (low, high) with low below high, got {value}.")
