"""lean: FedAvg with few coded messages, whose settings follow from what is known before the run.

Not a new algorithm: the average of the local models, then rounds of FedAvg (McMahan et al. 2017), every message the
largest tenth of a difference with two bits a value (Sattler et al. 2019), the broadcasts coded too. What is new is that
nobody tunes it. The rule, from the number of weights, the link, a budget or a target, and the length of the offline
training (`docs/lean.md` says why, and what supports it):

    1. message      the finest of UPLINK that costs at most a quarter more energy than the coarsest: where a link's cost
                    is per bit that is the coarsest, where it is per message (LTE's tail) a finer one; so for DOWNLINK
    2. rounds       as many as fit the budget, at most MOST_ROUNDS; for a target, as many as it names
    3. too little   where not even one message fits, halve its share of the weights until it does
    4. local steps  a tenth of the offline training, split evenly among the rounds; on a given device no more than cost
                    as much energy as the round's messages
    5. feedback     of what the codec lost for at most FEEDBACK_ROUNDS rounds; later the model has moved on
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from fewjoule.codecs import TopK, codec
from fewjoule.energy.links import Link, knows_receiving
from fewjoule.energy.meters import Device
from fewjoule.energy.presets import device as named_device
from fewjoule.energy.presets import link as named_link
from fewjoule.errors import Batch, InputError, Positive, positive, positive_int, unknown
from fewjoule.methods.average import average
from fewjoule.methods.coded import with_codec
from fewjoule.methods.fedavg import fedavg
from fewjoule.methods.method import Method, Weighting, factory

UPLINK = ("top-k:0.1:2", "top-k:0.25:3", "quantise:6")
DOWNLINK = ("top-k:0.25:3", "quantise:6")
FINER_MAY_COST = 1.25
MOST_ROUNDS = 20
SMALLEST_SHARE = 1e-3
TRAINING_SHARE = 0.1
FEEDBACK_ROUNDS = 2
FULL_BATCH = 400  # samples of an agent that takes all of them, for the estimate of its work
TARGETS = {"match": 1, "better": 9, "best": MOST_ROUNDS}
"""Rounds: no worse than Meta-Backward at a thousandth of its energy; near FedSGD at a hundredth; the most."""


@factory
def lean(
    *,
    weights: int | None = None,
    link: str | Link = "paper",
    budget_joules: float | None = None,
    target: str | None = None,
    training_steps: int = 1000,
    device: str | Device | None = None,
    learning_rate: Positive = 0.01,
    batch: Batch = 100,
    weighting: Weighting = "agents",
) -> Method:
    """FedAvg with the rounds, local steps and codecs that the rule gives.

    `budget_joules` is what one agent may spend on its radio (sending, and receiving where the link knows its power),
    and on its arithmetic where a `device` is given.
    `target` ("match", the default, "better" or "best") takes the place of a budget. Without `weights`, which a budget
    needs, the messages are those for a link whose cost is per bit. `training_steps` is the length of the agents'
    offline training, `learning_rate` the step size it used.
    """
    chosen = choose(
        weights=weights, link=link, budget_joules=budget_joules, target=target, training_steps=training_steps,
        device=device, batch=batch,
    )  # fmt: skip
    if chosen.rounds == 0:
        plain = average()
    else:
        plain = fedavg(rounds=chosen.rounds, local_steps=chosen.local_steps, learning_rate=learning_rate, batch=batch)
    coded = with_codec(plain, chosen.up, down=chosen.down, feedback=chosen.feedback)
    return replace(coded, name="lean")


class LeanSettings(NamedTuple):
    """What the rule gives."""

    rounds: int
    local_steps: int  # per round
    up: str
    down: str | None
    feedback: bool


def choose(
    *,
    weights: int | None = None,
    link: str | Link = "paper",
    budget_joules: float | None = None,
    target: str | None = None,
    training_steps: int = 1000,
    device: str | Device | None = None,
    batch: int | None = 100,
) -> LeanSettings:
    """The rule alone, with the arguments of `lean`."""
    positive_int("training_steps", training_steps)
    radio = named_link(link) if isinstance(link, str) else link
    if not hasattr(radio, "energy_joules"):
        raise InputError(f"link must be a link or its name, such as 'wifi', got {link!r}.")
    processor = named_device(device) if isinstance(device, str) else device
    if (budget_joules is not None or processor is not None) and weights is None:
        what = "device" if budget_joules is None else "budget_joules"
        raise InputError(f"{what} needs weights, the number of the model's weights; give it.")
    if budget_joules is not None and target is not None:
        raise InputError(f"lean takes budget_joules or target ({', '.join(TARGETS)}), not both; leave one out.")
    up, down = UPLINK[0], DOWNLINK[0]
    if weights is not None:
        positive_int("weights", weights)
        up = _message(UPLINK, radio.energy_joules, weights)
        down = _message(DOWNLINK, lambda bits: receive_joules(radio, bits), weights)

    per_step = 0.0 if processor is None or weights is None else step_joules(weights, processor, batch)

    def steps(rounds: int) -> int:
        """Local steps of one round, of `rounds`."""
        wanted = max(1, round(TRAINING_SHARE * training_steps / max(rounds, 1)))
        if weights is None or per_step == 0:
            return wanted
        messages = radio_joules(weights, radio, up, down, 1) - radio_joules(weights, radio, up, down, 0)
        return max(1, min(wanted, int(messages / per_step)))

    if budget_joules is None or weights is None:
        if target is not None and target not in tuple(TARGETS):
            raise unknown("target", target, TARGETS)
        rounds = TARGETS[target or "match"]
    else:
        positive("budget_joules", budget_joules)
        arithmetic = [rounds * steps(rounds) * per_step for rounds in range(MOST_ROUNDS + 1)]
        rounds, up = _fitted(weights, radio, up, down, float(budget_joules), arithmetic)
    if rounds == 0:
        return LeanSettings(0, 0, up, None, False)
    return LeanSettings(rounds, steps(rounds), up, down, rounds <= FEEDBACK_ROUNDS)


def step_joules(weights: int, processor: Device, batch: int | None) -> float:
    """Energy of one local step of a dense network, at most: forward and twice that backward, 2 FLOPs a weight and
    sample each, and a sixth more for what is not a matrix product."""
    return processor.energy_joules(7 * weights * (batch or FULL_BATCH))


def radio_joules(weights: int, radio: Link, up: str, down: str, rounds: int) -> float:
    """What one agent's messages cost at most: `rounds` + 1 sent, `rounds` received where that cost is known."""
    sending = radio.energy_joules(_most_bits(up, weights))
    return (rounds + 1) * sending + rounds * receive_joules(radio, _most_bits(down, weights))


def receive_joules(radio: Link, bits: int) -> float:
    """The energy to receive, 0 where the link does not know its receive power."""
    return radio.receive_joules(bits) if knows_receiving(radio) else 0.0


def _most_bits(spec: str, weights: int) -> int:
    return 8 * codec(spec).most_bytes(weights)


def _message(specs: tuple[str, ...], joules: Callable[[int], float], weights: int) -> str:
    """The finest message that costs little more than the coarsest, which comes first."""
    costs = [joules(_most_bits(spec, weights)) for spec in specs]
    if costs[0] == 0:  # not known
        return specs[0]
    return [spec for spec, cost in zip(specs, costs, strict=True) if cost <= FINER_MAY_COST * costs[0]][-1]


def _fitted(weights: int, radio: Link, up: str, down: str, budget: float, arithmetic: list[float]) -> tuple[int, str]:
    """The most rounds within the budget, and the message, made smaller where not even one would fit.

    `arithmetic` is what the local steps cost, by number of rounds from 0.
    """
    for rounds in range(MOST_ROUNDS, -1, -1):
        if radio_joules(weights, radio, up, down, rounds) + arithmetic[rounds] <= budget:
            return rounds, up
    share = 0.1
    while share > SMALLEST_SHARE:
        share /= 2
        smaller = TopK(share, 1).spec
        if radio_joules(weights, radio, smaller, down, 0) <= budget:
            return 0, smaller
    least = radio_joules(weights, radio, smaller, down, 0)
    raise InputError(
        f"budget_joules must be at least {least:.3g} J to send anything of {weights} weights over link "
        f"{radio.name!r}, got {budget:g}; raise it or take a cheaper link."
    )
