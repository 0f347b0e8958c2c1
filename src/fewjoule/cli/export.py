"""`fewjoule export` and `show`: a model's file for other runtimes, and what it says about itself."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fewjoule.cli.options import Force, Layout, Loss, MetaFile, Spec, load, writable
from fewjoule.cli.screen import pairs, say, show_energy, table

SUFFIX = {"onnx": ".onnx", "pytorch": ".pytorch.safetensors", "flax": ".flax.safetensors"}


def export(
    file: MetaFile,
    to: Annotated[str, typer.Option(help="onnx, pytorch or flax.")] = "onnx",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: FILE.onnx, ...")] = None,
    spec: Spec = None,
    loss: Loss = None,
    layout: Layout = None,
    force: Force = False,
) -> None:
    """Write a model for another runtime: an ONNX graph, or weights with PyTorch's or Flax's names and axes."""
    from fewjoule.errors import unknown
    from fewjoule.models.weights import TARGETS
    from fewjoule.models.weights import export as write

    if to not in TARGETS:
        raise unknown("target of --to", to, TARGETS)
    output = output or file.with_suffix(SUFFIX[to])
    writable(output, force=force)
    loaded = load(file, spec, loss, layout)
    write(output, loaded.model, loaded.vector, loaded.card, to=to, force=force)
    say(f"{loaded.model.spec} for {to}: {output}")


def show(
    file: MetaFile,
    as_json: Annotated[bool, typer.Option("--json", help="The card as JSON, for scripts.")] = False,
) -> None:
    """Show a model's card and tensors; no weights are read."""
    from fewjoule.models.weights import read_header

    header = read_header(file)
    card = header.card
    if as_json:
        typer.echo(json.dumps(card if card is not None else {}, indent=1))
        return
    if card is None:
        say(f"{file}: no fewjoule model card; written by another package")
        if header.metadata:
            say("metadata: " + ", ".join(f"{k}={v[:60]}" for k, v in sorted(header.metadata.items())))
    else:
        pairs([(key, _shown(value)) for key, value in card.items() if _is_plain(key, value)])
        if card.get("agents"):
            agents = card["agents"]
            say("agents:")
            if all(isinstance(a, dict) for a in agents):
                keys = list(agents[0])
                table(keys, [[a.get(k) for k in keys] for a in agents])
        if card.get("energy"):
            show_energy(card["energy"], card.get("link"))
    say("tensors:")
    table(
        ("name", "shape", "type"),
        [(name, " x ".join(map(str, shape)), header.kinds[name]) for name, shape in header.shapes.items()],
    )


def _is_plain(key: str, value: Any) -> bool:
    return value is not None and key not in ("agents", "energy")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_shown(v)}" for k, v in value.items() if v not in (None, [], ()))
    if isinstance(value, list):
        text = ", ".join(_shown(v) for v in value[:12])
        return text + (f", … ({len(value)})" if len(value) > 12 else "")
    return f"{value:.6g}" if isinstance(value, float) else str(value)
