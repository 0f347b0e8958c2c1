"""lean: few coded messages, whose kind and settings follow from what is known before the run.

Not a new algorithm: the average of the local models, then rounds of FedAvg (McMahan et al. 2017) with server momentum
(Hsu et al. 2019), every message the largest tenth of a difference with two bits a value (Sattler et al. 2019), the
broadcasts coded too; or, where questions exist, answers to them in place of weights (`methods/answers`). What is new is
that nobody tunes it. The rule, from the number of weights, the link, a budget or a target, the questions, and the
length of the offline training (`docs/lean.md` says why, and what supports it):

    0. answers      in place of weights where there are questions, answers fit the budget and cost less than a round of
                    weights, and that round does not fit or answers were measured to be no worse; else weights, by

    1. message      the finest of UPLINK that costs at most a quarter more energy than the coarsest: where a link's cost
                    is per bit that is the coarsest, where it is per message (LTE's tail) a finer one; so for DOWNLINK
    2. rounds       as many as fit the budget, at most MOST_ROUNDS; for a target, as many as it names
    3. too little   where not even one message fits, halve its share of the weights until it does
    4. local steps  a tenth of the offline training, split evenly among the rounds; on a given device no more than cost
                    as much energy as the round's messages
    5. feedback     of what the codec lost for at most FEEDBACK_ROUNDS rounds; later the model has moved on
    6. momentum     MOMENTUM where the server takes several steps: with one there is nothing to keep
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fewjoule.codecs import TopK, codec
from fewjoule.codecs.uniform import Uniform
from fewjoule.energy.links import Link, knows_receiving
from fewjoule.energy.meters import Device
from fewjoule.energy.presets import device as named_device
from fewjoule.energy.presets import link as named_link
from fewjoule.energy.show import si_text
from fewjoule.errors import Batch, Count, InputError, Positive, positive, positive_int, unknown
from fewjoule.methods.answers import answers
from fewjoule.methods.average import average
from fewjoule.methods.coded import with_codec
from fewjoule.methods.fedavgm import fedavgm
from fewjoule.methods.method import Method, Weighting, factory
from fewjoule.tasks.questions import read_questions

UPLINK = ("top-k:0.1:2", "top-k:0.25:3", "quantise:6")
DOWNLINK = ("top-k:0.25:3", "quantise:6")
FINER_MAY_COST = 1.25
MOST_ROUNDS = 20
SMALLER = tuple(TopK(0.1 / 2**halvings, 1).spec for halvings in range(1, 8))  # to below a thousandth of the weights
TRAINING_SHARE = 0.1
FEEDBACK_ROUNDS = 2
MOMENTUM = 0.5
FULL_BATCH = 400  # samples of an agent that takes all of them, for the estimate of its work
TARGETS = {"match": 1, "better": 9, "best": MOST_ROUNDS}
"""Rounds: no worse than Meta-Backward at a thousandth of its energy; near FedSGD at a hundredth; the most."""
ASKED: dict[bool, dict[str, int]] = {
    True: {"number": 20, "bits": 6},
    False: {"number": 100, "bits": 4, "episodes": 25, "tasks": 4, "steps": 100},
}
"""What is asked where an answer is one number, and where it is several: the settings of the two studies."""
KNOWN_WEIGHTS = (1_000, 10_000)
KNOWN_OUTPUTS = 3
"""Where answers were measured to be no worse than any message of weights: models of 1761 and 6442 weights, answers of
1 and 3 numbers. With 100 000 weights, or ten numbers an answer, they were worse (docs/answers.md)."""


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
    questions: Any = None,
    outputs: Count = 1,
) -> Method:
    """FedAvg with the rounds, local steps, codecs and momentum that the rule gives; or answers, where it says so.

    `budget_joules` is what one agent may spend on its radio (sending, and receiving where the link knows its power),
    and on its arithmetic where a `device` is given.
    `target` ("match", the default, "better" or "best") takes the place of a budget. Without `weights`, which a budget
    needs, the messages are those for a link whose cost is per bit. `training_steps` is the length of the agents'
    offline training, `learning_rate` the step size it used (and the later fine-tuning does).

    `questions` (as for `answers`; they need `weights` too) let the rule choose between weights and answers. `outputs`
    are the numbers in one answer: the model's outputs, or for a classifier the classes that an agent has.
    """
    if questions is not None:
        sent = medium(
            weights=weights, link=link, budget_joules=budget_joules, device=device, questions=questions, outputs=outputs
        )
        if sent.answers:
            asked = answers(questions=questions, classes=outputs, learning_rate=learning_rate, **ASKED[outputs == 1])
            return replace(asked, name="lean")
    chosen = choose(
        weights=weights, link=link, budget_joules=budget_joules, target=target, training_steps=training_steps,
        device=device, batch=batch,
    )  # fmt: skip
    if chosen.rounds == 0:
        plain = average()
    else:
        plain = fedavgm(
            rounds=chosen.rounds, local_steps=chosen.local_steps, learning_rate=learning_rate, batch=batch,
            momentum=chosen.momentum,
        )  # fmt: skip
    coded = with_codec(plain, chosen.up, down=chosen.down, feedback=chosen.feedback)
    return replace(coded, name="lean")


class LeanSettings(NamedTuple):
    """What the rule gives."""

    rounds: int
    local_steps: int  # per round
    up: str
    down: str | None
    feedback: bool
    momentum: float  # of the server


class Medium(NamedTuple):
    """What agents send, and why, in a sentence for people."""

    answers: bool  # else weights
    reason: str


def medium(
    *,
    weights: int | None,
    link: str | Link = "paper",
    budget_joules: float | None = None,
    device: str | Device | None = None,
    questions: Any = None,
    outputs: int = 1,
) -> Medium:
    """Whether to send weights or answers, with the arguments of `lean`; `InputError` where the budget is too small for
    both."""
    if weights is None:
        raise InputError("questions needs weights, the number of the model's weights; give it.")
    radio, processor = _named(link, device)
    positive_int("weights", weights)
    positive_int("outputs", outputs)
    up, down = (_message(specs, joules, weights) for specs, joules in _messages(radio))
    least, one_round = (radio_joules(weights, radio, *pair) for pair in ((SMALLER[-1], down, 0), (up, down, 1)))
    asking = answers_joules(weights, radio, processor, questions, outputs)
    said = f"answers cost {si_text(asking, 'J')} at most"
    most = math.inf if budget_joules is None else budget_joules
    if least > most and (questions is None or asking > most):
        raise InputError(
            f"budget_joules must be at least {least:.3g} J to send anything of {weights} weights over link "
            f"{radio.name!r}, got {budget_joules:g}; raise it or take a cheaper link"
            + (f" ({said})." if questions is not None else f", or give questions ({said}).")
        )
    if questions is None:
        return Medium(False, f"no questions were given; with questions, {said}")
    if asking > most:
        return Medium(False, f"{said}, more than the budget")
    if one_round <= asking:
        return Medium(False, f"one round of weights costs {si_text(one_round, 'J')} at most, and {said}")
    if one_round > most:
        return Medium(True, f"one round of weights costs {si_text(one_round, 'J')}, more than the budget; {said}")
    known = KNOWN_WEIGHTS[0] <= weights <= KNOWN_WEIGHTS[1] and outputs <= KNOWN_OUTPUTS
    where = f"{KNOWN_WEIGHTS[0]:,} to {KNOWN_WEIGHTS[1]:,} weights and up to {KNOWN_OUTPUTS} numbers per answer"
    if known:
        return Medium(True, f"measured to be no worse than weights, at {where}; {said}")
    return Medium(False, f"weights fit, and answers were measured only at {where}; {said}")


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
    """The rule for weights alone, with the arguments of `lean`."""
    positive_int("training_steps", training_steps)
    radio, processor = _named(link, device)
    if (budget_joules is not None or processor is not None) and weights is None:
        what = "device" if budget_joules is None else "budget_joules"
        raise InputError(f"{what} needs weights, the number of the model's weights; give it.")
    if budget_joules is not None and target is not None:
        raise InputError(f"lean takes budget_joules or target ({', '.join(TARGETS)}), not both; leave one out.")
    up, down = UPLINK[0], DOWNLINK[0]
    if weights is not None:
        positive_int("weights", weights)
        up, down = (_message(specs, joules, weights) for specs, joules in _messages(radio))

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
        return LeanSettings(0, 0, up, None, False, 0.0)
    return LeanSettings(rounds, steps(rounds), up, down, rounds <= FEEDBACK_ROUNDS, MOMENTUM if rounds > 1 else 0.0)


def answers_joules(weights: int, radio: Link, processor: Device | None, questions: Any, outputs: int) -> float:
    """What answering costs one agent at most: its one message, questions of the user's own that it receives, and on a
    given device the arithmetic."""
    number, bits = (ASKED[outputs == 1][name] for name in ("number", "bits"))
    asked = None if questions is None else read_questions(questions, number)
    number = number if asked is None else asked.number
    received = 0 if asked is None or asked.given is None else 32 * np.size(asked.given)
    sending = radio.energy_joules(8 * Uniform(bits).most_bytes(number * outputs))
    computing = 0.0 if processor is None else step_joules(weights, processor, number)
    return sending + (receive_joules(radio, received) if received else 0.0) + computing


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


def _named(link: str | Link, device: str | Device | None) -> tuple[Link, Device | None]:
    radio = named_link(link) if isinstance(link, str) else link
    if not hasattr(radio, "energy_joules"):
        raise InputError(f"link must be a link or its name, such as 'wifi', got {link!r}.")
    return radio, named_device(device) if isinstance(device, str) else device


def _messages(radio: Link) -> tuple[tuple[tuple[str, ...], Callable[[int], float]], ...]:
    """The messages up and down from the coarsest on, and what their bits cost."""
    return (UPLINK, radio.energy_joules), (DOWNLINK, lambda bits: receive_joules(radio, bits))


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
    medium(weights=weights, link=radio, budget_joules=budget)  # says what would be needed
    return 0, next(spec for spec in SMALLER if radio_joules(weights, radio, spec, down, 0) <= budget)
