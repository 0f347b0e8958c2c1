"""`fewjoule plan`: what each method would cost on a link, what fits a budget, and what to take, before a run."""

import json
import math
from typing import Annotated

import typer

from fewjoule.cli.options import named
from fewjoule.cli.screen import say, table
from fewjoule.errors import InputError
from fewjoule.simulation.plan import plan as planned

UNITS = {"uJ": 1e-6, "mJ": 1e-3, "J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3600.0, "mWh": 3.6}
DURATIONS = {"d": 86_400, "h": 3600, "min": 60, "s": 1, "ms": 1e-3}
COLUMNS = {
    "method": "method", "rounds": "rounds", "bits sent": "uplink_bits", "J sending": "uplink_joules",
    "J receiving": "downlink_joules", "J computing": "arithmetic_joules", "J total": "total_joules",
}  # fmt: skip


def plan(
    agents: Annotated[int, typer.Option(min=1, help="How many agents take part.")],
    model: Annotated[str, typer.Option(help="The model, such as mlp:784-64-10 or conv4:28x28x1-5.")],
    link: Annotated[str, typer.Option(help="The radio link: a preset such as paper, lora-sf7, wifi.")] = "paper",
    budget: Annotated[str | None, typer.Option(help="What one agent may spend, such as 5J, 200mJ or 1Wh.")] = None,
    device: Annotated[str | None, typer.Option(help="Count the arithmetic of this device too.")] = None,
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
    notes = [*found.notes, *([] if device else ["Arithmetic is not counted; give --device to count it."])]
    if as_json:
        advice = {"recommended": found.recommended, "reason": found.reason}
        whole = {"weights": found.weights, "link": link, "agents": agents, **advice, "note": notes, "rows": found.rows}
        say(json.dumps(whole, indent=1))
        return
    say(f"{model}: {found.weights} weights; {agents} agents over {link!r}; costs of one agent, at most")
    shown = []
    for row in found.rows:
        cells = [row[key] for key in COLUMNS.values()]
        fits = [] if joules is None else ["yes" if row["fits"] else "no"]
        shown.append([*cells, agents * row["total_joules"], _duration(row["radio_seconds"]), *fits])
    table([*COLUMNS, "J all agents", "on the air", *([] if joules is None else [f"fits {budget}"])], shown)
    for line in [found.advice, *notes]:
        say(line)


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


def _duration(seconds: float) -> str:
    for unit, size in DURATIONS.items():
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{1e6 * seconds:.3g} us"
