"""Models as pairs of pure functions, seen by everything else as one flat float32 vector.

`Model(init, apply)` takes any pair: `init(key)` gives the weights as a pytree, `apply(weights, x)` the outputs for a
batch x. The flat order of the weights is the order of the pytree's leaves.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.errors import InputError, unknown
from fewjoule.models.architecture import Architecture
from fewjoule.tasks.samples import Agents, Samples

LOSSES = ("mse", "cross_entropy")
Loss = str | Callable[[Any, Any], Any]
"""One of these names, or a function of (outputs, targets) of a batch."""
TARGETS = {  # whether they are classes: what is said about them, and what cures a loss that does not fit
    True: ("whole numbers (classes)", "use cross_entropy, or make them real numbers (--task regression)"),
    False: ("real numbers", "use mse, or make them whole numbers if they are classes (--task classification)"),
}


class Model:
    """A model with its loss, over flat vectors of `size` weights.

    `spec` names a built-in architecture (`"mlp:1-40-40-1"`), so that a file of weights can tell it, or a user's code
    that was given by name (`"torch:net.py:Net"`); it is empty for a pair of functions. `input_shape` is that of one
    sample, where it is known. `loss` may be a function of (outputs, targets): it is called with one sample at a time,
    as a batch of one, and its mean counts, so that padding never does; targets are whole or real numbers, of any
    shape. `tensor_names` are in flat order; without them the pytree's own keys name the tensors.
    """

    origin: str | None = None  # of a built-in model: two with the same compute the same

    def __init__(
        self,
        init: Callable[[Array], Any],
        apply: Callable[[Any, Array], Array],
        *,
        loss: Loss = "mse",
        architecture: Architecture | None = None,
        input_shape: tuple[int, ...] | None = None,
        tensor_names: Sequence[str] | None = None,
        spec: str = "",
    ) -> None:
        if isinstance(loss, str) and loss not in LOSSES:
            raise unknown("loss", loss, LOSSES)
        if not isinstance(loss, str) and not callable(loss):
            raise InputError(
                f"loss must be one of {', '.join(LOSSES)}, or a function of (outputs, targets), got {loss!r}."
            )
        self._own_loss = None if isinstance(loss, str) else loss
        self.loss_name: str = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
        if not isinstance(loss, str) and self.loss_name in LOSSES:
            raise InputError(f"a loss of your own must not be called {self.loss_name}; give it another name.")
        self._architecture = architecture
        self.spec = architecture.spec if architecture else spec
        self.input_shape = architecture.input_shape if architecture else input_shape
        self._init, self._apply = init, apply
        shapes = jax.eval_shape(init, jax.random.key(0))
        self._treedef = jax.tree.structure(shapes)
        self._names: list[str] = []
        self._shapes: list[tuple[int, ...]] = []
        for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
            if not jnp.issubdtype(leaf.dtype, jnp.floating):
                raise InputError(f"weights must be floating point, got {leaf.dtype} at {jax.tree_util.keystr(path)}.")
            self._names.append(jax.tree_util.keystr(path, simple=True, separator="."))
            self._shapes.append(leaf.shape)
        if not self._shapes:
            raise InputError("a model needs weights, got none; give one that has parameters.")
        self.names_are_keys = tensor_names is None  # of the pytree, in its order
        if tensor_names is not None:
            self._names = list(tensor_names)
        self.size: int = sum(math.prod(shape) for shape in self._shapes)

    def __repr__(self) -> str:
        return f"Model({self.spec or 'custom'}, {self.size} weights, {self.loss_name})"

    def init(self, key: Array) -> Array:
        """A random start: one flat float32 vector."""
        return self.flatten(self._init(key))

    def flatten(self, weights: Any) -> Array:
        return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(weights)])

    def unflatten(self, vector: Array) -> Any:
        """The weights as the pytree that `init` gave, in the vector's own precision.

        Split, not sliced: the gradient of a split is one concatenation, that of slices a sum of as many padded vectors,
        which took a fifth of the time of MAML and of fine-tuning.
        """
        parts = jax.lax.split(vector, [math.prod(shape) for shape in self._shapes])
        leaves = [part.reshape(shape) for part, shape in zip(parts, self._shapes, strict=True)]
        return jax.tree.unflatten(self._treedef, leaves)

    def tensor_names(self) -> list[str]:
        """A name for every tensor of the weights, in flat order: `0.weight`, `0.bias`, ..."""
        return list(self._names)

    def tensor_shapes(self) -> list[tuple[int, ...]]:
        return list(self._shapes)

    def tensors(self, vector: Any) -> dict[str, np.ndarray]:
        """The weights by name, in flat order."""
        leaves = jax.tree.leaves(self.unflatten(jnp.asarray(vector, jnp.float32)))
        return {name: np.asarray(leaf) for name, leaf in zip(self._names, leaves, strict=True)}

    @property
    def knows_layers(self) -> bool:
        """Whether it is built in, so that its layers are known."""
        return self._architecture is not None

    @property
    def architecture(self) -> Architecture:
        """The layers of a built-in model; a user's own pair of functions has none that are known."""
        if self._architecture is None:
            raise InputError(
                "the layers of a custom model are not known; this works for the built-in mlp and conv4 models."
            )
        return self._architecture

    def apply(self, vector: Array, x: Array) -> Array:
        """Outputs for a batch x."""
        return self._apply(self.unflatten(vector), x)

    def apply_tensors(self, tensors: list[Array], x: Array) -> Array:
        """Outputs for a batch x, from tensors in flat order, which may have other shapes than the model's own."""
        return self._apply(jax.tree.unflatten(self._treedef, tensors), x)

    @partial(jax.jit, static_argnums=0)  # traced once for all programs that take its gradient
    def loss(self, vector: Array, samples: Samples) -> Array:
        """Mean loss over the real samples: squared error (mean over outputs), cross entropy in nats, or the user's."""
        outputs = self.apply(vector, samples.x)
        if self._own_loss is not None:
            own = self._own_loss
            each = jax.vmap(lambda o, y: jnp.mean(own(o[None], y[None])))(outputs, samples.y)
        elif self.loss_name == "mse":
            each = ((outputs - samples.y) ** 2).mean(-1)
        else:
            log_p = jax.nn.log_softmax(_permit(outputs, samples.allowed))
            each = -jnp.take_along_axis(log_p, samples.y[..., None], -1)[..., 0]
        return _masked_mean(each if samples.weight is None else each * samples.weight, samples.mask)

    def accuracy(self, vector: Array, samples: Samples) -> Array:
        """Share of the real samples whose class is right; NaN for any other loss than cross entropy."""
        if self.loss_name != "cross_entropy":
            return jnp.full((), jnp.nan)
        outputs = _permit(self.apply(vector, samples.x), samples.allowed)
        return _masked_mean((outputs.argmax(-1) == samples.y).astype(jnp.float32), samples.mask)


class OwnModel(NamedTuple):
    """The model that an agent has, of whatever architecture."""

    model: Model
    vector: Any  # [d], or [seeds, d]


def _permit(logits: Array, allowed: Array | None) -> Array:
    return logits if allowed is None else jnp.where(allowed, logits, jnp.asarray(-1e9, logits.dtype))


def _masked_mean(each: Array, mask: Array) -> Array:
    mask = mask.astype(each.dtype)
    return (each * mask).sum() / jnp.maximum(mask.sum(), 1)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200].rstrip('.')}"


def check_fit(model: Model, agents: Agents) -> None:
    """Refuse data that the model cannot take, before anything compiles."""
    check_samples(model, agents.data.train, "agents")
    check_samples(model, agents.data.validation, "agents' validation samples")


def check_alike(model: Model, other: Model, what: str) -> None:
    """Refuse a model that takes other inputs, gives other outputs or has another loss than `other`."""
    if model.loss_name != other.loss_name:
        raise InputError(f"{what} has the loss {model.loss_name}, the others {other.loss_name}; make them one.")
    shape = other.input_shape
    if shape is None:
        raise InputError(
            f"{what} cannot be compared: the shape of the inputs is not known; give Model(input_shape=...)."
        )
    x = np.zeros((2, *shape), np.float32)
    wanted = jax.eval_shape(other.apply, np.zeros(other.size, np.float32), x).shape
    try:
        got = jax.eval_shape(model.apply, np.zeros(model.size, np.float32), x).shape
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} does not take inputs of shape {list(shape)}, as {other} does.") from error
    if got != wanted:
        raise InputError(f"{what} has {got[-1]} outputs, {other} has {wanted[-1]}; make them as many.")


@lru_cache
def _outputs(model: Model, inputs: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the outputs for a batch of this shape. Kept: tracing it took a tenth of a short run."""
    shape: tuple[int, ...] = jax.eval_shape(
        model.apply, np.zeros(model.size, np.float32), np.zeros(inputs, np.float32)
    ).shape
    return shape


def check_samples(model: Model, samples: Samples, what: str) -> None:
    """Refuse samples (with any leading axes) that the model cannot take. Runs no JAX program."""
    classes = samples.y.dtype.kind == "i"
    lead = samples.mask.ndim - 1
    inputs, targets = samples.x.shape[lead:], samples.y.shape[lead:]
    own_loss = model.loss_name not in LOSSES
    if not own_loss and classes != (model.loss_name == "cross_entropy"):
        kind, cure = TARGETS[classes]
        raise InputError(f"{what} have targets that are {kind}, but the model's loss is {model.loss_name}; {cure}.")
    try:
        outputs = _outputs(model, inputs)
    except InputError:  # a user's module says what it cannot do
        raise
    except Exception as error:
        if model.knows_layers and not isinstance(error, TypeError | ValueError):
            raise
        told = "" if model.knows_layers else f" ({_first_line(error)})"
        shape = list(inputs[1:])
        raise InputError(f"{what} have inputs of shape {shape}, which {model} does not take{told}.") from error
    if own_loss and outputs[:1] == inputs[:1]:
        if classes:
            _check_classes(model, samples, what, max(outputs[-1], 2))  # one output may tell two classes apart
        x, y, mask = (np.zeros(a.shape[lead:], a.dtype) for a in samples[:3] if a is not None)
        try:
            jax.eval_shape(model.loss, np.zeros(model.size, np.float32), Samples(x, y, mask))  # type: ignore[arg-type]
        except Exception as error:
            raise InputError(
                f"the loss {model.loss_name} cannot be computed for outputs {list(outputs[1:])} and targets "
                f"{list(targets[1:])} of a sample: {_first_line(error)}."
            ) from error
        return
    if len(outputs) != 2 or outputs[0] != inputs[0]:
        raise InputError(
            f"{model} must give [samples, outputs] for a batch, got {list(outputs)} for {inputs[0]} samples."
        )
    if classes:
        _check_classes(model, samples, what, outputs[1])
    if not classes and outputs != targets:
        raise InputError(
            f"{what} have targets of width {targets[-1]}, but {model} has {outputs[1]} outputs; make them as many, or "
            "the targets whole numbers if they are classes."
        )
    if samples.allowed is not None and samples.allowed.shape[-1] != outputs[1]:
        raise InputError(
            f"{what} have allowed classes out of {samples.allowed.shape[-1]}, but {model} has {outputs[1]} outputs; "
            "set classes to that."
        )


def _check_classes(model: Model, samples: Samples, what: str, most: int) -> None:
    largest = int(np.asarray(samples.y).max())
    if largest >= most:
        raise InputError(
            f"{what} have class {largest}, but {model} has outputs for {most} at most; give it one output per "
            "class, number the classes from 0, or make the targets real numbers if they are none."
        )
