"""What a method's functions take, give and compute, from shapes alone: nothing is run, so it is known before a run."""

from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fewjoule.energy.counts import count
from fewjoule.errors import InputError
from fewjoule.methods.method import Info, Method, Start
from fewjoule.models.model import Model
from fewjoule.simulation.rules import combine, learned, loss_of, own_model, shared_size, told
from fewjoule.tasks.samples import AgentData, Agents, Samples, Tasks
from fewjoule.training.descent import descend, optimiser
from fewjoule.training.local import loss_and_gradient_norm, steps_between_checks
from fewjoule.training.store import remembered
from fewjoule.training.tuning import ALL_WEIGHTS, Tuning


class Shapes(NamedTuple):
    """Shapes and types of everything in a run of one method, for one agent."""

    vector: Any  # a model
    shared: Any  # the part of it that travels
    key: Any
    probe: Any  # None where the method has none
    server_state: Any
    broadcast: Any
    agent_state: Any
    message: Any
    info: Info


@lru_cache
def shapes(method: Method, model: Model, data: AgentData, agents: int = 1) -> Shapes:
    """The shapes of a run over `agents` agents with data of these shapes."""
    vector, key, scalar = vector_of(model), key_shape(), _shape((), jnp.float32)
    shared, loss = _shape((shared_size(method, model),), jnp.float32), loss_of(method, model)
    probe = stacked = None
    if method.probe is not None:
        probe = jax.eval_shape(lambda v, d, k: method.probe(loss, v, d, k), shared, data, key)  # type: ignore[misc]
        stacked = jax.tree.map(lambda p: _shape((agents, *p.shape), p.dtype), probe)
    server_state, broadcast = jax.eval_shape(method.init, Start(shared, scalar, shared), stacked)
    state = jax.eval_shape(lambda v, s: method.agent_init(own_model(method, model, v), s), vector, shared)
    _, message, info = jax.eval_shape(
        lambda s, b, d, k: method.agent(loss, s, told(b, 0), d, k), state, broadcast, data, key
    )
    return Shapes(vector, shared, key, probe, server_state, broadcast, state, message, info)


def combined(method: Method, model: Model, data: AgentData, agents: int) -> Any:
    """The shapes of what the server gets of so many agents' messages; None where there are no rounds."""
    if not method.rounds:
        return None
    message = shapes(method, model, data, agents).message
    stacked = jax.tree.map(lambda m: _shape((agents, *m.shape), m.dtype), message)
    return jax.eval_shape(lambda m: combine(m, None, None, method.combine), stacked)


def data_of(agents: Agents) -> AgentData:
    """The shapes of one agent's data."""
    lead = 1 if agents.seeds is None else 2
    data: AgentData = jax.tree.map(lambda a: _shape(a.shape[lead:], a.dtype), agents.data)
    return data


def data_for(model: Model, samples: int) -> AgentData:
    """The shapes of an agent's data with so many samples, from the model alone."""
    if model.input_shape is None:
        raise InputError(
            "this needs to know the shape of the model's inputs; give Model(..., input_shape=(28, 28)), or the module "
            "an attribute input_shape."
        )
    x = _shape((samples, *model.input_shape), jnp.float32)
    outputs = jax.eval_shape(model.apply, vector_of(model), x)
    y = _shape((samples,), jnp.int32) if model.loss_name == "cross_entropy" else outputs
    each = Samples(x, y, _shape((samples,), jnp.float32))
    return AgentData(each, each)


def method_flops(method: Method, model: Model, agents: Agents) -> int:
    """FLOPs of all agents over all rounds, for one seed; the server's averaging is not an agent's cost."""
    return len(agents) * agent_flops(method, model, data_of(agents))


def agent_flops(method: Method, model: Model, data: AgentData) -> int:
    """FLOPs of one agent with data of these shapes: its probe and its part of all rounds."""
    probe, turn = turn_flops(method, model, data)
    return probe + method.rounds * turn


@remembered
def turn_flops(method: Method, model: Model, data: AgentData) -> tuple[int, int]:
    """FLOPs of one agent's probe and of its part of one round."""
    if method.rounds == 0:
        return 0, 0
    s, first, loss = shapes(method, model, data), 0, loss_of(method, model)
    if method.probe is not None:
        probe = method.probe
        first = count(lambda v, d, k: probe(loss, v, d, k), s.shared, data, s.key).flops
    turn = count(lambda a, b, d, k: method.agent(loss, a, told(b, 0), d, k), s.agent_state, s.broadcast, data, s.key)
    return first, turn.flops


@remembered
def server_flops(method: Method, model: Model, agents: int) -> int:
    """FLOPs of the server's own learning, for one seed; its averaging of messages is not counted."""
    if method.learn is None:
        return 0
    messages = combined(method, model, data_for(model, 2), agents)
    return count(lambda v, m: learned(method, model, v, m, 0), vector_of(model), messages).flops


def training_flops(
    model: Model, agents: Agents, steps: Any, *, name: str, learning_rate: float, batch: int | None, max_steps: int,
    early_stopping: bool = False,
) -> Any:  # fmt: skip
    """FLOPs of the offline training for each seed and agent, from the steps [seeds, agents] that were taken.

    The checks whether to stop, each over all samples, are part of it.
    """
    once, check = _step_flops(model, data_of(agents), name, learning_rate, batch, early_stopping)
    taken = np.asarray(steps, np.int64)
    return once * taken + check * -(-taken // steps_between_checks(max_steps))


@remembered
def _step_flops(
    model: Model, data: AgentData, name: str, learning_rate: float, batch: int | None, early_stopping: bool
) -> tuple[int, int]:
    """FLOPs of one step of the offline training, and of one check whether to stop."""
    by, vector = optimiser(name, learning_rate), vector_of(model)

    def one(v: Any, m: Any, s: Any, k: Any) -> Any:
        return descend(model.loss, v, s, k, by=by, steps=1, batch=batch, memory=m)[:2]

    once = count(one, vector, jax.eval_shape(by.init, vector), data.train, key_shape()).flops
    check = count(partial(loss_and_gradient_norm, model.loss), vector, data.train).flops
    return once, check + (count(model.loss, vector, data.validation).flops if early_stopping else 0)


def adaptation_flops(
    model: Model, tasks: Tasks, steps: int, learning_rate: float, name: str = "sgd", tuning: Tuning = ALL_WEIGHTS
) -> int:
    """FLOPs of one new device that fine-tunes for this many steps, or makes its head of class means."""
    support = jax.tree.map(lambda a: _shape(a.shape[1:], a.dtype), tasks.support)
    return _tuning_flops(model, support, steps, learning_rate, name, tuning)


@remembered
def _tuning_flops(model: Model, support: Samples, steps: int, learning_rate: float, name: str, tuning: Tuning) -> int:
    by = optimiser(name, learning_rate)
    return count(lambda v, s: tuning.tuned(model, v, s, by=by, steps=steps), vector_of(model), support).flops


def vector_of(model: Model) -> Any:
    return _shape((model.size,), jnp.float32)


def key_shape() -> Any:
    return jax.eval_shape(lambda: jax.random.key(0))


def _shape(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]
