"""What an agent's owner agreed to: a file of the agent's own, checked by the agent before it takes part in a run.

    methods = ["fedavg", "average"]   # any where left out
    most_rounds = 100
    most_local_steps = 200            # in one round; most_epochs where a run counts in epochs
    most_training_steps = 20000       # of its own model, where it brings none
    smallest_batch = 16               # a gradient of few samples tells more about each
    ask_first = true                  # take part only in runs that are approved
    approved = ["1f0c55a2"]           # the first 8 digits or more of a run's name

The file is read again for every run, so a change needs no restart. Nobody but the owner can change it: the server only
gets the line that says what was refused.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pydantic
from pydantic import Field

from fewjoule.errors import InputError, unknown
from fewjoule.federation.spec import Contract, Spec
from fewjoule.federation.trust import clean
from fewjoule.methods import METHODS
from fewjoule.methods.lean import choose
from fewjoule.methods.method import Method
from fewjoule.simulation.rules import uses_local

Check = Callable[[Spec, Contract], None]
"""Refuses a run with `InputError`."""
LARGEST_FILE = 1 << 16
RUN_DIGITS = 8
Most = Annotated[int, Field(ge=0)]


class Consent(pydantic.BaseModel):
    """None is no limit."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)

    methods: list[str] | None = None
    most_rounds: Most | None = None
    most_local_steps: Most | None = None
    most_epochs: Most | None = None
    most_training_steps: Most | None = None
    smallest_batch: Most | None = None
    ask_first: bool = False
    approved: list[Annotated[str, Field(pattern=f"^[0-9a-f]{{{RUN_DIGITS},32}}$")]] = []


def consent_in(path: Path, ask: Callable[[str], bool] | None = None) -> Check:
    """The check of the file at `path`. Where somebody sits at the agent, `ask` puts a question to them."""
    read_consent(path)  # a mistake in it shows now, not when a run begins
    answered: dict[bytes, bool] = {}

    def check(spec: Spec, agreed: Contract) -> None:
        consent = read_consent(path)
        refusal = refused_by(consent, spec, agreed)
        if (
            refusal is None
            and consent.ask_first
            and not any(spec.run.hex().startswith(one) for one in consent.approved)
        ):
            if ask is not None and spec.run not in answered:
                answered[spec.run] = ask(f"Take part in run {spec.run.hex()[:RUN_DIGITS]}: {describe(spec, agreed)}?")
            if not answered.get(spec.run, False):
                refusal = f"asks first; to take part, add {spec.run.hex()[:RUN_DIGITS]!r} to approved"
        if refusal is not None:
            raise InputError(f"does not take part by its {path.name}: {refusal}.")

    return check


def read_consent(path: Path) -> Consent:
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_FILE + 1)
        if len(text) > LARGEST_FILE:
            raise InputError(f"{path}: a consent file has at most {LARGEST_FILE} bytes; write a shorter one.")
        consent = Consent.model_validate(tomllib.loads(text.decode()))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); write the agent's consent into it.") from None
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise InputError(f"{path}: {unknown('key', place, Consent.model_fields)}") from None
        raise InputError(f"{path}: {place}: {first['msg']}, got {first['input']!r}.") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not TOML: {error}; see docs/federation-rules.md.") from None
    for name in consent.methods or ():
        if name not in METHODS:
            raise InputError(f"{path}: {unknown('method', name, METHODS)}")
    return consent


def refused_by(consent: Consent, spec: Spec, agreed: Contract) -> str | None:
    """What of a run goes beyond the consent; None where nothing does."""
    method, settings = agreed.method, dict(agreed.method.settings)
    if consent.methods is not None and method.name not in consent.methods:
        return f"method {method.name!r} is not one of {', '.join(consent.methods) or 'none'}"
    epochs, batch = settings.get("epochs"), settings.get("batch")
    training = spec.local.get("max_steps", 0) if uses_local(method) else 0
    limits = [
        ("rounds", method.rounds, consent.most_rounds),
        ("local steps in a round", 0 if epochs else local_steps(method), consent.most_local_steps),
        ("epochs in a round", epochs or 0, consent.most_epochs),
        ("steps of offline training", training, consent.most_training_steps),
    ]
    for what, asked, most in limits:
        if most is not None and asked > most:
            return f"{asked} {what} are above {most}"
    if epochs and consent.most_local_steps is not None and consent.most_epochs is None:
        return f"the run counts in epochs ({epochs} in a round), and most_epochs is not set"
    if consent.smallest_batch is not None and batch is not None and batch < consent.smallest_batch:
        return f"a batch of {batch} samples is below {consent.smallest_batch}"
    return None


def local_steps(method: Method) -> int:
    """Gradient steps of an agent in one round; 1 where it takes one gradient."""
    settings = dict(method.settings)
    if method.name == "lean" and not method.asks:
        names = ("weights", "link", "budget_joules", "target", "training_steps", "device", "batch")
        return choose(**{name: settings[name] for name in names}).local_steps
    return int(settings.get("local_steps", settings.get("inner_steps", 1))) if method.rounds else 0


def describe(spec: Spec, agreed: Contract) -> str:
    """The run in one line, for the owner of the agent."""
    settings = ", ".join(f"{name} {value}" for name, value in agreed.method.settings)
    return clean(f"{agreed.method.name} ({settings}), {len(spec.agents)} agents, {agreed.model.size} weights")
