"""What a new device does with a meta-model: descent on all of its weights, on those of its head alone, or none at all
where the class means of its samples are the head."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax
from jax import Array

from fewjoule.errors import InputError, positive_int
from fewjoule.models.model import Model
from fewjoule.models.parts import parts_of, with_prototypes
from fewjoule.tasks.samples import Samples
from fewjoule.training.descent import Loss, descend


class Tuning(NamedTuple):
    """How a new device adapts."""

    head: int = 0  # how many last layers are tuned, the body staying as it is; 0 tunes the whole model
    prototypes: bool = False  # one forward pass makes the head, and no step follows

    def problem(self, model: Model, meta: Array, support: Samples) -> tuple[Array, Loss, Callable[[Array], Array]]:
        """The weights to begin with, their loss, and the whole model [d] that they make."""
        if self.prototypes:
            return with_prototypes(model, meta, support), model.loss, lambda vector: vector
        parts = parts_of(model, self.head)
        if parts.body in (0, model.size):
            return meta, model.loss, lambda vector: vector
        first = parts.body_first(meta)

        def whole(head: Array) -> Array:
            vector: Array = parts.as_model(jnp.concatenate([first[: parts.body], head]))
            return vector

        return first[parts.body :], lambda head, samples: model.loss(whole(head), samples), whole

    def tuned(
        self, model: Model, meta: Array, support: Samples, *, by: optax.GradientTransformation, steps: int
    ) -> Array:
        """The whole model [d] after so many full-batch steps on the support samples."""
        vector, loss, whole = self.problem(model, meta, support)
        return whole(vector if self.prototypes else descend(loss, vector, support, by=by, steps=steps).vector)


ALL_WEIGHTS = Tuning()


def card_of(tuning: Tuning) -> dict[str, Any]:
    """What a model's card says of it; nothing where all weights are tuned."""
    return {} if tuning == ALL_WEIGHTS else {"tuning": tuning._asdict()}


def tuning_of(card: Mapping[str, Any]) -> Tuning:
    """How a model is to be adapted, as its card says."""
    told = card.get("tuning", {})
    if not isinstance(told, Mapping) or not told.keys() <= set(Tuning._fields):
        raise InputError(f"the card's tuning must be a table of {', '.join(Tuning._fields)}, got {told!r}.")
    tuning = Tuning(**told)
    positive_int("the card's tuning: head", tuning.head, least=0)
    if not isinstance(tuning.prototypes, bool):
        raise InputError(f"the card's tuning: prototypes must be true or false, got {tuning.prototypes!r}.")
    return tuning


def rated(by: optax.GradientTransformation, rates: Array | None) -> optax.GradientTransformation:
    """Descent with a learning rate [d] for every weight, which the meta-model came with; `by` where there are none."""
    return by if rates is None else optax.stateless(lambda gradient, _: -rates * gradient)
