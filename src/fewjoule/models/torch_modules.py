"""A PyTorch module as a model, and weights back into the module. torchax carries PyTorch's operations over to JAX.

From a module to a `Model` whose flat vector has the module's parameters in the module's own order.
"""

import copy
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.errors import InputError
from fewjoule.models.model import Loss, Model

if TYPE_CHECKING:
    import torch

MISSING = "PyTorch modules need torch and torchax; pip install 'fewjoule[torch]'."
LOCK = threading.RLock()
"""torchax switches PyTorch over as a whole, and a module's parameters are swapped while it is traced."""


def from_torch(
    module: "torch.nn.Module",
    *,
    loss: Loss = "mse",
    input_shape: tuple[int, ...] | None = None,
    fresh: bool = True,
    spec: str = "",
) -> Model:
    """The module as a model: it is called with a batch and gives one tensor [samples, ...].

    A random start is drawn by the layers' own `reset_parameters`; parameters that no layer draws, and all of them
    with `fresh` False, start as they are in the module. Dropout is left out, with a warning: the module runs in
    evaluation mode. Batch normalisation is refused, since statistics of a batch would mix other samples into a
    sample's outputs; so are modules that change their buffers or draw random numbers when called. `input_shape` is
    that of one sample; federations, `plan` and `answers` need it.
    """
    torch, env = _torchax()
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"from_torch takes a torch.nn.Module, got {type(module).__name__}; call the class first.")
    still = _checked(torch, module)
    names = [name for name, _ in still.named_parameters()]
    buffers = {name: jnp.asarray(b.numpy()) for name, b in still.named_buffers()}

    def init(key: Array) -> list[Array]:
        with LOCK, _moved(env, still) as moved, env, env.override_property(prng=key):
            if fresh:
                for layer in reversed(list(moved.modules())):  # a layer's parts before itself, as when it was made
                    draw = getattr(layer, "reset_parameters", None) or getattr(layer, "_reset_parameters", None)
                    if draw is not None:
                        draw()
            drawn = dict(moved.named_parameters())
            return [env.t2j_iso(drawn[name]) for name in names]

    def apply(weights: list[Array], x: Array) -> Array:
        given = {name: jnp.asarray(weight) for name, weight in zip(names, weights, strict=True)}
        with LOCK, _explained(), env, env.override_property(prng=None):
            inside = env.j2t_iso({**buffers, **given})
            outputs = torch.func.functional_call(still, inside, (env.j2t_iso(jnp.asarray(x)),), tie_weights=True)
            outputs = env.t2j_iso(outputs)
            changed = [name for name in buffers if env.t2j_iso(inside[name]) is not buffers[name]]
        if changed:
            raise InputError(f"the module changes its buffer {changed[0]!r} when it is called; leave that out.")
        if not isinstance(outputs, jax.Array):
            raise InputError(
                f"the module must give one tensor, got {type(outputs).__name__}; wrap it in one that does."
            )
        return outputs

    return Model(init, apply, loss=loss, input_shape=input_shape, tensor_names=names, spec=spec)


def to_torch(model: Model, vector: Any, module: "torch.nn.Module") -> dict[str, "torch.Tensor"]:
    """The vector as the module's state_dict; `module.load_state_dict(...)` takes it. The module stays as it is."""
    torch, _ = _torchax()
    tensors = model.tensors(vector)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    owners: dict[int, str] = {id(p): name for name, p in module.named_parameters()}
    for name, parameter in module.named_parameters(remove_duplicate=False):  # tied weights have several names
        if (values := tensors.get(owners[id(parameter)])) is None or values.shape != tuple(parameter.shape):
            raise InputError(
                f"{model} is not of this module: its parameter {name!r} does not fit; give the same module."
            )
        state[name] = torch.from_numpy(np.array(values)).to(parameter.dtype)
    return state


def _checked(torch: Any, module: Any) -> Any:
    """A copy in evaluation mode of a module that can be a pure function of its parameters."""
    nn, dropped = torch.nn, []
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"the module has batch normalisation ({name or type(part).__name__}), whose statistics mix other "
                "samples into a sample's outputs; use GroupNorm or LayerNorm."
            )
        if getattr(part, "track_running_stats", False):
            raise InputError(f"{name or type(part).__name__} keeps running statistics; set track_running_stats=False.")
        share = part.p if isinstance(part, nn.modules.dropout._DropoutNd) else getattr(part, "dropout", 0.0)
        if isinstance(share, float) and share > 0:  # in an encoder layer, `dropout` is a module of its own
            dropped.append(name or type(part).__name__)
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise InputError(f"parameter {name!r} has no shape yet; call the module once with a batch before.")
        if parameter.dtype != torch.float32:
            raise InputError(f"parameter {name!r} must be float32, got {parameter.dtype}; call module.float().")
    if dropped:
        warnings.warn(f"dropout is left out: {', '.join(dropped[:5])}.", UserWarning, stacklevel=3)
    return copy.deepcopy(module).eval().requires_grad_(False).cpu()


@contextmanager
def _moved(env: Any, module: Any) -> Iterator[Any]:
    """A copy of the module whose parameters are JAX arrays; plain tensors in the place of parameters."""
    copied = copy.deepcopy(module)
    seen: dict[int, Any] = {}
    for layer in copied.modules():
        for name, parameter in layer._parameters.items():
            if parameter is not None:
                fresh = env.j2t_iso(jnp.asarray(parameter.detach().numpy()))
                layer._parameters[name] = seen.setdefault(id(parameter), fresh)  # tied weights stay tied
    yield copied


@contextmanager
def _explained() -> Iterator[None]:
    """What a module does that no compiled function can, in one line each."""
    from torchax.tensor import OperatorNotFound

    try:
        yield
    except OperatorNotFound as error:
        told = str(error).splitlines()[0]
        raise InputError(f"the module uses an operation that torchax cannot carry over to JAX: {told}.") from error
    except jax.errors.ConcretizationTypeError as error:
        raise InputError(
            "the module decides by the values of its inputs (an `if` or a size that depends on them), which cannot be "
            "compiled; use torch.where."
        ) from error
    except TypeError as error:
        if "key" not in str(error) and "prng" not in str(error).lower():
            raise
        raise InputError("the module draws random numbers when it is called; leave that out.") from error


def _torchax() -> tuple[Any, Any]:
    """torch, and torchax's environment in which its tensors are JAX arrays."""
    try:
        import torch
    except ImportError as error:
        raise InputError(MISSING) from error
    with LOCK, _removed_overloads(torch):
        try:
            import torchax
        except ImportError as error:
            raise InputError(MISSING) from error
        return torch, torchax.default_env()


@contextmanager
def _removed_overloads(torch: Any) -> Iterator[None]:
    """PyTorch 2.13 has no operations by names of dimensions any more; torchax 0.0.13 still lists them in its tables.

    While torchax is imported they are found, as objects that nothing else knows.
    """
    packet = torch._ops.OpOverloadPacket
    found: Callable[[Any, str], Any] = packet.__getattr__

    def found_or_removed(self: Any, name: str) -> Any:
        try:
            return found(self, name)
        except AttributeError:
            if name.startswith("_") or "name" not in name.lower():
                raise
            return object()

    packet.__getattr__ = found_or_removed
    try:
        yield
    finally:
        packet.__getattr__ = found
