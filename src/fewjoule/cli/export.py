"""`fewjoule export` and `show`: a model's file for other runtimes, and what it says about itself."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fewjoule.cli import options
from fewjoule.cli.screen import pairs, say, show_energy, table
from fewjoule.errors import unknown
from fewjoule.models.nets import standardising_itself
from fewjoule.models.weights import TARGETS, read_header
from fewjoule.models.weights import export as write

SUFFIX = {"onnx": ".onnx", "pytorch": ".pytorch.safetensors", "flax": ".flax.safetensors"}


def export(
    file: options.MetaFile,
    to: Annotated[str, typer.Option(help="onnx, pytorch or flax.")] = "onnx",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: FILE.onnx, ...")] = None,
    spec: options.Spec = None,
    loss: options.Loss = None,
    layout: options.Layout = None,
    force: options.Force = False,
) -> None:
    """Write a model for another runtime: an ONNX graph, or weights with PyTorch's or Flax's names and axes."""
    if to not in TARGETS:
        raise unknown("target of --to", to, TARGETS)
    output = output or file.with_suffix(SUFFIX[to])
    options.writable(output, force=force)
    loaded = options.load(file, spec, loss, layout)
    model, vector, card, form = loaded.model, loaded.vector, loaded.card, options.format_of(loaded, None, None)
    if form.mean:
        vector = standardising_itself(model, vector, form.mean, form.scale)
        card = {**card, "reading": form._replace(mean=(), scale=())._asdict()}
    write(output, model, vector, card, to=to, force=force)
    say(f"{model.spec} for {to}: {output}" + ("; it standardises its inputs itself" if form.mean else ""))


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
