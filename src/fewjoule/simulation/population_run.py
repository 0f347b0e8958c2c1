"""What a run over a population on disk gives, and what all of it costs."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jax import Array

from fewjoule.energy import Device, Ledger, Link
from fewjoule.energy import device as named_device
from fewjoule.energy import link as named_link
from fewjoule.energy.charge import charge_together
from fewjoule.energy.metering import DEFAULT_DEVICE
from fewjoule.methods.method import Method
from fewjoule.models.model import Model
from fewjoule.simulation.run import Trace
from fewjoule.simulation.work import turn_flops
from fewjoule.tasks.samples import AgentData

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, repr=False)
class PopulationRun:
    """A run over a population, with one seed. `meta` is NaN where it diverged.

    `cohorts` [rounds, cohort] are the positions of those who took part, `uplink_bits` and `downlink_bits`
    [rounds, cohort] what each of them sent and received; `first_bits` are what [agents] sent, and what each received,
    before the first round. The trace has no spread, which would need all models at once. `start_loss` and `final_loss`
    are means over at most 10 000 agents, evenly spaced.
    """

    method: Method
    model: Model
    agents: int
    seed: int
    meta: Array
    diverged: bool
    start: Array
    start_loss: float
    final_loss: float
    trace: Trace
    cohorts: Numbers
    uplink_bits: Numbers
    downlink_bits: Numbers
    first_bits: tuple[Numbers, int]
    data: AgentData  # shapes of the largest agent's samples, from which operations are counted

    def energy(self, link: str | Link = "paper", device: str | Device = DEFAULT_DEVICE) -> Ledger:
        """What the run costs all agents together, by phase, as `Run.energy` counts it; operations are those of an agent
        with the largest number of samples."""
        radio = named_link(link) if isinstance(link, str) else link
        processor = named_device(device) if isinstance(device, str) else device
        probe, turn = turn_flops(self.method, self.model, self.data)
        up = [self.first_bits[0], *self.uplink_bits]
        down = [np.full(self.agents, self.first_bits[1]), *self.downlink_bits]
        ledger = Ledger()
        flops = self.agents * probe + self.cohorts.size * turn
        charge_together(ledger, radio, processor, flops, up, down, method=self.method.name, seed=self.seed)
        return ledger

    def __repr__(self) -> str:
        return (
            f"PopulationRun({self.method.name}, {self.cohorts.shape[-1]} of {self.agents} agents in each of "
            f"{self.method.rounds} rounds, seed {self.seed}: mean loss {self.start_loss:.4g} -> {self.final_loss:.4g}"
            + (", DIVERGED)" if self.diverged else ")")
        )
