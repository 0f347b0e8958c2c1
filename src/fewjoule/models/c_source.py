"""A model as C99 for a microcontroller: a folder with fewjoule_model.h and .c, an example and a Makefile.

The C is in the folder `c` beside this module and is copied as it stands; written here are the sizes, which the header
turns into bytes of flash and RAM, and the tables: layers, weights, questions. `docs/microcontrollers.md` is about use.
"""

import math
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewjoule._version import __version__
from fewjoule.errors import InputError, unknown
from fewjoule.files import check_new_folder, new_folder_atomically, write_atomically
from fewjoule.models.architecture import Architecture
from fewjoule.models.model import Model
from fewjoule.tasks.format import DataFormat

WEIGHTS = ("float32", "int8")
MOST_NUMBERS = 2**20
"""Of weights or of the questions' inputs: 4 MiB, more flash than microcontrollers have."""
LEVELS = 127  # of an int8 weight, to either side of 0
Values = np.ndarray[Any, Any]


class Asked(NamedTuple):
    """What an agent of the method `answers` is asked, and how it tells its answers."""

    number: int
    tables: Mapping[str, Values]  # of float32: the questions as inputs, or what images are drawn from
    bits: int
    classes: int | None  # None: all outputs are told
    message_bytes: int  # at most
    image: "Image | None" = None


class Image(NamedTuple):
    """Random images that the device draws itself, as `fewjoule.tasks.questions` does."""

    kind: str  # "noise" or "strokes"
    sides: tuple[int, ...]  # rows, columns, and channels where there are several


class Quantised(NamedTuple):
    """int8 weights, one scale for each output channel of a layer; biases and norms stay float32."""

    codes: Values  # int8, of all layers in flat order
    scales: Values
    plain: Values
    vector: Values  # [d] float32: the weights that the device computes with


def write_c(
    folder: Path,
    model: Model,
    vector: Any,
    *,
    weights: str = "float32",
    format: DataFormat | None = None,
    asked: Asked | None = None,
    force: bool = False,
) -> None:
    """Write a model as C; `format` is how its inputs were read in training, which the C then does too.

    The folder appears whole or not at all. With `force` the files of an existing one are replaced, one by one.
    """
    writable_folder(folder, force=force)
    files = c_files(model, vector, weights=weights, format=format, asked=asked)
    if folder.is_dir():
        for name, text in files.items():
            write_atomically(folder / name, text.encode(), force=True)
        return
    with new_folder_atomically(folder) as part:
        for name, text in files.items():
            (part / name).write_text(text, "utf-8", newline="\n")


def writable_folder(folder: Path, *, force: bool = False) -> None:
    """Refuse a folder that `write_c` would refuse."""
    if folder.is_dir() and not force:
        raise InputError(f"{folder} exists and is not overwritten; choose another name, or force=True (--force).")
    if not folder.is_dir():
        check_new_folder(folder)


def c_files(
    model: Model,
    vector: Any,
    *,
    weights: str = "float32",
    format: DataFormat | None = None,
    asked: Asked | None = None,
) -> dict[str, str]:
    """The text of every file, by name."""
    if weights not in WEIGHTS:
        raise unknown("kind of weights (--weights)", weights, WEIGHTS)
    net, format = model.architecture, format or DataFormat()
    check_size("weights", model.size)
    scales = np.asarray([format.divide_by, *format.scale], np.float32)
    if len(format.mean) not in (0, math.prod(net.input_shape)) or not (scales > 0).all():
        raise InputError(
            f"the model card's reading must have a mean and scale for each input of {net.spec}; write it again."
        )
    values = np.asarray(vector, np.float32)
    quantised = quantise_weights(model, values) if weights == "int8" else None
    sizes = _sizes(model, quantised, format, asked)
    tables = [_layers(net), *_weights(values, quantised)]
    if format.mean:
        tables += [_table("float", "input_mean", format.mean), _table("float", "input_scale", format.scale)]
    if asked is not None:
        tables += [_table("float", name, values.reshape(-1)) for name, values in asked.tables.items()]
    title = _comment(f"{net.spec}, {model.loss_name}, {weights} weights; written by fewjoule {__version__}.")
    if format.columns:
        title += _comment("inputs: " + ", ".join(format.columns))
    if format.classes:
        title += _comment("classes: " + ", ".join(f"{i} {name}" for i, name in enumerate(format.classes)))
    code = _put(_read("net.c"), "fewjoule_tables.h", "\n".join(tables))
    code = _put(code, "blocks.c", _read("blocks.c"))
    return {
        "fewjoule_model.h": _put(_read("fewjoule_model.h"), "fewjoule_sizes.h", title + _defines(sizes)),
        "fewjoule_model.c": code if asked is None else f"{code}\n{_read('answer.c')}",
        "main.c": _read("main.c"),
        "Makefile": _read("Makefile"),
    }


def check_size(what: str, numbers: int) -> None:
    """Refuse what no microcontroller has room for, before memory is taken for it."""
    if numbers > MOST_NUMBERS:
        raise InputError(
            f"a model in C may have at most {MOST_NUMBERS} {what}, got {numbers}; make it smaller, or export to onnx."
        )


def quantise_weights(model: Model, vector: Any) -> Quantised:
    """The weights of dense layers and convolutions as whole numbers from -127 to 127 times a scale per channel."""
    codes, scales, plain, used = [], [], [], []
    for tensor in model.tensors(vector).values():
        if tensor.ndim == 1:
            plain.append(tensor)
            used.append(tensor)
            continue
        rows = tensor.reshape(-1, tensor.shape[-1])
        scale = np.maximum(np.abs(rows).max(0), np.float32(1e-30)) / np.float32(LEVELS)
        codes.append(np.rint(rows / scale).astype(np.int8).reshape(-1))
        scales.append(scale)
        used.append((codes[-1].reshape(rows.shape).astype(np.float32) * scale).reshape(-1))
    return Quantised(*(np.concatenate(parts) for parts in (codes, scales, plain, used)))


class _Place(NamedTuple):
    """Where a layer of the C, dense or a block of conv4, has its numbers among the activations of one sample."""

    input: int
    normal: int  # of a block
    inputs: int  # numbers that it takes in all
    convolved: int  # numbers of a block's convolution


def _places(net: Architecture) -> tuple[list[_Place], int]:
    """Of every layer, and how many activations there are: inputs, and what each layer gives."""
    places, at = [], 0
    height, width = net.input_shape[:2] if net.kind == "conv4" else (1, 1)
    for block, layer in enumerate(layer for layer in net.layers if layer.kind != "norm"):
        if layer.kind == "conv":
            pixels, pool = height * width, net.pools[block]
            inputs, convolved = pixels * layer.inputs, pixels * layer.outputs
            height, width = height // pool[0], width // pool[1]
        else:
            inputs, convolved = math.prod(layer.shape[:-1]), 0
        places.append(_Place(at, at + inputs, inputs, convolved))
        at += inputs + convolved
    return places, at + net.layers[-1].outputs


def _sizes(
    model: Model, quantised: Quantised | None, format: DataFormat, asked: Asked | None
) -> Mapping[str, tuple[str | int, str]]:
    """Every number that the C is compiled with, and what it is."""
    net = model.architecture
    places, activations = _places(net)
    inputs, outputs, blocks = math.prod(net.input_shape), net.layers[-1].outputs, len(net.pools)
    classifies = model.loss_name == "cross_entropy"
    layer_inputs = [place.inputs for place in places[1:]]  # the first layer's derivatives are not taken
    if blocks:
        deltas, others = max([outputs, *(place.convolved for place in places)]), max(layer_inputs)
    else:
        deltas = others = max([outputs, *layer_inputs])
    sizes: dict[str, tuple[str | int, str]] = {
        "INPUTS": (inputs, "numbers of one sample" + ("; rows, columns, channels" if blocks else "")),
        "OUTPUTS": (outputs, "one score for each class" if classifies else "values"),
        "TARGETS": (1 if classifies else outputs, "numbers of one sample's target"),
        "CLASSIFIES": (int(classifies), "cross entropy; else squared error"),
        "WEIGHTS": (model.size, ""),
        "LAYERS": (len(places), ""),
        "BLOCKS": (blocks, "of a convolution, in front of the dense layer"),
        "ACTIVATIONS": (activations, "numbers kept of one sample"),
        "DELTAS": (deltas, "derivatives of the loss, of two layers in turn"),
        "OTHER_DELTAS": (others, ""),
        "STANDARDISED": (inputs if format.mean else 0, "inputs with a mean and scale of their own"),
        "DIVIDED": (int(format.divide_by != 1), ""),
        "DIVIDED_BY": (_number(np.float32(format.divide_by)), "every input, first of all"),
        "INT8": (int(quantised is not None), "weights in flash are whole numbers with a scale for each output"),
    }
    if quantised is not None:
        sizes |= {
            "CODES": (quantised.codes.size, "weights in int8"),
            "SCALES": (quantised.scales.size, ""),
            "PLAIN": (quantised.plain.size, "biases and norms, in float"),
        }
    told = outputs if asked is None or asked.classes is None or not classifies else min(asked.classes, outputs)
    sizes |= {
        "QUESTIONS": (0 if asked is None else asked.number, "that the agent answers"),
        "TOLD": (told, "outputs told of each answer"),
        "COUNTED": (outputs if told < outputs else 0, "classes, to tell those with most samples"),
    }
    if asked is not None:
        sizes |= {
            "BITS": (asked.bits, "of one answer"),
            "MESSAGE_BYTES": (asked.message_bytes, "at most"),
        }
    image = None if asked is None else asked.image
    numbers = [values.size for values in asked.tables.values()] if asked is not None else [0]
    sizes |= {
        "ASKED_NUMBERS": (f"({' + '.join(f'{n}U' for n in numbers)})", "in the tables of the questions"),
        "NOISE": (int(image is not None and image.kind == "noise"), "questions are smooth images, drawn by the device"),
        "STROKES": (int(image is not None and image.kind == "strokes"), "or random lines"),
    }
    if asked is not None and image is not None:
        coarse, names = asked.tables["coarse_noise"].shape[1:3], ("HEIGHT", "WIDTH", "CHANNELS")
        sizes |= {f"IMAGE_{name}": (side, "") for name, side in zip(names, (*image.sides, 1), strict=False)}
        sizes |= {f"COARSE_{name}": (side, "") for name, side in zip(names, coarse, strict=False)}
    return sizes


def _comment(text: str) -> str:
    """Text on one line; names may be a stranger's, so they cannot end the comment."""
    plain = re.sub(r"[^A-Za-z0-9 :;,._+-]", "?", text)
    return f"/* {plain if len(plain) <= 500 else plain[:500] + ' ...'} */\n"


def _defines(sizes: Mapping[str, tuple[str | int, str]]) -> str:
    lines = []
    for name, (value, meaning) in sizes.items():
        written = f"{value}U" if isinstance(value, int) else value
        lines.append(f"#define FEWJOULE_{name} {written}" + (f" /* {meaning} */" if meaning else ""))
    return "\n".join(lines) + "\n"


def _layers(net: Architecture) -> str:
    rows, first = [], 0
    height, width = net.input_shape[:2] if net.kind == "conv4" else (1, 1)
    kept = [layer for layer in net.layers if layer.kind != "norm"]
    for block, (layer, place) in enumerate(zip(kept, _places(net)[0], strict=True)):
        size = math.prod(layer.shape) + layer.outputs
        if layer.kind == "conv":
            pool = net.pools[block]
            numbers = [1, layer.inputs, layer.outputs, height, width, *pool, first, place.input, place.normal]
            height, width, size = height // pool[0], width // pool[1], size + 2 * layer.outputs
        else:
            numbers = [0, place.inputs, layer.outputs, 1, 1, 1, 1, first, place.input, 0]
        rows.append("    {" + ", ".join(f"{n}U" for n in numbers) + "},")
        first += size
    return "\n".join(["static const layer_type layers[FEWJOULE_LAYERS] = {", *rows, "};", ""])


def _weights(values: Values, quantised: Quantised | None) -> list[str]:
    if quantised is None:
        return [_table("float", "meta", values)]
    return [
        _table("int8_t", "codes", quantised.codes.tolist()),
        _table("float", "scales", quantised.scales),
        _table("float", "plain", quantised.plain),
    ]


def _table(kind: str, name: str, numbers: Iterable[Any]) -> str:
    cells = [_number(np.float32(n)) if kind == "float" else str(n) for n in numbers]
    rows = [f"    {', '.join(cells[at : at + 8])}," for at in range(0, len(cells), 8)]
    return "\n".join([f"static const {kind} {name}[{len(cells)}] = {{", *rows, "};", ""])


def _number(value: np.float32) -> str:
    """The shortest decimal that reads back as the same float."""
    text = str(value)
    return text + ("F" if "." in text or "e" in text else ".0F")


def _read(name: str) -> str:
    return resources.files(__package__).joinpath("c", name).read_text("utf-8")


def _put(code: str, name: str, text: str) -> str:
    """The text in place of the line that includes it."""
    line = f'#include "{name}"\n'
    assert code.count(line) == 1, name
    return code.replace(line, text)
