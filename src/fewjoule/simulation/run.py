"""What a simulated run gives: the meta-model, a trace, the bits of every message, and what all of it costs."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jax import Array

from fewjoule.energy import Device, Ledger, Link, charge_radio, charge_server
from fewjoule.energy import device as named_device
from fewjoule.energy import link as named_link
from fewjoule.energy.metering import DEFAULT_DEVICE
from fewjoule.methods.method import Method
from fewjoule.models.model import Model
from fewjoule.simulation.work import server_flops, turn_flops
from fewjoule.tasks.samples import AgentData


class Trace(NamedTuple):
    """One number per round ([rounds], or [seeds, rounds]); NaN in rounds without an agent."""

    loss: Array  # mean over the agents present, on their mini-batches
    spread: Array  # largest distance of an agent's model from the mean of the agents' models
    step: Array  # distance that the server's model moved
    radius: Array  # of Meta-Backward's ball; NaN for other methods
    active: Array  # share of the agents present that the projection moved
    present: Array  # number of agents present


@dataclass(frozen=True, repr=False)
class Run:
    """A simulated run. With several seeds every array has a leading axis of seeds.

    `meta` is NaN for a seed that diverged, so that it cannot be averaged in. `start_loss` and `final_loss` are the
    agents' mean losses on all their training samples. With `keep_paths`, `meta_path` [kept rounds + 1, d], from the
    start on, and `agent_path` [kept rounds, agents, d] are those of the first seed; NaN for agents that were absent.

    `uplink_bits` and `downlink_bits` are what every agent sends and receives: [rounds + 1, agents]. Row 0 is before the
    first round (the upload of the local models, a probe), row r is round r: the broadcast that opens it and the
    message that ends it. 32 bits a number, or what the method's codecs make of it; an absent agent has 0. A random
    start is drawn on both ends from the seed and costs nothing; handing the meta-model to new devices is not counted.
    """

    method: Method
    model: Model
    agents: tuple[str, ...]
    seeds: tuple[int, ...]
    meta: Array
    diverged: Array
    start: Array
    start_loss: Array
    final_loss: Array
    trace: Trace
    uplink_bits: np.ndarray[Any, Any]
    downlink_bits: np.ndarray[Any, Any]
    data: AgentData  # shapes of one agent's samples, from which its operations are counted
    personal: Array | None = None  # [agents, d] every agent's own model after the last round, where it keeps one
    rates: Array | None = None  # [d] learning rates that new devices fine-tune `meta` with, where the method has them
    meta_path: Array | None = None
    agent_path: Array | None = None

    def energy(
        self, link: str | Link = "paper", device: str | Device = DEFAULT_DEVICE, server: str | Device = DEFAULT_DEVICE
    ) -> Ledger:
        """What the run costs on this radio link and device: every agent's messages and arithmetic, in joules.

        Radio is analytic, a formula of the link: what an agent sends, and what it receives where the link knows that
        cost. Arithmetic is modelled: the FLOPs of the agent's rounds times the device's joules per FLOP. What the
        server learns by itself is a phase of its own, priced on the device `server`. Offline training is not in it.
        """
        radio = named_link(link) if isinstance(link, str) else link
        processor, mains = (named_device(d) if isinstance(d, str) else d for d in (device, server))
        up, down = (b.reshape(len(self.seeds), *b.shape[-2:]) for b in (self.uplink_bits, self.downlink_bits))
        probe, turn = turn_flops(self.method, self.model, self.data)
        ledger = Ledger()
        for seed, sent, received in zip(self.seeds, up, down, strict=True):
            same: dict[str, Any] = {"method": self.method.name, "seed": seed}
            for agent, rounds in zip(self.agents, (sent[1:] > 0).sum(0).tolist(), strict=True):
                flops = probe + rounds * turn
                if flops:
                    source = f"FLOPs x {processor.joules_per_flop:.3g} J ({processor.name})"
                    joules, seconds = processor.energy_joules(flops), processor.seconds(flops)
                    ledger.add(
                        **same, agent=agent, phase="computation", kind="modelled", source=source, joules=joules,
                        seconds=seconds, flops=flops,
                    )  # fmt: skip
            charge_server(ledger, mains, server_flops(self.method, self.model, len(self.agents)), **same)
            charge_radio(ledger, radio, **same, agents=self.agents, uplink_bits=sent, downlink_bits=received)
        return ledger

    def __repr__(self) -> str:
        start, final = (np.atleast_1d(np.asarray(v)) for v in (self.start_loss, self.final_loss))
        gone = int(np.asarray(self.diverged).sum())
        seeds = f"{len(self.seeds)} seeds" if len(self.seeds) > 1 else f"seed {self.seeds[0]}"
        sent = np.asarray(self.uplink_bits).sum(-2).mean()
        return (
            f"Run({self.method.name}, {len(self.agents)} agents, {self.method.rounds} rounds, {seeds}: agents' mean "
            f"loss {start.mean():.4g} -> {final.mean():.4g}, {sent:,.0f} bits sent per agent"
            + (f", {gone} DIVERGED)" if gone else ")")
        )

    def plot(self) -> Any:
        """The agents' mean loss by round, one line per seed: an Altair chart."""
        import altair as alt

        losses = np.asarray(self.trace.loss).reshape(len(self.seeds), -1)
        rows = [
            {"round": r + 1, "loss": float(loss), "seed": str(seed)}
            for seed, each in zip(self.seeds, losses, strict=True)
            for r, loss in enumerate(each)
            if np.isfinite(loss)
        ]
        chart = alt.Chart(alt.InlineData(values=rows)).mark_line(point=len(rows) < 200)
        return chart.encode(x="round:Q", y=alt.Y("loss:Q", scale=alt.Scale(type="log")), color="seed:N").properties(
            title=f"{self.method.name}: mean loss of the agents on their mini-batches"
        )
