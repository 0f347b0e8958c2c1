"""What every method promises, checked on all of them."""

import dataclasses
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule.methods.method import Broadcast, Everyone
from fewjoule.randomness import agent_id, key_for, round_key
from fewjoule.simulation.rules import (
    combine,
    common_start,
    learned,
    loss_of,
    own_model,
    parts,
    start_of,
    told,
    uses_local,
    whole,
)
from fewjoule.tasks.samples import AgentData, Agents

CASES = {
    "average": fj.average(),
    "local": fj.local_model(agent=1),
    "random": fj.random_start(),
    "fisher": fj.fisher(),
    "fedsgd": fj.fedsgd(rounds=4, batch=5),
    "fedavg": fj.fedavg(rounds=4, local_steps=3, batch=5),
    "reptile": fj.reptile(rounds=4, local_steps=3, batch=5, meta_learning_rate=0.5),
    "fedavgm": fj.fedavgm(rounds=4, local_steps=3, batch=5),
    "fedexp": fj.fedexp(rounds=4, local_steps=3, batch=5),
    "fedprox": fj.fedprox(rounds=4, local_steps=3, batch=5),
    "fedrep": fj.fedrep(rounds=4, head_steps=2, body_steps=3, batch=5),
    "ditto": fj.ditto(rounds=4, local_steps=2, personal_steps=3, batch=5),
    "lean": fj.lean(target="match", training_steps=40, batch=5),
    "maml": fj.maml(rounds=4, inner_steps=2, batch=5),
    "fomaml": fj.fomaml(rounds=4, inner_steps=2, batch=5),
    "anil": fj.anil(rounds=4, inner_steps=2, batch=5),
    "meta_sgd": fj.meta_sgd(rounds=4, inner_steps=2, batch=5),
    "protonet": fj.protonet(rounds=4, ways=2, shots=2, queries=3),
    # its system must be positive definite, or conjugate gradients magnify the rounding of some processors a hundredfold
    "imaml": fj.imaml(rounds=4, inner_steps=3, batch=5, regularisation=8.0),
    "meta_backward": fj.meta_backward(rounds=4, batch=5, radius="linear"),
    "answers": fj.answers(questions="range:-2:2", number=7, episodes=3, steps=2),
    "invented": fj.invented(questions="range:-2:2", number=7, episodes=3, steps=2),
}
AUTO = fj.meta_backward(rounds=4, batch=5, radius="auto")
TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
"""One agent alone against its row of the vectorised run: float32 sums in another order, over four rounds."""

PLAIN = {name: method for name, method in CASES.items() if name != "lean"} | {"meta_backward auto": AUTO}
AKIN = (
    "reptile",
    "fedsgd",
    "fedavgm",
    "fedexp",
    "fedprox",
    "ditto",
    "anil",
    "protonet",
    "meta_sgd",
    "fomaml",
    "invented",
    "answers",
    "local",
    "random",
    "meta_backward auto",
)
"""Each has a near relation among the others, or a test of its own: left to the slow stage."""


def each_of(methods):
    """A test for each of these methods, by name; of those that are akin in the slow stage."""
    marks = {name: [pytest.mark.slow] if name in AKIN else [] for name in methods}
    return pytest.mark.parametrize("method", [pytest.param(m, id=n, marks=marks[n]) for n, m in methods.items()])


every_method = each_of(CASES | {"meta_backward auto": AUTO})
uncoded_method = each_of(PLAIN)
"""`by_hand` sends float32; coded methods are held to their own tests and to real federations."""


@pytest.fixture(scope="module")
def classes():
    """What `protonet` needs: classes, three of them, of which the second agent has two."""
    rng = np.random.default_rng(2)
    pairs = [(rng.normal(size=(n, 2)), rng.integers(0, k, n)) for n, k in ((20, 3), (13, 2), (17, 3))]
    model = fj.mlp([2, 4, 3], loss="cross_entropy")
    local = jnp.stack([model.init(jax.random.key(k)) for k in (1, 2, 3)])
    return model, fj.make_agents(pairs, names=["red", "green", "blue"]), local


def of_classes(request):
    method = getattr(request.node, "callspec", None) and request.node.callspec.params.get("method")
    return bool(method) and method.name == "protonet"


@pytest.fixture
def model(request, model, classes):
    return classes[0] if of_classes(request) else model


@pytest.fixture
def agents(request, agents, classes):
    return classes[1] if of_classes(request) else agents


@pytest.fixture
def local_models(request, local_models, classes):
    return classes[2] if of_classes(request) else local_models


simulate = partial(fj.simulate, keep_paths=True, diverged_at=np.inf)


def test_all_methods_are_here():
    assert set(CASES) == set(fj.METHODS)


def unpadded(samples):
    real = int(samples.mask.sum())
    return samples._replace(x=samples.x[:real], y=samples.y[:real], mask=samples.mask[:real])


@cache
def compiled_agent(method, model):
    return jax.jit(
        lambda state, broadcast, d, key, seed: method.agent(
            loss_of(method, model), state, told(broadcast, seed), d, key
        )
    )


@cache
def compiled_probe(method, model):
    return jax.jit(lambda average, d, key: method.probe(model.loss, average, d, key))


def own_models(method, model, models, seed):
    """[agents, d] the body first: the local models, or the seed's start where a method does not ask for them."""
    if not uses_local(method):
        return jnp.stack([common_start(method, model, seed)] * len(models))
    return parts(method, model).body_first(models)


def by_hand(method, model, agents, models, seed, availability=None):
    """The rounds as a federation runs them: every agent alone, one after another, in plain Python.

    The second agent comes without padding, the others with theirs: it must make no difference.
    """
    data = [jax.tree.map(lambda a, i=i: a[i], agents.data) for i in range(len(agents))]
    data[1] = AgentData(*(unpadded(samples) for samples in data[1]))
    common = common_start(method, model, seed)
    split, bound = parts(method, model), partial(whole, method, model, common=common)
    models = own_models(method, model, models, seed)
    start = start_of(method, models[:, : split.body], common[: split.body])
    probes = None
    if method.probe is not None:
        root = key_for(seed, "probe")
        probe = compiled_probe(method, model)
        probes = jnp.stack(
            [
                probe(start.model, d, jax.random.fold_in(root, agent_id(n)))
                for d, n in zip(data, agents.names, strict=True)
            ]
        )
    server, broadcast = method.init(start, probes)
    states = [method.agent_init(own_model(method, model, m), m[: split.body]) for m in models]
    learning_rate = compiled_agent(method, model)
    meta_path, agent_path = [bound(broadcast.model)], []
    for k in range(method.rounds):
        messages, row = [], []
        for i, name in enumerate(agents.names):
            key = round_key(key_for(seed, "round"), k, agent_id(name))
            state, message, info = learning_rate(states[i], broadcast, data[i], key, seed)
            row.append(split.as_model(info.model))
            if availability is None or availability[k][i]:
                states[i] = state
                messages.append(message)
        if messages:
            mean = jax.tree.map(lambda *m: sum(m) / len(m), *messages)
            if method.combine == "all":
                mean = Everyone(jnp.stack(messages), jnp.ones(len(messages)))
            server, broadcast = method.server(server, mean)
        meta_path.append(bound(broadcast.model))
        agent_path.append(jnp.stack(row))
    if method.learn is not None:
        messages = mean if method.rounds else None
        meta_path[-1] = jax.jit(lambda m: learned(method, model, start.model, m, seed))(messages)
    return jnp.stack(meta_path), jnp.stack(agent_path) if agent_path else jnp.zeros((0, *models.shape))


@uncoded_method
def test_an_agent_alone_and_without_padding_gives_its_row(method, model, agents, local_models):
    run = simulate(method, model, agents, local_models, seed=3)
    metas, rows = by_hand(method, model, agents, local_models, 3)
    np.testing.assert_allclose(run.meta_path, metas, **TOLERANCE)
    np.testing.assert_allclose(run.agent_path, rows, **TOLERANCE)
    np.testing.assert_array_equal(run.meta_path[-1], run.meta)


@pytest.mark.parametrize("name", ["fedsgd", "fedavgm", "fisher", "maml", "meta_backward"])  # each kind of state
def test_absent_agents_keep_their_state_and_an_empty_round_changes_nothing(name, model, agents, local_models):
    method = CASES[name]
    there = np.array([[1, 1, 0], [0, 0, 0], [0, 1, 1], [1, 0, 0]], bool)[: method.rounds]
    run = simulate(method, model, agents, local_models, seed=3, availability=there)
    metas, rows = by_hand(method, model, agents, local_models, 3, there)
    np.testing.assert_allclose(run.meta_path, metas, **TOLERANCE)
    np.testing.assert_allclose(run.agent_path, np.where(there[..., None], rows, np.nan), **TOLERANCE)
    if method.rounds > 1:
        np.testing.assert_array_equal(run.meta_path[2], run.meta_path[1])
        np.testing.assert_array_equal(run.trace.present, [2, 0, 2, 1])
        assert np.isnan(run.trace.loss[1])
        assert np.isnan(run.trace.spread[1])
        assert run.trace.step[1] == 0
        nobody = np.zeros((method.rounds, 3), bool)
        idle = simulate(method, model, agents, local_models, seed=3, availability=nobody)
        np.testing.assert_array_equal(idle.meta, idle.start)


@uncoded_method
def test_zero_rounds_is_the_start(method, model, agents, local_models):
    """What stands before the first round; `simulate` without rounds gives just that."""
    shared = parts(method, model).body
    start = start_of(method, local_models[:, :shared], common_start(method, model, jnp.uint32(0))[:shared])
    starts = {"average": local_models.mean(0), "random": model.init(key_for(0, "start")), 1: local_models[1]}
    np.testing.assert_allclose(start.model, starts[method.start][:shared], rtol=1e-6, atol=1e-7)
    probes = None if method.probe is None else jnp.ones((3, 3))
    np.testing.assert_array_equal(method.init(start, probes)[1].model, start.model)
    if method in (CASES["fedavg"], CASES["maml"], CASES["meta_backward"]):
        run = simulate(dataclasses.replace(method, rounds=0), model, agents, local_models)
        np.testing.assert_allclose(run.meta, start.model, rtol=1e-6, atol=1e-7)
        assert run.trace.loss.shape == (0,)


@every_method
def test_same_seed_same_bytes(method, model, agents, local_models):
    def once(seed):
        return np.asarray(simulate(method, model, agents, local_models, seed=seed).meta).tobytes()

    assert once(5) == once(5)
    if method.rounds > 1:
        assert once(6) != once(5)


@pytest.mark.parametrize("name", ["fedavg", pytest.param("imaml", marks=pytest.mark.slow), "meta_backward"])
def test_more_padding_and_other_seeds_beside_it_change_nothing(name, model, agents, local_models):
    def longer(samples):
        grown = jax.tree.map(lambda a: jnp.concatenate([a, jnp.repeat(a[:, :1], 11, 1)], 1), samples)
        return grown._replace(mask=jnp.concatenate([samples.mask, jnp.zeros((3, 11))], 1))

    padded = Agents(AgentData(longer(agents.data.train), longer(agents.data.validation)), agents.names)
    many = simulate(CASES[name], model, padded, local_models, seed=[9, 3])
    one = simulate(CASES[name], model, agents, local_models, seed=3)
    np.testing.assert_allclose(many.meta[1], one.meta, **TOLERANCE)
    np.testing.assert_allclose(many.trace.loss[1], one.trace.loss, **TOLERANCE)


@every_method
def test_order_of_agents_changes_nothing(method, model, agents, local_models):
    order = [2, 0, 1]
    turned = method if method.name != "local" else fj.local_model(agent=order.index(1))
    a = simulate(method, model, agents, local_models, seed=3)
    b = simulate(turned, model, agents.select(order), local_models[jnp.asarray(order)], seed=3)
    np.testing.assert_allclose(b.meta, a.meta, **TOLERANCE)
    np.testing.assert_allclose(b.trace.loss, a.trace.loss, **TOLERANCE)
    np.testing.assert_allclose(b.agent_path, a.agent_path[:, jnp.asarray(order)], **TOLERANCE)


@uncoded_method
def test_agent_and_server_trace_in_float32_without_silent_promotion(method, model, agents, local_models):
    data, shared = jax.tree.map(lambda a: a[0], agents.data), parts(method, model).body
    common = common_start(method, model, 0)[:shared]

    def one_round(models, keys):
        start = start_of(method, models[:, :shared], common)
        probes = None if method.probe is None else method.probe(model.loss, start.model, data, keys[0])[None]
        server, broadcast = method.init(start, probes)
        states = jax.vmap(lambda m: method.agent_init(own_model(method, model, m), m[:shared]))(models)
        known = told(broadcast, jnp.uint32(0))
        loss = loss_of(method, model)
        _, messages, info = jax.vmap(lambda s, key: method.agent(loss, s, known, data, key))(states, keys)
        combined = combine(messages, how=method.combine)
        _, broadcast = method.server(server, combined)
        if method.learn is not None:
            received = combined if method.rounds else None
            broadcast = broadcast._replace(model=learned(method, model, start.model, received, jnp.uint32(0)))
        return broadcast, messages, info._replace(packed=None, size_bytes=None)

    uses_adam = method.name in (
        "maml",
        "fomaml",
        "anil",
        "meta_sgd",
        "protonet",
    )  # optax's own bias correction mixes int32 and float32
    with jax.numpy_dtype_promotion("standard" if uses_adam else "strict"):
        broadcast, messages, info = jax.eval_shape(
            jax.jit(one_round), local_models, jax.random.split(jax.random.key(0), 3)
        )
    assert {leaf.dtype for leaf in jax.tree.leaves((broadcast, messages, info))} == {jnp.dtype(jnp.float32)}
    assert broadcast.model.shape == (shared,)
    assert info.model.shape == (3, model.size)


@pytest.mark.parametrize("name", fj.METHODS)
def test_description_builds_the_same_method(name):
    described = CASES[name].describe()
    assert fj.method(described.pop("method"), **described) is CASES[name]


def test_two_methods_of_one_name_do_not_share_programs(model, agents, local_models):
    """A researcher's own method with a changed body must not meet the program of its first version."""

    def mine(sign):
        base = fj.fedsgd(rounds=2, batch=None)
        return dataclasses.replace(base, server=lambda m, g: (m + sign * g, Broadcast(m + sign * g)))

    up = fj.simulate(mine(0.01), model, agents, local_models)
    down = fj.simulate(mine(-0.01), model, agents, local_models)
    assert up.final_loss > down.final_loss
