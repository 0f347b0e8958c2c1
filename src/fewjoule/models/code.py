"""Models that are a user's own code: `torch:net.py:Net`, `python:net.py:model`.

Code runs only where somebody at this machine names its file: on the command line, or in a study file that they run.
`trust` reads it and remembers the model under the file's bare name. Whatever comes from elsewhere (a model card, a
message of a server) may only name what is remembered already.
"""

import importlib.util
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from fewjoule.errors import InputError
from fewjoule.models.model import LOSSES, Model
from fewjoule.models.torch_modules import from_torch

KINDS = ("torch", "python")
"""A torch.nn.Module, its class or a function that makes it; or a fewjoule Model or a function that makes it."""
TRUSTED: dict[str, Callable[[str | None], Model]] = {}
"""Models, by the bare names of their files and their loss."""


def is_code(spec: str) -> bool:
    return spec.partition(":")[0] in KINDS


def trust(spec: str) -> str:
    """Run the file that the spec names, remember its model, and give the spec with the file's bare name.

    The file is looked for from the current folder. The loss is chosen when the model is asked for.
    """
    kind, file, name = _parts(spec)
    bare = f"{kind}:{file.name}:{name}"
    TRUSTED[bare] = _built(kind, file.resolve(), name, bare)
    return bare


def trusted(spec: str, loss: str | None) -> Model:
    """The model of this bare name, if somebody at this machine has named its file."""
    if spec not in TRUSTED:
        kind, file, name = _parts(spec)
        raise InputError(
            f"{spec[:80]} is code and runs only where you name its file (--model) as {kind}:FOLDER/{file.name}:{name}; "
            "a federation's server and agents name it each for themselves (--module)."
        )
    model = TRUSTED[spec](loss)
    if loss not in (None, model.loss_name) and model.loss_name in LOSSES:
        raise InputError(f"{spec} has the loss {model.loss_name}, the data or settings ask for {loss}; make them one.")
    return model


@lru_cache  # one object for equal settings, so programs compiled for it are found again
def _built(kind: str, file: Path, name: str, bare: str) -> Callable[[str | None], Model]:
    """The code's model, by its loss."""
    made = _found(file, name)
    if kind == "python":
        model = made if isinstance(made, Model) else _made(made, file, name)
        if not isinstance(model, Model):
            raise InputError(f"{file}: {name} must be a fewjoule.Model or a function that makes one, got {model!r}.")
        model.spec = bare
        return lambda loss: model
    is_module = hasattr(made, "state_dict") and not isinstance(made, type)
    module = made if is_module else _made(made, file, name)
    shape = getattr(module, "input_shape", None)

    @lru_cache
    def of(loss: str | None) -> Model:
        return from_torch(module, loss=loss or "mse", input_shape=None if shape is None else tuple(shape), spec=bare)

    return of


def _made(made: Any, file: Path, name: str) -> Any:
    try:
        return made()
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise InputError(f"{file}: {name} could not be made by calling it without arguments: {told}.") from error


def _parts(spec: str) -> tuple[str, Path, str]:
    kind, _, rest = spec.partition(":")
    file, _, name = rest.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise InputError(f"model {spec[:80]!r} cannot be read; write {kind}:net.py:Net, a file and a name in it.")
    return kind, Path(file), name


def _found(file: Path, name: str) -> Any:
    """The thing of this name in a file of the user's; it is run as a module, once for every call."""
    if not file.is_file():
        raise InputError(f"{file} does not exist or is not a file; the model's code is looked for there.")
    where = importlib.util.spec_from_file_location(f"fewjoule_user_{file.stem}", file)
    assert where is not None
    assert where.loader is not None
    module = importlib.util.module_from_spec(where)
    sys.modules[where.name] = module  # dataclasses and pickling of the user's own look it up there
    try:
        where.loader.exec_module(module)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{file} cannot be run: {type(error).__name__}: {error}.") from error
    if not hasattr(module, name):
        raise InputError(f"{file} has no {name!r}; name a class, an object or a function of it.")
    return getattr(module, name)
