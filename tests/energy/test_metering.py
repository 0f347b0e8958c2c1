"""The meter of a study: a short execution is repeated within one window, so that a slow counter sees it."""

import time

import pytest

from fewjoule.energy import Reading
from fewjoule.energy.metering import MODELS, SHORTEST_SECONDS, Metering
from fewjoule.errors import InputError


class SlowCounter:
    """Draws 10 W, and refuses a window in which a counter that moves every 10 ms would have stood still."""

    kind, source, scope = "measured", "slow counter", "package"

    def start(self):
        self._begin = time.perf_counter()

    def stop(self):
        seconds = time.perf_counter() - self._begin
        if seconds < 0.01:
            raise InputError("the counter did not move.")
        return Reading(10.0 * seconds, seconds, 0.0, self.kind, self.source, self.scope)


def test_a_short_execution_is_repeated_in_one_window():
    meter, runs = Metering(meter="cpu-time"), []
    meter._meter = SlowCounter()

    def job(around):
        return around(lambda: runs.append(1) or time.sleep(1e-3) or "result")

    result, reading = meter.read(job, None)
    assert result == "result"
    assert len(runs) > 1
    assert reading["joules"] == pytest.approx(10.0 * reading["seconds"])
    assert reading["seconds"] * len(runs) >= SHORTEST_SECONDS
    assert reading["kind"] == "measured"


def test_operation_counts_run_once_and_cost_the_devices_joules():
    meter, runs = Metering(meter="operations", device="cortex-m4"), []
    _, reading = meter.read(lambda around: around(lambda: runs.append(1)), 10**6)
    assert runs == [1]
    assert reading["joules"] == pytest.approx(10**6 * 42.654e-3 * 8 / (2 * 120e6))
    assert reading["kind"] == "modelled"


@pytest.mark.parametrize("name", MODELS)
def test_trial_10_a_model_is_refused_where_measured_joules_are_required(name):
    with pytest.raises(InputError, match=f"meter '{name}' is a model; choose the meter auto or powercap"):
        Metering(meter=name, require_measured=True)


def test_an_unknown_meter_is_not_a_model():
    with pytest.raises(InputError, match="unknown meter 'powercab'; did you mean 'powercap'"):
        Metering(meter="powercab")
