"""`fewjoule plan`: what each method would cost on a link, what fits a budget, and what to take, before a run."""

import json
import math
from typing import Annotated

import typer

from fewjoule.cli.options import named
from fewjoule.cli.screen import say, say_wrapped, table
from fewjoule.energy.show import bytes_text, si_text
from fewjoule.errors import InputError
from fewjoule.reporting.wording import seconds_text
from fewjoule.simulation.plan import plan as planned

UNITS = {"uJ": 1e-6, "mJ": 1e-3, "J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3600.0, "mWh": 3.6}


def plan(
    agents: Annotated[int, typer.Option(min=1, help="How many agents take part.")],
    model: Annotated[str, typer.Option(help="The model, such as mlp:784-64-10 or conv4:28x28x1-5.")],
    link: Annotated[str, typer.Option(help="The radio link: a preset such as paper, lora-sf7, wifi.")] = "paper",
    budget: Annotated[str | None, typer.Option(help="What one agent may spend, such as 5J, 200mJ or 1Wh.")] = None,
    device: Annotated[str | None, typer.Option(help="Count the computation on this device too.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Training samples of an agent.")] = 400,
    training_steps: Annotated[int, typer.Option(min=1, help="Steps of the agents' offline training.")] = 1000,
    questions: Annotated[str | None, typer.Option(help="For answers: range:LOW:HIGH, noise:28x28 or a file.")] = None,
    classes: Annotated[int | None, typer.Option(min=1, help="Classes that one agent has, for answers.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON table.")] = False,
) -> None:
    """Estimate what each method costs one agent at most on a link, which ones fit a budget, and which to take.

    Methods have their default settings; `lean` has the settings that its own rule gives.
    """
    joules = None if budget is None else read_joules(budget)
    found = planned(
        named(model), agents=agents, link=link, budget_joules=joules, device=device, samples=samples,
        training_steps=training_steps, questions=questions, classes=classes,
    )  # fmt: skip
    notes = [*found.notes, *([] if device else ["Computation is not counted; give --device to count it."])]
    if as_json:
        advice = {"recommended": found.recommended, "reason": found.reason}
        whole = {"weights": found.weights, "link": link, "agents": agents, **advice, "note": notes, "rows": found.rows}
        say(json.dumps(whole, indent=1))
        return
    say_wrapped(f"{model}, {found.weights:,} weights, link {link!r}: the most that one of {agents:,} agents spends")
    shown = []
    for row in found.rows:
        sending, receiving, computing = (row[f"{phase}_joules"] for phase in ("uplink", "downlink", "arithmetic"))
        parts = [sending, receiving] if device is None else [sending + (receiving or 0.0), computing]
        amounts = [None if amount is None else si_text(amount, "J") for amount in (*parts, row["total_joules"])]
        fits = [] if joules is None else ["yes" if row["fits"] else "no"]
        sent, time = bytes_text(row["uplink_bits"]), seconds_text(row["radio_seconds"])
        shown.append([row["method"], row["rounds"], sent, *amounts, time, *fits])
    names = ("sending", "receiving") if device is None else ("radio", "computing")
    table(("method", "rounds", "sent", *names, "total", "on air", *(() if joules is None else ("fits",))), shown)
    for line in [found.advice, *notes]:
        say_wrapped(line)


def read_joules(text: str) -> float:
    """`5J`, `200mJ`, `1.5kJ`, `1Wh` in joules."""
    number = text.rstrip("uJmkMWh ")
    unit = text[len(number) :].strip()
    try:
        value = float(number) * UNITS[unit or "J"]
    except (ValueError, KeyError):
        raise InputError(f"--budget takes joules such as 5J, 200mJ, 1.5kJ or 1Wh, got {text!r}.") from None
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"--budget must be above 0, got {text!r}.")
    return value
