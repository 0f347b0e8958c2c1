"""Largest curvature against dense Hessians."""

import jax
import jax.numpy as jnp
import numpy as np

import fewjoule as fj
from fewjoule.training.curvature import largest_eigenvalue


def test_quadratic_has_its_largest_eigenvalue_whatever_the_sign():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    for eigenvalues in ([5, 2, 1, 1, 0.5, 0.1], [-7, 3, 2, 1, 1, 0]):
        a = jnp.asarray(basis @ np.diag(eigenvalues) @ basis.T, jnp.float32)
        found = largest_eigenvalue(lambda v, a=a: v @ a @ v / 2, jnp.zeros(6), jax.random.key(0))
        np.testing.assert_allclose(found, eigenvalues[0], rtol=1e-3)


def test_local_training_records_the_sharpness_it_reached(model, agents):
    local = fj.train_locally(model, agents, max_steps=200, check_every=100)
    hessian = jax.jit(jax.hessian(model.loss))
    for i in range(3):
        samples = jax.tree.map(lambda a, i=i: a[i], agents.data.train)
        dense = np.linalg.eigvalsh(np.asarray(hessian(local.models[i], samples)))
        largest = dense[np.abs(dense).argmax()]
        np.testing.assert_allclose(local.sharpness[i], largest, rtol=0.02)
        np.testing.assert_allclose(local.loss[i], model.loss(local.models[i], samples), rtol=1e-4)
        gradient = jax.grad(model.loss)(local.models[i], samples)
        np.testing.assert_allclose(local.gradient_norm[i], jnp.linalg.norm(gradient), rtol=1e-3)
