"""`fewjoule plan`: what each method would cost on a link, and what fits a budget, before anything is sent."""

import json
import math
from typing import Annotated, Any

import typer

from fewjoule.errors import InputError

UNITS = {"uJ": 1e-6, "mJ": 1e-3, "J": 1.0, "kJ": 1e3, "MJ": 1e6, "Wh": 3600.0, "mWh": 3.6}
LEFT_OUT = ("random", "local", "lean")  # without messages, or with one agent only; lean has rows of its own


def plan(
    agents: Annotated[int, typer.Option(min=1, help="How many agents take part.")],
    model: Annotated[str, typer.Option(help="The model, such as mlp:784-64-10 or conv4:28x28x1-5.")],
    link: Annotated[str, typer.Option(help="The radio link: a preset such as paper, lora-sf7, wifi.")] = "paper",
    budget: Annotated[str | None, typer.Option(help="What one agent may spend, such as 5J, 200mJ or 1Wh.")] = None,
    device: Annotated[str | None, typer.Option(help="Count the arithmetic of this device too.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Training samples of an agent.")] = 400,
    training_steps: Annotated[int, typer.Option(min=1, help="Steps of the agents' offline training.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON table.")] = False,
) -> None:
    """Say what every method would cost one agent at most on a link, and which fit a budget.

    Methods stand with their default settings; `lean` with the settings that its rule gives.
    """
    from fewjoule.cli.screen import say, table
    from fewjoule.energy.presets import device as named_device
    from fewjoule.energy.presets import link as named_link
    from fewjoule.models.nets import model_from_spec

    joules = None if budget is None else read_joules(budget)
    chosen = model_from_spec(model, loss="cross_entropy")
    radio = named_link(link)
    processor = None if device is None else named_device(device)
    rows, note = plan_rows(chosen, radio, processor, joules, samples, training_steps)
    if as_json:
        say(json.dumps({"weights": chosen.size, "link": link, "agents": agents, "note": note, "rows": rows}, indent=1))
        return
    say(f"{model}: {chosen.size} weights; {agents} agents over {link!r}; costs of one agent, at most")
    shown = [
        (
            row["method"], row["rounds"], row["uplink_bits"], row["uplink_joules"], row["downlink_joules"],
            row["arithmetic_joules"], row["total_joules"], agents * row["total_joules"],
            _duration(row["radio_seconds"]), *([] if joules is None else ["yes" if row["fits"] else "no"]),
        )
        for row in rows
    ]  # fmt: skip
    header = ["method", "rounds", "bits sent", "J sending", "J receiving", "J computing", "J total", "J all agents"]
    table([*header, "on the air", *([] if joules is None else [f"fits {budget}"])], shown)
    for line in note:
        say(line)


def plan_rows(
    model: Any, radio: Any, processor: Any, budget: float | None, samples: int, training_steps: int
) -> tuple[list[dict[str, Any]], list[str]]:
    """One row per method, the cheapest first, and what to say below."""
    from dataclasses import asdict

    from fewjoule.methods import METHODS, lean
    from fewjoule.methods.lean import TARGETS, choose
    from fewjoule.simulate.plan import cost

    built = {name: build() for name, build in METHODS.items() if name not in LEFT_OUT}
    given: dict[str, Any] = {"weights": model.size, "link": radio, "training_steps": training_steps}
    given["device"] = processor
    rules: dict[str, dict[str, Any]] = {f"lean, target {target}": {"target": target} for target in TARGETS}
    notes = []
    if budget is not None:
        rules["lean, within the budget"] = {"budget_joules": budget}
    for label, wish in rules.items():
        try:
            built[label] = lean(**wish, **given)
            notes.append(f"{label}: {_words(choose(**wish, **given))}.")
        except InputError as error:
            notes.append(f"{label}: {error}")
    rows = []
    for label, method in built.items():
        spent = cost(method, model, radio, processor, samples=samples)
        row = {"method": label, **asdict(spent), "total_joules": spent.total_joules}
        rows.append(row | {"fits": budget is None or spent.total_joules <= budget})
    rows.sort(key=lambda row: row["total_joules"])
    if any(row["downlink_joules"] is None for row in rows):
        notes.append(f"Link {radio.name!r} does not know its receive power: receiving is not counted.")
    if processor is None:
        notes.append("Arithmetic is not counted; give --device to count it.")
    return rows, notes


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


def _words(choice: Any) -> str:
    """What the rule of lean chose."""
    if not choice.rounds:
        return f"one upload as {choice.up}, no rounds"
    rounds = "1 round" if choice.rounds == 1 else f"{choice.rounds} rounds"
    said = f"{rounds} of {choice.local_steps} local steps; up {choice.up}, down {choice.down}"
    return said + (", error feedback" if choice.feedback else "")


def _duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{1e6 * seconds:.3g} us"
