"""The random start that all agents of a seed share."""

from functools import partial
from typing import Any

import jax
from jax import Array

from fewjoule.models.model import Model
from fewjoule.randomness import key_for
from fewjoule.training.program import BRIEF_OPTIONS


@partial(jax.jit, static_argnums=0, compiler_options=BRIEF_OPTIONS)
def random_start(model: Model, seed: Any) -> Array:
    """The seed's random start as the model has it. Never part of another program: drawing takes as long to compile as
    a round, training and all methods share it, and its bits are the same wherever it is drawn."""
    return model.init(key_for(seed, "start"))
