"""Optimisers by name."""

import jax.numpy as jnp
import optax
import pytest

import fewjoule as fj
from fewjoule.training.descent import optimiser, optimiser_names


@pytest.mark.parametrize("name", optimiser_names())
def test_every_name_gives_an_optimiser_that_takes_a_step(name):
    chosen = optimiser(name, 0.01)
    vector = jnp.asarray([1.0, -2.0])
    change, _ = chosen.update(2 * vector, chosen.init(vector), vector)
    assert jnp.isfinite(optax.apply_updates(vector, change)).all()


def test_the_usual_ones_are_there():
    assert {"sgd", "adam", "adamw", "rmsprop", "adagrad", "lion"} <= set(optimiser_names())


def test_a_wrong_name_is_refused():
    with pytest.raises(fj.InputError, match="did you mean 'adam'"):
        optimiser("adamm", 0.01)
