"""What a study's stages cost: the meter around each execution, and operation counts of the agents' work.

From a study's energy settings to readings (plain tables, for the parts) and FLOPs per seed; `run_folder` puts them on
the ledger.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fewjoule.compiled import Around, Execute
from fewjoule.energy import CpuTimeMeter, Meter, OperationMeter, PowercapMeter, Reading, auto, count, device
from fewjoule.local import train_chunk
from fewjoule.methods.descent import descend
from fewjoule.methods.method import Method, Start
from fewjoule.models import Model
from fewjoule.optimisers import optimiser
from fewjoule.study import EnergySettings, Evaluation, LocalSettings
from fewjoule.tasks.samples import Agents, Tasks

SHORTEST_SECONDS = 0.1
Result = TypeVar("Result")


class StudyMeter:
    """The meter of a study: readings as plain tables (joules, seconds, kind, source) of one execution."""

    def __init__(self, settings: EnergySettings) -> None:
        self._device = device(settings.device)
        self._by_operations = settings.meter == "operations"
        if settings.meter == "powercap":
            self._meter: Meter = PowercapMeter(watch=True)
            self._reason = f"measured by {self._meter.source}."
        elif settings.meter == "auto" or settings.require_measured:
            self._meter, self._reason = auto(require_measured=settings.require_measured, device=self._device)
        else:
            self._meter = CpuTimeMeter(self._device)
            self._reason = f"modelled by {self._meter.source}, as the study asks."
        if self._by_operations:
            self._reason = f"modelled by FLOPs x {self._device.joules_per_flop:.3g} J ({self._device.name})."

    def describe(self) -> str:
        """One sentence for the user: which meter, and why not a better one."""
        return self._reason

    def read(self, job: Callable[[Around], Result], flops: int | None) -> tuple[Result, dict[str, Any]]:
        """Run a job that hands its execution to the meter; `flops` are its operations, where they are known.

        An execution shorter than `SHORTEST_SECONDS` is repeated within one window until that has passed, since a
        counter moves every millisecond at best; the mean is taken.
        """
        readings: list[tuple[Reading, int]] = []

        def around(execute: Execute) -> Any:
            self._meter.start()
            begin, runs = time.perf_counter(), 0
            while True:
                result = execute()
                runs += 1
                if self._by_operations or time.perf_counter() - begin >= SHORTEST_SECONDS:
                    readings.append((self._meter.stop(), runs))
                    return result

        result = job(around)
        assert readings, "a job hands its execution to the meter"
        mean = {
            "joules": sum(reading.joules / runs for reading, runs in readings),
            "seconds": sum(reading.seconds / runs for reading, runs in readings),
            "kind": self._meter.kind,
            "source": self._meter.source,
        }
        return result, mean if flops is None else self.of_flops(mean, flops)

    def of_flops(self, reading: dict[str, Any], flops: int) -> dict[str, Any]:
        """The reading, or what the device would spend on this many FLOPs where the study asks for operation counts."""
        if not self._by_operations:
            return reading
        meter = OperationMeter(self._device, flops=flops)
        meter.start()
        counted = meter.stop()
        return {"joules": counted.joules, "seconds": counted.seconds, "kind": counted.kind, "source": counted.source}


def method_flops(method: Method, model: Model, agents: Agents) -> int:
    """FLOPs of all agents over all rounds, for one seed; the server's averaging is not an agent's cost."""
    if method.rounds == 0:
        return 0
    vector, key = _vector(model), _key()
    data = _one_agent(agents)
    scalar = _shapes(lambda: jnp.zeros(()))
    total, probes = 0, None
    if method.probe is not None:
        probe = method.probe
        total += count(lambda v, d, k: probe(model.loss, v, d, k), vector, data, key).flops
        each = jax.eval_shape(lambda v, d, k: probe(model.loss, v, d, k), vector, data, key)
        probes = _shapes(lambda: jax.tree.map(lambda a: jnp.zeros((len(agents), *a.shape), a.dtype), each))
    _, broadcast = jax.eval_shape(method.init, Start(vector, scalar, vector), probes)
    state = jax.eval_shape(method.agent_init, vector, vector)
    once = count(lambda s, b, d, k: method.agent(model.loss, s, b, d, k), state, broadcast, data, key).flops
    return len(agents) * (total + method.rounds * once)


def pretraining_flops(model: Model, agents: Agents, local: LocalSettings, steps: np.ndarray[Any, Any]) -> list[int]:
    """FLOPs of the offline training for each seed, from the steps [seeds, agents] that were taken."""
    chosen = optimiser(local.optimiser, local.step)
    vector = _vector(model)
    memory = jax.eval_shape(chosen.init, vector)
    samples = _one_agent(agents).train

    def one(v: Any, m: Any, s: Any, k: Any) -> Any:
        return train_chunk(model, chosen.update, v, m, s, k, 1, local.batch)

    once = count(one, vector, memory, samples, _key()).flops
    return [once * int(row.sum()) for row in steps]


def adaptation_flops(model: Model, tasks: Tasks, evaluation: Evaluation) -> int:
    """FLOPs of one new device that fine-tunes for as many steps as the headline takes."""
    support = _shapes(lambda: jax.tree.map(lambda a: a[0], tasks.support))
    steps = evaluation.headline
    if steps == 0:
        return 0

    def tune(v: Any, s: Any, k: Any) -> Any:
        return descend(model.loss, v, s, k, step=evaluation.step, steps=steps, batch=None)[0]

    return count(tune, _vector(model), support, _key()).flops


def _shapes(make: Callable[[], Any]) -> Any:
    return jax.eval_shape(make)


def _vector(model: Model) -> Any:
    return _shapes(lambda: jnp.zeros(model.size))


def _key() -> Any:
    return _shapes(lambda: jax.random.key(0))


def _one_agent(agents: Agents) -> Any:
    def first(a: jax.Array) -> jax.Array:
        return a[0] if agents.seeds is None else a[0, 0]

    return _shapes(lambda: jax.tree.map(first, agents.data))
