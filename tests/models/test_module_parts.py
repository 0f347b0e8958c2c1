"""Body and head of modules of other frameworks: found, shared, tuned and replaced as those of the built-in nets.

The frameworks' own layers are the oracle of what a head gets.
"""

from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.models.parts import features, parts_of
from fewjoule.tasks.samples import make_agents, make_tasks
from fewjoule.training.tuning import Tuning

X = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
Y = np.array([0, 1, 0, 1, 0, 1], np.int32)


def of_torch():
    if find_spec("torchax") is None:
        pytest.skip("the extra torch is not installed")
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    model = fj.from_torch(module, loss="cross_entropy", input_shape=(3,))
    own = model.flatten([jnp.asarray(p.detach().numpy()) for p in module.parameters()])
    return model, own, module[:2](torch.from_numpy(X)).detach().numpy()


def of_linen():
    linen = pytest.importorskip("flax.linen", reason="flax is not installed")

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = jnp.tanh(linen.Dense(5)(x))  # made first, so it is Dense_0
            return linen.Dense(2)(x)

    model = fj.from_flax(Net(), X[:1], loss="cross_entropy")
    own = model.init(jax.random.key(0))
    first = model.unflatten(own)["Dense_0"]
    return model, own, jnp.tanh(X @ first["kernel"] + first["bias"])


def of_nnx():
    nnx = pytest.importorskip("flax.nnx", reason="flax is not installed")

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first, self.last = nnx.Linear(3, 5, rngs=rngs), nnx.Linear(5, 2, rngs=rngs)

        def __call__(self, x):
            return self.last(jnp.tanh(self.first(x)))

    model, key = fj.from_flax(Net, X[:1], loss="cross_entropy"), jax.random.key(0)
    return model, model.init(key), jnp.tanh(Net(nnx.Rngs(key)).first(X))


def of_equinox():
    equinox = pytest.importorskip("equinox", reason="equinox is not installed")

    def make(key):
        return equinox.nn.MLP(3, 2, 5, 1, activation=jnp.tanh, key=key)

    model, key = fj.from_equinox(make, loss="cross_entropy", input_shape=(3,)), jax.random.key(0)
    return model, model.init(key), jax.vmap(lambda x: jnp.tanh(make(key).layers[0](x)))(X)


@pytest.mark.parametrize("made", [of_torch, of_linen, of_nnx, of_equinox])
def test_a_modules_head_is_found_tuned_and_replaced(made):
    model, own, due = made()
    split = parts_of(model, 1)
    assert (split.body, model.size - split.body) == (20, 12)
    np.testing.assert_allclose(features(model, own, jnp.asarray(X)), due, rtol=1e-5, atol=1e-6)
    tasks = make_tasks([(X, Y)], [(X, Y)])
    tuned = fj.adapt(model, own, tasks, steps=[3], learning_rate=0.1, tuning=Tuning(head=1), keep_models=True)
    before, after = split.body_first(own), split.body_first(tuned.models[0])
    np.testing.assert_array_equal(before[:20], after[:20])
    assert (before[20:] != after[20:]).any()
    distances = [((due - due[k == Y].mean(0)) ** 2).sum(-1) for k in (0, 1)]
    means = fj.adapt(model, own, tasks, steps=[0], tuning=Tuning(prototypes=True))
    assert means.accuracy[0, 0] == pytest.approx(np.mean(np.argmin(distances, 0) == Y))


@pytest.mark.slow
@pytest.mark.parametrize("made", [of_torch, of_linen, of_nnx, of_equinox])
@pytest.mark.parametrize("name", ["fedrep", "anil"])
def test_a_modules_head_never_travels(made, name):
    model, *_ = made()
    agents = make_agents([(X, Y), (X + 1, Y)], [(X, Y), (X, Y)])
    steps = {"head_steps": 1, "body_steps": 1, "start": "random"} if name == "fedrep" else {"inner_steps": 1}
    run = fj.simulate(fj.method(name, rounds=2, batch=None, **steps), model, agents, seed=0)
    assert (np.asarray(run.uplink_bits)[1:] == 32 * 20).all()
    assert np.isfinite(run.meta).all()
