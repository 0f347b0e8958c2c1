"""PyTorch is the oracle: outputs and gradients of its own modules, its own draws of a start, its own state_dict."""

import threading
import warnings
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.tasks.samples import Samples

if find_spec("torchax") is None:
    pytest.skip("the extra torch is not installed", allow_module_level=True)
torch = pytest.importorskip("torch")
nn = torch.nn


class ConvGru(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.gru, self.last = nn.Conv1d(3, 8, 3), nn.GRU(8, 6, batch_first=True), nn.Linear(6, 2)

    def forward(self, x):
        return self.last(self.gru(self.conv(x).transpose(1, 2))[0][:, -1])


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.embed, self.last = nn.Embedding(10, 16), nn.Linear(16, 2)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.register_buffer("places", torch.arange(7 * 16).reshape(7, 16) / 112)

    def forward(self, x):
        return self.last(self.encoder(self.embed(x.long()) + self.places).mean(1))


def norm_mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(inplace=True), nn.Linear(8, 2))


def conv_net():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(196, 2)
    )


NETS = {"norm": (norm_mlp, (4,)), "conv": (conv_net, (1, 14, 14)), "gru": (ConvGru, (3, 9)), "encoder": (Encoder, (7,))}


def built(name):
    torch.manual_seed(0)
    make, shape = NETS[name]
    rng = np.random.default_rng(1)
    x = rng.integers(0, 10, (5, *shape)) if name == "encoder" else rng.normal(size=(5, *shape))
    return make(), x.astype(np.float32), rng.normal(size=(5, 2)).astype(np.float32)


def vector_of(module):
    return np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])


@pytest.mark.parametrize("name", NETS)
def test_outputs_and_gradients_are_those_of_torch(name):
    module, x, y = built(name)
    model = fj.from_torch(module)
    vector = vector_of(module)
    assert model.size == len(vector)
    np.testing.assert_allclose(model.apply(vector, x), module(torch.tensor(x)).detach(), atol=1e-5)
    nn.functional.mse_loss(module(torch.tensor(x)), torch.tensor(y)).backward()
    theirs = np.concatenate([p.grad.numpy().ravel() for p in module.parameters()])
    samples = Samples(x, y, np.ones(5, np.float32))
    two = jax.jit(jax.vmap(jax.grad(model.loss), (0, None)))(jnp.stack([vector, vector]), samples)
    np.testing.assert_allclose(two[1], theirs, atol=1e-5)


def test_weights_go_back_exactly_and_tied_ones_to_all_their_names():
    module = norm_mlp()
    model = fj.from_torch(module)
    vector = np.asarray(model.init(jax.random.key(3)))
    other = norm_mlp()
    other.load_state_dict(fj.to_torch(model, vector, other))
    np.testing.assert_array_equal(vector_of(other), vector)
    tied = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    tied[2].weight = tied[0].weight
    model = fj.from_torch(tied)
    assert model.size == 3 * 3 + 3 + 3
    state = fj.to_torch(model, np.arange(15.0), tied)
    assert torch.equal(state["2.weight"], state["0.weight"])
    x = np.ones((2, 3), np.float32)
    tied.load_state_dict(state)
    np.testing.assert_allclose(model.apply(jnp.arange(15.0), x), tied(torch.tensor(x)).detach(), rtol=1e-5)
    with pytest.raises(fj.InputError, match=r"'0\.weight' does not fit; give the same module"):
        fj.to_torch(model, np.arange(15.0), norm_mlp())


def test_a_start_is_drawn_as_the_layers_draw_it():
    model = fj.from_torch(nn.Sequential(nn.Linear(100, 200), nn.LayerNorm(200), nn.Embedding(50, 60)))
    one, again, other = (model.tensors(model.init(jax.random.key(k))) for k in (0, 0, 1))
    bound = 1 / np.sqrt(100)
    assert 0.99 * bound < np.abs(one["0.weight"]).max() <= bound  # uniform, Kaiming with a = sqrt(5)
    assert one["0.weight"].std() == pytest.approx(bound / np.sqrt(3), rel=0.02)
    assert one["2.weight"].std() == pytest.approx(1, rel=0.05)  # standard normal
    assert (one["1.weight"] == 1).all()
    assert (one["1.bias"] == 0).all()
    assert (one["0.weight"] == again["0.weight"]).all()
    assert (one["0.weight"] != other["0.weight"]).all()
    attention = fj.from_torch(nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0))
    assert (attention.tensors(attention.init(jax.random.key(0)))["self_attn.out_proj.bias"] == 0).all()


def test_a_trained_module_starts_where_it_is():
    module = norm_mlp()
    model = fj.from_torch(module, fresh=False)
    np.testing.assert_array_equal(model.init(jax.random.key(7)), vector_of(module))


def test_two_threads_may_trace_one_module():
    module, x, _ = built("gru")
    model, vector, out = fj.from_torch(module), vector_of(module), []

    def trace(k):
        out.append(jax.jit(lambda v: model.apply(v, x) + k)(vector))

    threads = [threading.Thread(target=trace, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first = sorted(float(o[0, 0]) for o in out)
    np.testing.assert_allclose(first, float(model.apply(vector, x)[0, 0]) + np.arange(4), atol=1e-5)


class Counting(nn.Linear):
    def __init__(self):
        super().__init__(2, 1)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen.add_(1)
        return super().forward(x)


class Noisy(nn.Linear):
    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


class Deciding(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else -super().forward(x)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), "batch normalisation .1., .* use GroupNorm or LayerNorm"),
        (nn.InstanceNorm1d(2, track_running_stats=True), "set track_running_stats=False"),
        (nn.LazyLinear(3), "no shape yet; call the module once"),
        (nn.Linear(2, 1).double(), "must be float32, got torch.float64"),
        (Counting(), "changes its buffer 'seen'"),
        (Noisy(2, 1), "draws random numbers"),
        (Deciding(2, 1), "decides by the values of its inputs"),
        (nn.LSTM(2, 1), "must give one tensor, got tuple"),
        (lambda x: x, "takes a torch.nn.Module, got function"),
    ],
)
def test_what_no_pure_function_can_do_is_refused(module, said):
    def use():
        model = fj.from_torch(module)
        jax.jit(model.apply)(jnp.zeros(model.size), jnp.ones((2, 2)))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(fj.InputError, match=said):
            use()


def test_dropout_is_left_out_with_a_warning():
    module = nn.Sequential(nn.Linear(2, 50), nn.Dropout(0.5), nn.Linear(50, 1))
    with pytest.warns(UserWarning, match="dropout is left out: 1"):
        model = fj.from_torch(module)
    x = np.ones((3, 2), np.float32)
    np.testing.assert_allclose(model.apply(vector_of(module), x), module.eval()(torch.tensor(x)).detach(), atol=1e-6)
