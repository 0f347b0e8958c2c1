"""Weights on disk: safetensors, with a model card in the metadata. Nothing is ever unpickled.

The card is one JSON object under the metadata key `fewjoule`:

    model      architecture, as in `mlp:784-8-8-10`; empty for a user's own functions
    loss       "mse" or "cross_entropy"
    weights    number of weights
    versions   of fewjoule, jax, numpy and python
    ...        whatever the writer adds: method and settings, classes, energy spent by phase and kind

Files without a card (PyTorch, Flax) are read through `layouts`.
"""

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule._version import __version__
from fewjoule.errors import InputError
from fewjoule.files import write_atomically
from fewjoule.models.layouts import LAYOUTS, fit_tensors, infer_spec
from fewjoule.models.model import Model
from fewjoule.models.nets import model_from_spec

HEADER_LIMIT_BYTES = 16 * 2**20
FLOATS = ("F16", "BF16", "F32", "F64")
CARD_KEY = "fewjoule"


class Loaded(NamedTuple):
    """A model read from a file; `layout` says whose order of axes the file had: fewjoule, pytorch or flax."""

    model: Model
    vector: Array  # [model.size] float32
    card: dict[str, Any]
    layout: str


class Header(NamedTuple):
    """What a file says about itself before any weight is read."""

    shapes: dict[str, tuple[int, ...]]
    kinds: dict[str, str]  # safetensors' names: F32, BF16, ...
    metadata: dict[str, str]


def write_model(
    path: str | Path,
    model: Model,
    vector: Any,
    card: Mapping[str, Any] | None = None,
    *,
    force: bool = False,
) -> None:
    """Write weights and card; atomic, and an existing file stays unless `force`."""
    values = np.asarray(vector, np.float32)
    if values.shape != (model.size,):
        raise InputError(f"{path}: the weights must be one vector of {model.size} numbers, got shape {values.shape}.")
    full = {**(card or {}), "model": model.spec, "loss": model.loss_name, "weights": model.size, "versions": versions()}
    save_tensors(path, named_tensors(model, values), {CARD_KEY: json.dumps(full, default=_plain)}, force=force)


def save_tensors(
    path: str | Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str], *, force: bool = False
) -> None:
    """Write named tensors as safetensors; one metadata key only gives the same bytes every time."""
    from safetensors.numpy import save

    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    write_atomically(path, save(contiguous, metadata=dict(metadata)), force=force)


def named_tensors(model: Model, vector: Any) -> dict[str, np.ndarray]:
    """The weights by name, in this package's own layout."""
    leaves = jax.tree.leaves(model.unflatten(jnp.asarray(vector, jnp.float32)))
    return {name: np.asarray(leaf) for name, leaf in zip(model.tensor_names(), leaves, strict=True)}


def read_model(
    path: str | Path,
    *,
    model: Model | None = None,
    loss: str | None = None,
    layout: str | None = None,
) -> Loaded:
    """Read a model written by this package, PyTorch or Flax.

    `model` gives the architecture that the weights must fit; without it the card names it or, for a dense net, the
    shapes do. `loss` is needed for a file without a card when `model` is not given. `layout` ("pytorch", "flax" or
    "fewjoule") settles files whose shapes fit more than one; nothing is guessed. Files without a card do not say
    which activation they were trained with: they are taken as ReLU nets.
    """
    path = Path(path)
    header, card = read_header(path), read_card(path)
    _check_kinds(path, header)
    if layout is not None and layout not in LAYOUTS:
        raise InputError(f"layout must be one of {', '.join(LAYOUTS)}, got {layout!r}.")
    if card is None:
        model = model or _inferred_model(path, header, loss, layout)
    else:
        model, layout = _carded_model(path, card, model, loss), "fewjoule"
    names, convert, layout = fit_tensors(str(path), header.shapes, header.metadata, model, layout)
    tensors = _read_tensors(path, names)
    leaves = [convert[i](tensors[name]) for i, name in enumerate(names)]
    vector = np.concatenate([np.asarray(leaf, np.float32).ravel() for leaf in leaves])
    if not np.isfinite(vector).all():
        bad = next(n for n, leaf in zip(names, leaves, strict=True) if not np.isfinite(leaf).all())
        raise InputError(f"{path}: weights must be finite, got NaN or infinity in tensor {bad!r}; train it again.")
    described = {"model": model.spec, "loss": model.loss_name, "weights": model.size, **(card or {})}
    return Loaded(model, jnp.asarray(vector), described, layout)


def read_card(path: str | Path) -> dict[str, Any] | None:
    """The model card of a file, or None where fewjoule did not write it."""
    text = read_header(path).metadata.get(CARD_KEY)
    if text is None:
        return None
    try:
        card = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path}: its model card is not readable ({error}); write the file again.") from error
    if not isinstance(card, dict):
        raise InputError(f"{path}: its model card is not a table; write the file again.")
    return card


def read_header(path: str | Path) -> Header:
    """Names, shapes and metadata; refuses what is not safetensors before taking memory for it."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist or is not a file; check the name.")
    _check_start(path)
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "np") as file:
            slices = {name: file.get_slice(name) for name in sorted(file.keys())}
            return Header(
                {name: tuple(s.get_shape()) for name, s in slices.items()},
                {name: str(s.get_dtype()) for name, s in slices.items()},
                dict(file.metadata() or {}),
            )
    except (SafetensorError, ValueError, OSError) as error:
        raise InputError(f"{path} is truncated or damaged ({error}); copy or write it again.") from error


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


def _check_kinds(path: Path, header: Header) -> None:
    if not header.shapes:
        raise InputError(f"{path} holds no tensors; write it again with the model's weights.")
    for name, kind in header.kinds.items():
        if kind not in FLOATS:
            raise InputError(f"{path}: tensor {name!r} must be floating point ({', '.join(FLOATS)}), got {kind}.")


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


def _inferred_model(path: Path, header: Header, loss: str | None, layout: str | None) -> Model:
    if loss is None:
        raise InputError(
            f"{path} has no fewjoule model card, so its loss is not known; give it: --loss mse or --loss cross_entropy."
        )
    return model_from_spec(infer_spec(str(path), header.shapes, header.metadata, layout), loss=loss)


def _read_tensors(path: Path, names: list[str]) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), "np") as file:
            return {name: np.asarray(file.get_tensor(name)).astype(np.float32) for name in names}
    except (SafetensorError, ValueError, OSError) as error:
        raise InputError(f"{path} is truncated or damaged ({error}); copy or write it again.") from error


def _plain(value: Any) -> Any:
    # numpy scalars and arrays come from settings and ledgers; anything else in a card is a bug of the caller
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        return np.asarray(value).tolist()
    raise TypeError(f"a model card holds plain values, got {type(value).__name__}.")
