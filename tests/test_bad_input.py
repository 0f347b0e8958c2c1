"""A user's mistake is one clear error that names the value and the cure, before anything compiles."""

import ast
import inspect
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import monitoring

import fewjoule as fj
from fewjoule.errors import is_whole

COMPILED: list[str] = []


def _note(event, duration, **_):
    if "backend_compile" in event:
        COMPILED.append(event)


monitoring.register_event_duration_secs_listener(_note)

METHOD_MISTAKES = {
    "rounds must be at least 1, got 0": lambda: fj.meta_backward(rounds=0),
    "rounds must be a whole number of at least 1, got 2.5": lambda: fj.fedavg(rounds=2.5),
    "rounds must be a whole number of at least 1, got True": lambda: fj.fedavg(rounds=True),
    "radius must be 0 or more, got -0.1": lambda: fj.meta_backward(radius=-0.1),
    "radius must be 0 or more, got nan": lambda: fj.meta_backward(radius=float("nan")),
    "radii must not grow towards round 0, got 0.2 after 0.1; sort them falling": lambda: fj.meta_backward(
        rounds=2, radius=[0.1, 0.2]
    ),
    "must not grow towards round 0, got first 0.1 and last 1.*swap them": lambda: fj.Schedule("linear", 0.1, 1),
    "one per round: 3, got 2": lambda: fj.meta_backward(rounds=3, radius=[0.2, 0.1]),
    "unknown radius 'liner'; did you mean 'linear'": lambda: fj.meta_backward(radius="liner"),
    "unknown schedule 'steps'": lambda: fj.Schedule("steps"),
    "first of a radius schedule must be a finite number of 0 or more, got -1": lambda: fj.Schedule("linear", -1),
    "geometric schedule needs first and last above 0": lambda: fj.Schedule("geometric", last=0),
    "constant schedule has no last value": lambda: fj.Schedule("constant", 1, 0.5),
    "radius must be a name, a number, a list of numbers or a Schedule, got {'kind'": lambda: fj.meta_backward(
        radius={"kind": "linear"}
    ),
    "radius needs a kind": lambda: fj.method("meta_backward", radius={"first": 1}),
    "unknown key of radius 'kid'; did you mean 'kind'": lambda: fj.method("meta_backward", radius={"kid": "linear"}),
    "learning_rate must be a finite number above 0, got -1": lambda: fj.fedsgd(learning_rate=-1),
    "learning_rate must be a finite number above 0, got inf": lambda: fj.fedsgd(learning_rate=float("inf")),
    "batch must be at least 1, got 0": lambda: fj.fedsgd(batch=0),
    "start must be 'average' or 'random', got 'zero'": lambda: fj.fedavg(start="zero"),
    "local_steps must be at least 1, got 0": lambda: fj.reptile(local_steps=0),
    "inner_steps must be at least 1, got 0": lambda: fj.maml(inner_steps=0),
    "cg_steps must be at least 1, got 0": lambda: fj.imaml(cg_steps=0),
    "regularisation must be a finite number above 0, got 0": lambda: fj.imaml(regularisation=0),
    "unknown optimiser 'sdg'; did you mean 'sgd'": lambda: fj.maml(outer_optimiser="sdg"),
    "unknown method 'meta-backward'; did you mean 'meta_backward'": lambda: fj.method("meta-backward"),
    "unknown setting of method 'fedavg': 'round'; did you mean 'rounds'": lambda: fj.method("fedavg", round=3),
    "method 'random' has no settings, got 'rounds'": lambda: fj.method("random", rounds=3),
    "agent must be at least 0, got -1": lambda: fj.local_model(agent=-1),
    "momentum must be at least 0 and below 1, got 'much'": lambda: fj.fedavgm(momentum="much"),
    "epsilon must be 0 or more, got 'little'": lambda: fj.fedexp(epsilon="little"),
    "learning_rate must be a finite number above 0, got 0": lambda: fj.lean(
        weights=20_000, budget_joules=1, learning_rate=0
    ),
}


@pytest.mark.parametrize("match", METHOD_MISTAKES)
def test_methods_are_checked_when_built(match):
    with pytest.raises(fj.InputError, match=match):
        METHOD_MISTAKES[match]()


SETTINGS = [(name, setting) for name, build in fj.METHODS.items() for setting in inspect.signature(build).parameters]


@pytest.mark.parametrize(("name", "setting"), SETTINGS)
def test_every_setting_is_checked(name, setting):
    for nonsense in ("nonsense", -1, {}):
        with pytest.raises(fj.InputError, match=f"{setting}|{nonsense}"):
            fj.method(name, **{setting: nonsense})


@pytest.mark.parametrize("value", [2**31, 2**70, 10**400, 1e300])
@pytest.mark.parametrize(("name", "setting"), [s for s in SETTINGS if "rate" in s[1] or s[1] in ("floor", "radius")])
def test_trial_20_a_number_that_jax_cannot_hold_is_refused_or_taken_as_real(name, setting, value):
    needed = {"weights": 2000, "budget_joules": 1} if name == "lean" else {}
    try:
        method = fj.method(name, **needed | {setting: value})
    except fj.InputError:
        assert value > 3e38
    else:
        assert not is_whole(dict(method.settings).get(setting, 0.0)) or setting == "radius"


MODEL = fj.mlp([1, 6, 5, 1])
WIDE = fj.mlp([2, 3, 1])
CLASSIFIER = fj.mlp([1, 3, 2], loss="cross_entropy")
CALLS = {
    "inputs of shape \\[1\\], which Model\\(mlp:2-3-1": lambda a, m: fj.train_locally(WIDE, a),
    "real numbers, but the model's loss is cross_entropy; use mse": lambda a, m: fj.train_locally(CLASSIFIER, a),
    "targets of width 1, but Model\\(mlp:1-2.* has 2 outputs": lambda a, m: fj.train_locally(fj.mlp([1, 2]), a),
    "must give \\[samples, outputs\\] for a batch, got \\[20\\]": lambda a, m: fj.train_locally(
        fj.Model(lambda key: jnp.ones(1), lambda w, x: (w * x)[:, 0]), a
    ),
    "max_steps must be at least 1, got 0": lambda a, m: fj.train_locally(MODEL, a, max_steps=0),
    "gradient_tolerance must be 0 or more, got -1": lambda a, m: fj.train_locally(MODEL, a, gradient_tolerance=-1),
    "unknown optimiser 'adm'; did you mean 'adam'": lambda a, m: fj.train_locally(MODEL, a, optimiser="adm"),
    "a seed must be a whole number from 0": lambda a, m: fj.train_locally(MODEL, a, seed=-1),
    "starts from the agents' own models; pass local=train_locally": lambda a, m: fj.simulate(fj.average(), MODEL, a),
    "or set start='random'": lambda a, m: fj.simulate(fj.fedavg(), MODEL, a),
    "\\[seeds, agents, weights\\] = \\[1, 3, 53\\], got \\[1, 2, 53\\]": lambda a, m: fj.simulate(
        fj.average(), MODEL, a, m[:2]
    ),
    "local models must be finite": lambda a, m: fj.simulate(fj.average(), MODEL, a, np.full((3, 53), np.nan)),
    "agent must be below the number of agents, 3, got 5": lambda a, m: fj.simulate(
        fj.local_model(agent=5), MODEL, a, m
    ),
    "participation must be above 0 and at most 1, got 0": lambda a, m: fj.simulate(
        fj.fedsgd(), MODEL, a, m, participation=0
    ),
    "availability must have shape \\[rounds, agents\\] = \\[2, 3\\], got \\[3, 2\\]": lambda a, m: fj.simulate(
        fj.fedsgd(rounds=2), MODEL, a, m, availability=np.ones((3, 2))
    ),
    "participation or availability, not both": lambda a, m: fj.simulate(
        fj.fedsgd(rounds=2), MODEL, a, m, availability=np.ones((2, 3)), participation=0.5
    ),
    "meta must be vectors of 53 weights, got shape \\[3, 7\\]": lambda a, m: fj.adapt(MODEL, np.ones((3, 7)), TASKS),
    "steps must be one or more whole numbers of at least 0, got \\[-1\\]": lambda a, m: fj.adapt(
        MODEL, m, TASKS, steps=[-1]
    ),
    "steps must rise without repetition, got \\[5, 1\\]": lambda a, m: fj.adapt(MODEL, m, TASKS, steps=[5, 1]),
    "learning_rate must be a finite number above 0, got 0": lambda a, m: fj.adapt(MODEL, m, TASKS, learning_rate=0),
    "tasks' support have inputs of shape \\[1\\]": lambda a, m: fj.adapt(WIDE, np.ones(WIDE.size), TASKS),
}
TASKS = fj.sinusoid.new_tasks(2, shots=3, queries=3)


@pytest.mark.parametrize("match", CALLS)
def test_calls_are_checked_before_anything_compiles(match, agents, local_models):
    models = np.asarray(local_models)
    del COMPILED[:]
    with pytest.raises(fj.InputError, match=match):
        CALLS[match](agents, models)
    assert not COMPILED


def test_the_listener_would_have_seen_a_compilation():
    del COMPILED[:]
    jax.jit(lambda x: x * 3.25 + 1.125)(jnp.ones(3)).block_until_ready()
    assert COMPILED


def test_every_agent_is_checked_not_only_the_first():
    agents = fj.make_agents([(np.zeros((3, 1)), np.array([0, 1, 1])), (np.zeros((3, 1)), np.array([0, 1, 7]))])
    with pytest.raises(fj.InputError, match=r"agents have class 7, but .* has outputs for 2 at most"):
        fj.train_locally(CLASSIFIER, agents)


def test_validation_samples_are_asked_for():
    agents = fj.sinusoid.agents([1, 2], samples=5, validation=0)
    for method in (fj.maml(), fj.fomaml(), fj.imaml()):
        with pytest.raises(fj.InputError, match="needs validation samples of every agent; give make_agents"):
            fj.simulate(method, MODEL, agents, np.zeros((2, MODEL.size), np.float32))


def test_agents_of_other_seeds_are_refused():
    agents = fj.sinusoid.agents([1, 2], samples=5, seed=[1, 2])
    with pytest.raises(fj.InputError, match=r"samples for seeds \[1, 2\], got seed \[0\]"):
        fj.train_locally(MODEL, agents)


def test_allowed_classes_must_fit_the_model():
    agents = fj.make_agents([(np.zeros((3, 1)), np.array([0, 1, 1]))], allowed=[[0, 1]], classes=5)
    with pytest.raises(fj.InputError, match=r"allowed classes out of 5, but .* has 2 outputs; set classes"):
        fj.train_locally(CLASSIFIER, agents)


@pytest.mark.parametrize("room", ["tasks", "models", "codecs", "methods"])
def test_trial_21_a_librarys_message_names_what_python_users_set(room):
    """A flag of the command line stands in brackets behind the words for Python, never alone."""
    for path in sorted((Path(fj.__file__).parent / room).rglob("*.py")):
        texts = [n.value for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Constant)]
        for text in (t for t in texts if isinstance(t, str) and re.search(r"(?<![\w-])--[a-z]", t)):
            assert not re.search(r"(?<![\w(-])--[a-z]", text), f"{path}: {text}"
