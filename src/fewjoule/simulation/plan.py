"""What a method will cost on a link, before anything is sent; the largest cost that it can have.

From a method, a model, a link and (for the arithmetic) a device to joules and seconds of one agent: `cost` for one
method, `plan` for all of them, as `fewjoule plan` shows them. Message lengths are the largest that a codec can make, so
that what fits a budget here fits it on the air.
"""

from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np

from fewjoule.energy.links import Link, knows_receiving
from fewjoule.energy.meters import Device
from fewjoule.energy.presets import device as named_device
from fewjoule.energy.presets import link as named_link
from fewjoule.energy.show import html_table, si_text, text_table
from fewjoule.errors import InputError, positive, positive_int
from fewjoule.methods import METHODS, lean
from fewjoule.methods import method as named_method
from fewjoule.methods.lean import ASKED, TARGETS, LeanSettings, choose, medium
from fewjoule.methods.method import Method
from fewjoule.models.model import Model
from fewjoule.models.nets import model_from_spec
from fewjoule.simulation.rules import (
    NUMBER_BYTES,
    broadcast_bytes,
    message_bytes,
    probe_bytes,
    shared_size,
    weight_bytes,
)
from fewjoule.simulation.work import agent_flops, data_for, shapes, vector_of

Integers = np.ndarray[Any, np.dtype[np.int64]]
LEFT_OUT = ("random", "invented", "local", "lean", "answers")
"""Without messages, or with one agent only; the last two have rows of their own."""


@dataclass(frozen=True)
class Cost:
    """One agent's cost of a whole run. `downlink_joules` is None where the link does not know its receive power,
    `arithmetic_joules` where no device was given; `total_joules` is the sum of what is known."""

    rounds: int
    uplink_bits: int
    downlink_bits: int
    uplink_joules: float
    downlink_joules: float | None
    arithmetic_joules: float | None
    radio_seconds: float

    @property
    def total_joules(self) -> float:
        return self.uplink_joules + (self.downlink_joules or 0.0) + (self.arithmetic_joules or 0.0)


def cost(method: Method, model: Model, link: Link, device: Device | None = None, *, samples: int = 400) -> Cost:
    """What one agent with `samples` training samples spends at most."""
    up, down = most_bits(method, model)
    sending = [link.energy_joules(int(bits)) for bits in up]
    seconds = sum(link.seconds(int(bits)) for bits in up)
    receiving = None
    if not down.any() or knows_receiving(link):
        receiving = sum(link.receive_joules(int(bits)) for bits in down if bits)
        seconds += sum(link.receive_seconds(int(bits)) for bits in down if bits)
    arithmetic = None if device is None else device.energy_joules(agent_flops(method, model, data_for(model, samples)))
    return Cost(method.rounds, int(up.sum()), int(down.sum()), sum(sending), receiving, arithmetic, seconds)


def most_bits(method: Method, model: Model) -> tuple[Integers, Integers]:
    """The most bits that one agent sends and receives, [rounds + 1] as in `Run.uplink_bits`."""
    up, down = np.zeros(method.rounds + 1, np.int64), np.zeros(method.rounds + 1, np.int64)
    (sent, first, heard), shared = method.codecs, shared_size(method, model)
    if method.start != "random":
        up[0] = first.most_bytes(shared) if first else NUMBER_BYTES * shared
    up[0] += weight_bytes(method)
    if not method.rounds:
        return 8 * up, 8 * down
    s = shapes(method, model, data_for(model, 2))
    if method.probe is not None:
        up[0], down[0] = np.add((up[0], down[0]), probe_bytes(method, model, s.probe))
    leaves = jax.tree.leaves(s.message)
    coded = None if not sent else sum(sent.most_bytes(a.size) if a.ndim else NUMBER_BYTES for a in leaves)
    up[1:] = message_bytes(s.message, s.info._replace(size_bytes=coded))
    broadcast = s.broadcast._replace(size_bytes=heard.most_bytes(shared) if heard else None)
    down[1:] = [int(broadcast_bytes(method, broadcast, r == 0)) for r in range(method.rounds)]
    return 8 * up, 8 * down


@dataclass(frozen=True, repr=False)
class Plan:
    """Every method's `Cost` for one of `agents` agents, the cheapest first, and what to know about them.

    A row is a `Cost` as a table, with the `method`, its `total_joules` and whether it `fits` the budget. `recommended`
    is the method of the row that the rule of `lean` takes (`fewjoule.methods.lean.medium`), None where nothing fits;
    `reason` says why.
    """

    weights: int
    agents: int
    rows: list[dict[str, Any]]
    notes: list[str]
    recommended: str | None
    reason: str

    @property
    def advice(self) -> str:
        """The recommendation and its reason, in a line."""
        return f"Recommended: {self.recommended or 'nothing fits'} ({self.reason.rstrip('.')})."

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        header = ("method", "rounds", "sent", "energy, at most", "fits")
        rows: list[tuple[str, ...]] = []
        for r in self.rows:
            sent, spent = si_text(r["uplink_bits"], "bit"), si_text(r["total_joules"], "J")
            rows.append((r["method"], str(r["rounds"]), sent, spent, "yes" if r["fits"] else "no"))
        return header, rows

    def __repr__(self) -> str:
        header, rows = self._table()
        title = f"Plan for one of {self.agents} agents, {self.weights} weights"
        return "\n".join([title, text_table(header, rows, left=1), self.advice, *self.notes])

    def _repr_html_(self) -> str:
        return html_table(*self._table(), f"One of {self.agents} agents, {self.weights} weights, at most")


def plan(
    model: str | Model,
    *,
    agents: int,
    link: str | Link = "paper",
    budget_joules: float | None = None,
    device: str | Device | None = None,
    samples: int = 400,
    training_steps: int = 1000,
    questions: Any = None,
    classes: int | None = None,
) -> Plan:
    """What every method would cost one agent at most, which fit a budget, and which one to take.

    Methods stand with their default settings; `lean` with the settings that its rule gives for each of its targets and
    for the budget. Arithmetic is counted where a `device` is given. `questions` are those of `answers`, or their file;
    without them answers are priced and not recommended. `classes` are those that one agent has, where the model is a
    classifier: an answer then has so many numbers, else all outputs of the model.
    """
    positive_int("agents", agents)
    positive_int("samples", samples)
    if budget_joules is not None:
        positive("budget_joules", budget_joules)
    model = model_from_spec(model, loss="cross_entropy") if isinstance(model, str) else model
    radio = named_link(link) if isinstance(link, str) else link
    processor = named_device(device) if isinstance(device, str) else device
    built = {name: build() for name, build in METHODS.items() if name not in LEFT_OUT}
    outputs = _outputs(model) if classes is None else classes
    asked: dict[str, Any] = {"questions": "range:-1:1" if questions is None else questions, "classes": outputs}
    built["answers"] = named_method("answers", **ASKED[outputs == 1], **asked)
    if questions is not None:  # as numbers, where they are in a file
        questions = dict(built["answers"].settings)["questions"]
    wishes: dict[str, dict[str, Any]] = {f"lean, {target}": {"target": target} for target in TARGETS}
    if budget_joules is not None:
        wishes["lean, budget"] = {"budget_joules": budget_joules}
    notes = []
    for label, wish in wishes.items():
        wish |= {"weights": model.size, "link": radio, "training_steps": training_steps, "device": processor}
        try:
            built[label] = lean(**wish)
            notes.append(f"{label}: {_words(choose(**wish))}.")
        except InputError as error:
            notes.append(f"{label}: {error}")
    rows = []
    for label, method in built.items():
        try:
            spent = cost(method, model, radio, processor, samples=samples)
        except InputError as error:
            if not method.head:
                raise
            notes.append(f"{label} is left out: {error}")  # of a model whose head is not known, or without classes
            continue
        fits = budget_joules is None or spent.total_joules <= budget_joules
        rows.append({"method": label, **asdict(spent), "total_joules": spent.total_joules, "fits": fits})
    rows.sort(key=lambda row: row["total_joules"])
    if any(row["downlink_joules"] is None for row in rows):
        notes.append(f"Link {radio.name!r} has no known receive power, so receiving is not counted.")
    recommended = None
    try:
        choice = medium(
            weights=model.size, link=radio, budget_joules=budget_joules, device=processor, questions=questions,
            outputs=outputs,
        )  # fmt: skip
        within = "lean, better" if budget_joules is None else "lean, budget"
        recommended, reason = ("answers" if choice.answers else within), choice.reason
    except InputError as error:
        reason = str(error)
    return Plan(model.size, agents, rows, notes, recommended, reason)


def _outputs(model: Model) -> int:
    data = data_for(model, 2)
    return int(jax.eval_shape(model.apply, vector_of(model), data.train.x).shape[-1])


def _words(choice: LeanSettings) -> str:
    """What the rule of lean chose."""
    if not choice.rounds:
        return f"one upload as {choice.up}, no rounds"
    rounds = "1 round" if choice.rounds == 1 else f"{choice.rounds} rounds"
    said = f"{rounds} of {choice.local_steps} local steps; up {choice.up}, down {choice.down}"
    said += ", error feedback" if choice.feedback else ""
    return said + (f", momentum {choice.momentum:g}" if choice.momentum else "")
