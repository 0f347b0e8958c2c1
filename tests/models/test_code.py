"""Code runs where its user names it and nowhere else; a PyTorch study equals its twin written in JAX."""

import csv
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.cli import main
from fewjoule.federation.spec import Spec, contract
from fewjoule.models import code
from fewjoule.models.weights import write_model

EXAMPLES = Path(__file__).parents[2] / "examples"

OWN = """
from pathlib import Path
import jax, jax.numpy as jnp
import fewjoule as fj

Path("ran").write_text("once more", "utf-8")

def huber(outputs, targets):
    gap = jnp.abs(outputs - targets)
    return jnp.where(gap < 1, gap**2 / 2, gap - 0.5)

def init(key):
    return {"slope": jax.random.normal(key, (1, 1)), "offset": jnp.zeros(1)}

def line():
    return fj.Model(init, lambda w, x: x @ w["slope"] + w["offset"], loss=huber, input_shape=(1,))
"""

CLASSES = """
def weighed(outputs, targets):
    return -jax.nn.log_softmax(outputs)[jnp.arange(len(targets)), targets] * 2

def sorts():
    start = lambda key: [jax.random.normal(key, (1, 2)), jnp.zeros(2)]
    return fj.Model(start, lambda w, x: x @ w[0] + w[1], loss=weighed)
"""


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(code, "TRUSTED", {})
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own.py").write_text(OWN, "utf-8")
    return tmp_path


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["fewjoule", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code or 0


def test_code_is_trusted_by_its_path_and_then_known_by_its_bare_name(own_code):
    with pytest.raises(fj.InputError, match=r"name its file \(--model\) as python:FOLDER/own\.py:line"):
        fj.model_from_spec("python:own.py:line")
    assert not (own_code / "ran").exists()
    assert code.trust("python:code/own.py:line") == "python:own.py:line"
    model = fj.model_from_spec("python:own.py:line")
    assert model is fj.model_from_spec("python:own.py:line", loss="mse")  # its own loss stays
    assert (model.spec, model.loss_name, model.size) == ("python:own.py:line", "huber", 2)


def test_a_model_card_runs_no_code(own_code):
    code.trust("python:code/own.py:line")
    model = fj.model_from_spec("python:own.py:line")
    write_model("meta.safetensors", model, [2.0, 3.0])
    code.TRUSTED.clear()
    (own_code / "ran").unlink()
    with pytest.raises(fj.InputError, match="runs only where you name its file"):
        fj.read_model("meta.safetensors")
    assert not (own_code / "ran").exists()


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("python:code/none.py:line", "none.py does not exist"),
        ("python:code/own.py:lines", "has no 'lines'"),
        ("python:code/own.py:huber", "huber could not be made by calling it without arguments: TypeError"),
        ("python:code/own.py:Path", "must be a fewjoule.Model or a function that makes one, got "),
        ("python:code/own.py", "write python:net.py:Net"),
        ("python:code/broken.py:x", "broken.py cannot be run: ZeroDivisionError"),
    ],
)
def test_what_cannot_be_a_model_is_said_in_one_line(own_code, spec, said):
    (own_code / "code" / "broken.py").write_text("1 / 0", "utf-8")
    with pytest.raises(fj.InputError, match=said):
        code.trust(spec)


@pytest.mark.slow
def test_a_loss_of_ones_own_through_training_and_fine_tuning(own_code, monkeypatch, capsys):
    (own_code / "agents").mkdir()
    rng = np.random.default_rng(0)
    for i in range(3):
        x = rng.uniform(-1, 1, (50, 1))
        np.savez(own_code / "agents" / f"a{i}.npz", x=x, y=(i + 1) * x + 1)
    spec = "python:code/own.py:line"
    assert run(monkeypatch, "train", "agents", "--model", spec, "--method", "fedavg", "-o", "m.safetensors") == 0
    assert run(monkeypatch, "adapt", "m.safetensors", "agents/a2.npz", "--model", spec, "--steps", "200",
               "--learning-rate", "0.1", "-o", "own.safetensors") == 0  # fmt: skip
    found = fj.read_model("own.safetensors", model=fj.model_from_spec("python:own.py:line"))
    np.testing.assert_allclose(found.model.apply(found.vector, jnp.asarray([[0.0], [1.0]]))[:, 0], [1, 4], atol=0.1)
    assert run(monkeypatch, "predict", "own.safetensors", "agents/a2.npz", "--model", spec, "-o", "said.csv") == 0
    with open("said.csv", encoding="utf-8") as file:
        assert len(list(csv.reader(file))) == 51


def test_an_own_loss_sees_samples_one_by_one_so_padding_never_counts(own_code):
    code.trust("python:code/own.py:line")
    model = fj.model_from_spec("python:own.py:line")
    pairs = [(np.ones((n, 1)), np.zeros((n, 1))) for n in (2, 5)]
    agents = fj.make_agents(pairs)
    first = jax.tree.map(lambda a: jnp.asarray(a)[0], agents.data.train)
    assert float(model.loss(jnp.asarray([0.0, 3.0]), first)) == pytest.approx(2.5)


def test_class_targets_under_an_own_regression_loss_are_refused():
    def gap(outputs, targets):
        return jnp.abs(outputs[:, 0] - targets.reshape(-1))

    model = fj.Model(lambda key: jnp.ones((1, 1)), lambda w, x: x @ w, loss=gap)
    with pytest.raises(fj.InputError, match=r"class 7, but .* outputs for 2 at most.*make the targets real numbers"):
        fj.train_locally(model, fj.make_agents([(np.ones((2, 1)), np.array([0, 7]))]))
    fj.train_locally(model, fj.make_agents([(np.ones((2, 1)), np.array([0, 1]))]), max_steps=1)  # one logit for two
    fj.train_locally(model, fj.make_agents([(np.ones((2, 1)), np.array([0.0, 7.0]))]), max_steps=1)


def raising(outputs, targets):
    raise KeyError("my loss broke")


@pytest.mark.parametrize(
    ("apply", "loss", "said"),
    [
        (
            lambda w, x: x @ w,
            raising,
            r"the loss raising cannot be computed for outputs \[1\] .* KeyError: 'my loss broke'",
        ),
        (lambda w, x: x @ w, lambda outputs: 0.0, "cannot be computed .* TypeError"),
        (lambda w, x: {}["oops"], "mse", r"which Model\(custom, 1 weights, mse\) does not take \(KeyError: 'oops'\)"),
    ],
)
def test_a_users_code_that_raises_is_one_line(apply, loss, said):
    agents = fj.make_agents([(np.ones((2, 1)), np.ones((2, 1)))])
    model = fj.Model(lambda key: jnp.ones((1, 1)), apply, loss=loss)
    with pytest.raises(fj.InputError, match=said):
        fj.train_locally(model, agents)


def test_a_model_without_weights_is_refused():
    with pytest.raises(fj.InputError, match="a model needs weights, got none"):
        fj.Model(lambda key: [], lambda w, x: x)


@pytest.mark.slow
def test_classes_stay_classes_with_a_loss_of_ones_own(own_code, monkeypatch):
    (own_code / "code" / "own.py").write_text(OWN + CLASSES, "utf-8")
    (own_code / "agents").mkdir()
    rng = np.random.default_rng(0)
    for i in range(2):
        x = rng.uniform(-1, 1, (60, 1))
        np.savez(own_code / "agents" / f"a{i}.npz", x=x, y=np.where(x[:, 0] > 0, "cat", "dog"))
    spec = "python:code/own.py:sorts"
    assert run(monkeypatch, "train", "agents", "--model", spec, "--set", "rounds=2", "--local-steps", "500",
               "--local-learning-rate", "0.5", "-o", "m.safetensors") == 0  # fmt: skip
    assert run(monkeypatch, "adapt", "m.safetensors", "agents/a1.npz", "--model", spec, "-o", "own.safetensors") == 0
    assert run(monkeypatch, "predict", "own.safetensors", "agents/a1.npz", "--model", spec, "-o", "said.csv") == 0
    said = Path("said.csv").read_text("utf-8").splitlines()
    assert said[0] == "class,p_cat,p_dog"
    right = [row.split(",")[0] == y for row, y in zip(said[1:], np.load("agents/a1.npz")["y"], strict=True)]
    assert np.mean(right) > 0.9


def test_a_server_s_message_runs_no_code_but_may_name_what_the_site_trusts(own_code):
    model = {"spec": "python:code/own.py:line", "init": "glorot", "loss": "huber"}
    run = Spec({"method": "fedavg", "rounds": 1}, model, ("a",))
    with pytest.raises(fj.InputError, match="runs only where you name its file"):
        contract(run)
    run = replace(run, model=model | {"spec": "python:own.py:line"})
    with pytest.raises(fj.InputError, match=r"name it each for themselves \(--module\)"):
        contract(run)
    assert not (own_code / "ran").exists()
    code.trust("python:code/own.py:line")
    assert contract(run).model.loss_name == "huber"


TWIN = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp
import fewjoule as fj
sys.path.insert(0, str(Path({examples!r})))
from torch_cnn import Cnn

torches = fj.from_torch(Cnn(), loss="cross_entropy")

def conv(x, weight, bias):
    return jax.lax.conv_general_dilated(x, weight, (2, 2), "VALID") + bias[:, None, None]

def apply(w, x):
    x = jax.nn.relu(conv(x.reshape(-1, 1, 28, 28), w[0], w[1]))
    x = conv(x, w[2], w[3])
    groups = x.reshape(len(x), 2, -1)
    mean, variance = groups.mean(-1, keepdims=True), groups.var(-1, keepdims=True)
    x = ((groups - mean) / jnp.sqrt(variance + 1e-5)).reshape(x.shape) * w[4][:, None, None] + w[5][:, None, None]
    return jax.nn.relu(x).reshape(len(x), -1) @ w[6].T + w[7]

twin = fj.Model(lambda key: torches.unflatten(torches.init(key)), apply, loss="cross_entropy")
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torchax") is None, reason="the extra torch is not installed")
def test_a_study_of_a_torch_module_equals_its_twin_in_jax(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(EXAMPLES.parent)
    (tmp_path / "twin.py").write_text(TWIN.format(examples=str(EXAMPLES)), "utf-8")
    study = (EXAMPLES / "torch_cnn.toml").read_text("utf-8")
    study = study.replace("torch:examples/torch_cnn.py:Cnn", f"python:{tmp_path}/twin.py:twin")
    (tmp_path / "twin.toml").write_text(study, "utf-8")
    short = ("--seeds", "0,1", "--set", "local.max_steps=10", "--set", "methods.fedavg.local_steps=3")
    short += ("--set", "evaluation.tasks=5", "--set", "family.samples=30")
    for name, file in (("torch", EXAMPLES / "torch_cnn.toml"), ("jax", tmp_path / "twin.toml")):
        assert run(monkeypatch, "run", file, "--out", tmp_path / name, *short) == 0
    tables = [(tmp_path / name / "evaluation.csv").read_text("utf-8").splitlines() for name in ("torch", "jax")]
    torches, twins = ([(r["method"], float(r["loss"])) for r in csv.DictReader(table)] for table in tables)
    assert [name for name, _ in torches] == [name for name, _ in twins]
    np.testing.assert_allclose([loss for _, loss in torches], [loss for _, loss in twins], rtol=1e-3, atol=1e-4)
