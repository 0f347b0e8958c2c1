"""Weights on disk: safetensors, with a model card in the metadata. Nothing is ever unpickled.

The card is one JSON object under the metadata key `fewjoule`:

    model      architecture, as in `mlp:784-8-8-10`; empty for a user's own functions
    loss       "mse" or "cross_entropy"
    weights    number of weights
    versions   of fewjoule, jax, numpy and python
    ...        whatever the writer adds: method and settings, classes, energy spent by phase and kind

Files without a card (PyTorch, Flax) are read through `layouts`, and `export` writes what other runtimes read.
"""

import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule._version import __version__
from fewjoule.errors import InputError
from fewjoule.files import check_writable, write_atomically
from fewjoule.models.c_source import write_c
from fewjoule.models.layouts import check_layout, dense_sizes, fit_tensors, from_layout, to_layout
from fewjoule.models.model import Model
from fewjoule.models.nets import mlp, model_from_spec
from fewjoule.models.onnx import onnx_graph
from fewjoule.tasks.format import format_of_card

HEADER_LIMIT_BYTES = 16 * 2**20
FLOATS = ("F16", "BF16", "F32", "F64")
CARD_KEY = "fewjoule"
RATES = "learning_rates."
"""Tensors with this before a weight's name are its learning rates."""
TARGETS = ("onnx", "pytorch", "flax", "c")


class ModelFile(NamedTuple):
    """A model read from a file; `layout` says whose order of axes the file had: fewjoule, pytorch or flax."""

    model: Model
    vector: Array  # [model.size] float32
    card: dict[str, Any]
    layout: str
    rates: Array | None = None  # [model.size] learning rates of the fine-tuning, where a method learned them


class WeightsHeader(NamedTuple):
    """What a file says about itself before any weight is read."""

    shapes: dict[str, tuple[int, ...]]
    kinds: dict[str, str]  # safetensors' names: F32, BF16, ...
    metadata: dict[str, str]
    card: dict[str, Any] | None  # None where fewjoule did not write the file


def write_model(
    path: str | Path, model: Model, vector: Any, card: Mapping[str, Any] | None = None, *, rates: Any = None,
    force: bool = False,
) -> None:  # fmt: skip
    """Write weights and card, and the learning rates [d] that new devices fine-tune with, where they are learned.

    Atomic, and an existing file stays unless `force`.
    """
    values = {"": np.asarray(vector, np.float32)} | ({} if rates is None else {RATES: np.asarray(rates, np.float32)})
    for shape in (each.shape for each in values.values()):
        if shape != (model.size,):
            raise InputError(f"{path}: the weights must be one vector of {model.size} numbers, got shape {shape}.")
    tensors = {before + name: t for before, each in values.items() for name, t in model.tensors(each).items()}
    full = {**(card or {}), "model": model.spec, "loss": model.loss_name, "weights": model.size, "versions": versions()}
    save_tensors(path, tensors, _card_metadata(full), force=force)


def export(
    path: str | Path,
    model: Model,
    vector: Any,
    card: Mapping[str, Any] | None = None,
    *,
    to: str = "onnx",
    force: bool = False,
) -> None:
    """Write the model for another runtime: an ONNX graph, safetensors in PyTorch's or Flax's names and axes, or C.

    C is a folder (`fewjoule.models.c_source.write_c` has all its settings), which reads inputs as the card says.
    """
    if to not in TARGETS:
        raise InputError(f"models are exported to {', '.join(TARGETS)}, not {to!r}.")
    if to == "c":
        task = "regression" if model.loss_name == "mse" else "classification"
        write_c(Path(path), model, vector, format=format_of_card(card or {}, task), force=force)
        return
    check_writable(path, force=force)
    if to == "onnx":
        metadata = _card_metadata(card or {"model": model.spec, "loss": model.loss_name})
        write_atomically(path, onnx_graph(model, vector, metadata), force=force)
        return
    # the only key is PyTorch's own mark: a fewjoule card would say that the axes are in this package's order
    metadata = {"format": "pt" if to == "pytorch" else "flax"}
    save_tensors(path, to_layout(model, model.tensors(vector), to), metadata, force=force)


def save_tensors(
    path: str | Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str], *, force: bool = False
) -> None:
    """Write named tensors as safetensors; one metadata key only gives the same bytes every time."""
    from safetensors.numpy import save

    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    write_atomically(path, save(contiguous, metadata=dict(metadata)), force=force)


def read_model(
    path: str | Path, *, model: Model | None = None, loss: str | None = None, layout: str | None = None
) -> ModelFile:
    """Read a model written by this package, PyTorch or Flax.

    `model` gives the architecture that the weights must fit; without it the card names it or, for a dense net, the
    shapes do. `loss` is needed for a file without a card when `model` is not given. `layout` ("pytorch", "flax" or
    "fewjoule") settles files whose shapes fit more than one; nothing is guessed. Files without a card do not say
    which activation they were trained with: they are taken as ReLU nets.
    """
    path = Path(path)
    header = read_header(path)
    card = header.card
    if not header.shapes:
        raise InputError(f"{path} holds no tensors; write it again with the model's weights.")
    if layout is not None:
        check_layout(layout)
    if card is None:
        model = model or _inferred_model(path, header, loss, layout)
    else:
        model, layout = _carded_model(path, card, model, loss), "fewjoule"
    rated = card is not None and any(name.startswith(RATES) for name in header.shapes)
    shapes = {name: s for name, s in header.shapes.items() if not (rated and name.startswith(RATES))}
    names, layout = fit_tensors(str(path), shapes, header.metadata, model, layout)
    every = [*names, *(RATES + name for name in names if rated)]
    if rated and sorted(every) != sorted(header.shapes):
        raise InputError(f"{path}: its learning rates are not those of its weights; write it again.")
    for name in every:
        if (kind := header.kinds[name]) not in FLOATS:
            raise InputError(f"{path}: tensor {name!r} must be floating point ({', '.join(FLOATS)}), got {kind}.")
    with _opened(path) as file:
        tensors = [np.asarray(file.get_tensor(name)).astype(np.float32) for name in every]
    for name, tensor in zip(every, tensors, strict=True):
        if not np.isfinite(tensor).all():
            raise InputError(f"{path}: weights must be finite, got NaN or infinity in tensor {name!r}; train it again.")
    for name, tensor in zip(names, tensors[len(names) :], strict=False):
        if tensor.shape != shapes[name]:
            raise InputError(f"{path}: its learning rates are not those of its weights; write it again.")
    vector, *rates = (
        jnp.asarray(np.concatenate([tensor.ravel() for tensor in from_layout(model, part, layout)]))
        for part in (tensors[: len(names)], tensors[len(names) :])
        if part
    )
    described = {"model": model.spec, "loss": model.loss_name, "weights": model.size, **(card or {})}
    return ModelFile(model, vector, described, layout, *rates)


def read_header(path: str | Path) -> WeightsHeader:
    """Names, shapes, metadata and model card; refuses what is not safetensors before taking memory for it."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist or is not a file; check the name.")
    _check_start(path)
    with _opened(path) as file:
        slices = {name: file.get_slice(name) for name in sorted(file.keys())}
        shapes = {name: tuple(s.get_shape()) for name, s in slices.items()}
        kinds = {name: str(s.get_dtype()) for name, s in slices.items()}
        metadata = dict(file.metadata() or {})
    return WeightsHeader(shapes, kinds, metadata, _read_card(path, metadata.get(CARD_KEY)))


def _read_card(path: Path, text: str | None) -> dict[str, Any] | None:
    try:
        card = None if text is None else json.loads(text)
    except (ValueError, RecursionError) as error:  # broken, or nested without end
        raise InputError(f"{path}: its model card is not readable ({error}); write the file again.") from error
    if card is None and text is None:
        return None
    if not isinstance(card, dict):
        raise InputError(f"{path}: its model card is not a table; write the file again.")
    for key in ("agents", "energy"):
        rows = card.get(key) or []
        if not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
            raise InputError(f"{path}: {key} in its model card must be a list of tables; write the file again.")
    if not isinstance(card.get("link") or "", str):
        raise InputError(f"{path}: link in its model card must be a name, got {card['link']!r}; write the file again.")
    return card


def versions() -> dict[str, str]:
    return {
        "fewjoule": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def _check_start(path: Path) -> None:
    with path.open("rb") as file:
        first = file.read(9)
    size = path.stat().st_size
    # a safetensors header is JSON, so byte 8 is "{": this also tells a pickle (0x80 first) from a length that begins so
    if (first[:1] == b"\x80" or first[:4] == b"PK\x03\x04") and first[8:9] != b"{":
        raise InputError(
            f"{path} is a pickle or a zip archive, which are never loaded because they can run code; write the weights "
            "again with safetensors.torch.save_file(model.state_dict(), 'NAME.safetensors')."
        )
    if size < 9:
        raise InputError(f"{path} is truncated: {size} bytes are too few for a safetensors file; copy it again.")
    length = int.from_bytes(first[:8], "little")
    if length > HEADER_LIMIT_BYTES:
        raise InputError(
            f"{path}: its header claims {length} bytes, at most {HEADER_LIMIT_BYTES} are read; it is damaged or not a "
            "safetensors file, write it again."
        )
    if length + 8 > size:
        raise InputError(
            f"{path} is truncated: its header needs {length + 8} bytes, the file has {size}; copy it again."
        )


def _carded_model(path: Path, card: Mapping[str, Any], model: Model | None, loss: str | None) -> Model:
    spec, own_loss = str(card.get("model", "")), str(card.get("loss", "mse"))
    if model is None:
        if not spec:
            raise InputError(f"{path} was written for a user's own model functions; give them as model=Model(...).")
        model = model_from_spec(spec, loss=own_loss)
    elif model.spec != spec:
        raise InputError(
            f"{path}: the model is {model.spec or 'custom'}, the file holds {spec or 'custom'}; give {spec}."
        )
    wanted = loss or model.loss_name
    if wanted != own_loss:
        raise InputError(f"{path}: the loss is {wanted}, the file's model was trained with {own_loss}; give that loss.")
    return model


def _inferred_model(path: Path, header: WeightsHeader, loss: str | None, layout: str | None) -> Model:
    if loss is None:
        raise InputError(
            f"{path} has no fewjoule model card, so its loss is not known; give loss (--loss): mse or cross_entropy."
        )
    return mlp(dense_sizes(str(path), header.shapes, header.metadata, layout), loss=loss)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "np") as file:
            yield file
    except (SafetensorError, ValueError, OSError) as error:
        raise InputError(f"{path} is truncated or damaged ({error}); copy or write it again.") from error


def _card_metadata(card: Mapping[str, Any]) -> dict[str, str]:
    return {CARD_KEY: json.dumps(dict(card), default=_plain)}


def _plain(value: Any) -> Any:
    # numpy scalars and arrays come from settings and ledgers; anything else in a card is a bug of the caller
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return np.asarray(value).tolist()
    raise TypeError(f"a model card holds plain values, got {type(value).__name__}.")
