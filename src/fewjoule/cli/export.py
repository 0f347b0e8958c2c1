"""`fewjoule export` and `show`: a model's file for other runtimes, and what it says about itself."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fewjoule.cli import options
from fewjoule.cli.screen import pairs, say, show_energy, table
from fewjoule.errors import InputError, unknown
from fewjoule.methods.answers import answers, asked_of
from fewjoule.models.c_source import Asked, writable_folder, write_c
from fewjoule.models.nets import standardising_itself
from fewjoule.models.weights import ModelFile, read_header
from fewjoule.models.weights import export as write
from fewjoule.randomness import seeds_of

SUFFIX = {"onnx": ".onnx", "pytorch": ".pytorch.safetensors", "flax": ".flax.safetensors", "c": "-c"}
ASKED = ("number", "bits", "classes")
"""Settings of `answers` that a device has to know, beside the questions."""


def export(
    file: options.MetaFile,
    to: Annotated[str, typer.Option(help="onnx, pytorch, flax, or c for microcontrollers.")] = "onnx",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Default: FILE.onnx, ...; for c the folder FILE-c.")
    ] = None,
    spec: options.Spec = None,
    loss: options.Loss = None,
    layout: options.Layout = None,
    weights: Annotated[str | None, typer.Option(help="For c: float32, or int8 for a quarter of the flash.")] = None,
    questions: Annotated[str | None, typer.Option(help="For c, if the agent answers: as in train.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="For c, settings of answers: number=20.")] = None,
    seed: Annotated[int | None, typer.Option(help="For c, the training's seed, for the questions.")] = None,
    force: options.Force = False,
) -> None:
    """Write a model for another runtime: ONNX, weights with PyTorch's or Flax's names and axes, or C."""
    if to not in SUFFIX:
        raise unknown("target of --to", to, SUFFIX)
    of_c = options.given(weights=weights, questions=questions, settings=settings, seed=seed)
    if to != "c" and of_c:
        raise InputError("--weights, --questions, --set and --seed are about C; give --to c, or leave them out.")
    output = output or file.with_name(file.stem + SUFFIX[to])
    if to == "c":
        writable_folder(output, force=force)
    else:
        options.writable(output, force=force)
    loaded = options.load(file, spec, loss, layout)
    model, vector, card, form = loaded.model, loaded.vector, loaded.card, options.format_of(loaded, None, None)
    if to == "c":
        asked = _asked(loaded, form.divide_by, questions, settings or [], seed)
        write_c(output, model, vector, weights=weights or "float32", format=form, asked=asked, force=force)
        answers = "" if asked is None else f", answer ({asked.number} questions)"
        say(f"{model.spec} in C: {output}, with predict, fine_tune{answers}; try it: make -C {output}")
        return
    if form.mean:
        vector = standardising_itself(model, vector, form.mean, form.scale)
        card = {**card, "reading": form._replace(mean=(), scale=())._asdict()}
    write(output, model, vector, card, to=to, force=force)
    say(f"{model.spec} for {to}: {output}" + ("; it standardises its inputs itself" if form.mean else ""))


def _asked(
    loaded: ModelFile, divide_by: float, questions: str | None, settings: list[str], seed: int | None
) -> Asked | None:
    """What the device is asked: as the card of a meta-model of `answers` says, unless flags say otherwise."""
    method = loaded.card.get("method")
    known = method if isinstance(method, dict) and method.get("method") == "answers" else {}
    changes = options.named_values(settings)
    for name in changes:
        if name not in ASKED:
            raise unknown("setting of answers on a device:", name, ASKED)
    if questions is not None:
        changes["questions"] = options.questions_of(questions, divide_by)
    if not known and not changes and seed is None:
        return None
    if "questions" not in known | changes:
        raise InputError("a device answers --questions, got none; give range:LOW:HIGH, noise:28x28 or a file.")
    chosen = answers(**{name: value for name, value in (known | changes).items() if name in (*ASKED, "questions")})
    (number,) = seeds_of(loaded.card.get("seed", 0) if seed is None else seed)
    return asked_of(loaded.model, chosen, number)


def show(
    file: options.MetaFile,
    as_json: Annotated[bool, typer.Option("--json", help="The card as JSON, for scripts.")] = False,
) -> None:
    """Show a model's card and tensors; no weights are read."""
    header = read_header(file)
    card = header.card
    if as_json:
        say(json.dumps(card if card is not None else {}, indent=1))
        return
    if card is None:
        say(f"{file}: no fewjoule model card; written by another package")
        if header.metadata:
            say("metadata: " + ", ".join(f"{k}={v[:60]}" for k, v in sorted(header.metadata.items())))
    else:
        plain = {key: value for key, value in card.items() if value is not None and key not in ("agents", "energy")}
        pairs([(key, _shown(value)) for key, value in plain.items()])
        if agents := card.get("agents"):
            say("agents:")
            table(list(agents[0]), [[a.get(k) for k in agents[0]] for a in agents])
        if card.get("energy"):
            show_energy(card["energy"], card.get("link"))
    say("tensors:")
    tensors = [(name, " x ".join(map(str, shape)), header.kinds[name]) for name, shape in header.shapes.items()]
    table(("name", "shape", "type"), tensors)


def _shown(value: Any, depth: int = 5) -> str:
    """A value of the card on one line; a stranger's may be nested without end."""
    if isinstance(value, dict | list) and not depth:
        return "…"
    if isinstance(value, dict):
        return ", ".join(f"{k} {_shown(v, depth - 1)}" for k, v in value.items() if v not in (None, [], ()))
    if isinstance(value, list):
        text = ", ".join(_shown(v, depth - 1) for v in value[:12])
        return text + (f", … ({len(value)})" if len(value) > 12 else "")
    return f"{value:.6g}" if isinstance(value, float) else str(value)
