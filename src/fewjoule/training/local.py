"""Offline training of every agent's own model to an epsilon-optimal one, all agents and seeds in one program.

From agents and a model to one flat vector per agent, with a record of how far the training came.
"""

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from fewjoule.energy.metering import Around
from fewjoule.errors import DivergedWarning, InputError, count_or_none, not_negative, positive, positive_int
from fewjoule.models.model import Model, check_fit
from fewjoule.randomness import agent_ids, agent_keys, seeds_of
from fewjoule.tasks.samples import AgentData, Agents, Samples
from fewjoule.training.curvature import largest_eigenvalue
from fewjoule.training.descent import Loss, Optimiser, descend
from fewjoule.training.descent import optimiser as make_optimiser
from fewjoule.training.mesh import over_devices
from fewjoule.training.program import BRIEF_OPTIONS, COMPILER_OPTIONS, Program
from fewjoule.training.start import random_start

LONGEST_CALL_SECONDS = 0.5
"""A longer call would keep Ctrl-C waiting."""
STOPPED_BY = ("limit", "gradient", "plateau", "diverged", "validation")
CHECK_EVERY = 500


@dataclass(frozen=True, repr=False)
class LocalModels:
    """Local models and what their training reached. Arrays are [agents, ...]; with several seeds [seeds, agents, ...].

    `gradient_norm` and `loss` are over all of an agent's training samples; `stopped_by` says which rule ended the
    training.
    """

    models: Array  # [agents, d]
    start: Array  # [d], the common random start; [agents, d] where every agent had its own
    loss: Array
    gradient_norm: Array
    steps: Array
    stopped_by: np.ndarray[Any, Any]
    measured: Callable[[], Array]  # the sharpness

    @cached_property
    def sharpness(self) -> Array:
        """The Hessian's largest eigenvalue at each model, measured when it is first asked for."""
        return self.measured()

    def __repr__(self) -> str:
        loss, rules = np.asarray(self.loss), np.unique(self.stopped_by, return_counts=True)
        stops = ", ".join(f"{count} by {rule}" for rule, count in zip(*rules, strict=True))
        return f"LocalModels({list(loss.shape)}: loss {loss.min():.4g} to {loss.max():.4g}, stopped {stops})"


def train_locally(
    model: Model,
    agents: Agents,
    *,
    seed: int | Sequence[int] = 0,
    optimiser: Optimiser = "sgd",
    learning_rate: float = 0.01,
    schedule: str = "constant",
    batch: int | None = 100,
    max_steps: int = 20_000,
    gradient_tolerance: float = 1e-3,
    plateau_tolerance: float = 0.0,
    early_stopping: bool = False,
    patience: int = 5,
    check_every: int = CHECK_EVERY,
    shared_start: bool = True,
    around: Around | None = None,
    told: Callable[[float], None] = lambda share: None,
) -> LocalModels:
    """Train each agent's model on its own samples by mini-batch descent.

    An agent stops when the norm of its full gradient is at most `gradient_tolerance`, when `patience` checks in a row
    lowered its best loss by less than the share `plateau_tolerance` (0 leaves that rule out), or after `max_steps`
    steps. The first two are looked at every `check_every` steps (a few less, where that divides `max_steps` more
    evenly). With `early_stopping` an agent also stops when `patience` checks in a row found no lower loss on its
    validation samples, and its model is that of the check where this loss was lowest. An agent whose loss overflows
    stops as "diverged", with a warning.

    `optimiser` is an optax optimiser by name, whose learning rate stays or falls to 0 over `max_steps` (`schedule`:
    constant, linear or cosine), or any optax object. `shared_start` False gives every agent a random start of its own,
    as where the agents never met. A sequence of seeds gives results a leading axis. `around` is where a meter goes: it
    is handed the execution of the compiled program. `told` is handed the share of the training that is done, about
    every half second.
    """
    check_fit(model, agents)
    positive("learning_rate", learning_rate)
    count_or_none("batch", batch)
    positive_int("max_steps", max_steps)
    positive_int("patience", patience)
    positive_int("check_every", check_every)
    not_negative("gradient_tolerance", gradient_tolerance)
    not_negative("plateau_tolerance", plateau_tolerance)
    if early_stopping and not np.asarray(agents.data.validation.mask).any(-1).all():
        raise InputError("early_stopping needs validation samples of every agent; give make_agents(validation=...).")
    seeds = seed_list(seed, agents)
    chunk = steps_between_checks(max_steps, check_every)
    make_optimiser(optimiser, learning_rate, schedule, max_steps)
    rules = _Rules(
        optimiser, learning_rate, schedule, batch, max_steps, gradient_tolerance, plateau_tolerance, early_stopping,
        patience, chunk,
    )  # fmt: skip
    per_seed, samples, ids = agents.seeds is not None, agents.data, agent_ids(agents.names)
    keys = np.stack([agent_keys(int(seed), "local", ids) for seed in seeds])
    start, training = _begin(model, rules, shared_start, ids, seeds)
    advance = Program(_advance, (model, rules, per_seed), (samples, keys, np.int32(0), np.int32(1), training))

    def train() -> _Training:
        chunk, most, p, (own_data, own_keys, *_) = 0, 1, training, advance.arrays
        while not p.done.all():
            began = time.perf_counter()
            p = jax.tree.map(np.asarray, advance(own_data, own_keys, np.int32(chunk), np.int32(most), p))
            chunk = chunk + most
            most = max(1, most * 2 if time.perf_counter() - began < LONGEST_CALL_SECONDS / 2 else most // 2)
            told(float(np.where(p.done, 1.0, p.steps / max_steps).mean()))
        return p

    p: _Training = advance.run(around, train)
    out = {"models": p.model, "start": start, "loss": p.loss, "gradient_norm": p.gradient_norm, "steps": p.steps}
    stopped, one = np.asarray(STOPPED_BY)[p.rule], np.ndim(seed) == 0
    _warn(agents, seeds, stopped)
    if one:
        out, stopped = jax.tree.map(lambda a: a[0], out), stopped[0]

    def sharpness() -> Array:
        each = _sharpness(model, per_seed, p.model, samples.train, keys)
        return each[0] if one else each

    return LocalModels(**jax.device_put(out), stopped_by=stopped, measured=sharpness)


def steps_between_checks(max_steps: int, check_every: int = CHECK_EVERY) -> int:
    """As asked, or a few less where that divides `max_steps` more evenly."""
    return math.ceil(max_steps / math.ceil(max_steps / check_every))


def loss_and_gradient_norm(loss: Loss, vector: Array, samples: Samples) -> tuple[Array, Array]:
    """What an agent looks at in a check of its training: over all its samples."""
    value, gradient = jax.value_and_grad(loss)(vector, samples)
    return value, jnp.linalg.norm(gradient)


def _warn(agents: Agents, seeds: np.ndarray[Any, Any], stopped: np.ndarray[Any, Any]) -> None:
    gone = [f"{agents.names[a]!r} with seed {int(seeds[s])}" for s, a in np.argwhere(stopped == "diverged")]
    if gone:
        named = ", ".join(gone[:5]) + (", ..." if len(gone) > 5 else "")
        warnings.warn(
            f"local training diverged for {len(gone)} of {stopped.size} models ({named}). Lower learning_rate.",
            DivergedWarning,
            stacklevel=3,
        )


def seed_list(seed: int | Sequence[int], agents: Agents) -> np.ndarray[Any, Any]:
    """The seeds as an array, checked against those the agents' samples were drawn with."""
    seeds = seeds_of(seed)
    if agents.seeds is not None and seeds != agents.seeds:
        raise InputError(f"these agents have samples for seeds {list(agents.seeds)}, got seed {list(seeds)}.")
    return np.asarray(seeds, np.uint32)


class _Rules(NamedTuple):
    optimiser: Optimiser
    learning_rate: float
    schedule: str
    batch: int | None
    max_steps: int
    gradient_tolerance: float
    plateau_tolerance: float
    early_stopping: bool
    patience: int
    check_every: int

    @property
    def by(self) -> optax.GradientTransformation:
        return make_optimiser(self.optimiser, self.learning_rate, self.schedule, self.max_steps)


class _Training(NamedTuple):
    """One agent's training."""

    model: Array
    memory: Any  # of the optimiser
    steps: Array
    best: Array  # lowest loss at a check; with early stopping, on the validation samples
    kept: Any  # with early stopping, the model there with its loss and gradient norm; else nothing
    waited: Array  # checks since the best loss fell by enough
    loss: Array
    gradient_norm: Array
    rule: Array  # position in STOPPED_BY
    done: Array


def _begin(model: Model, rules: _Rules, shared: bool, ids: Any, seeds: Any) -> tuple[Any, Any]:
    """The start, and the training before its first step."""
    if shared:
        start = np.stack([random_start(model, seed) for seed in seeds])
        first = np.repeat(start[:, None], len(ids), 1)
    else:
        keys = np.stack([agent_keys(int(seed), "start", ids) for seed in seeds])
        start = first = np.asarray(_own_starts(model, keys))
    zeros: Any = np.zeros(first.shape[:2], np.float32)
    whole = zeros.astype(np.int32)
    memory = jax.tree.map(np.asarray, jax.vmap(jax.vmap(rules.by.init))(first))
    kept = (first, zeros, zeros) if rules.early_stopping else None
    begun: Any = (first, memory, whole, zeros + np.inf, kept, whole, zeros, zeros, whole, zeros > 0)
    return start, _Training(*begun)


@partial(jax.jit, static_argnums=0, compiler_options=BRIEF_OPTIONS)
def _own_starts(model: Model, keys: Array) -> Array:
    return jax.vmap(jax.vmap(model.init))(jax.random.wrap_key_data(keys))


# A call goes some way, so that a long training comes up for air: it can tell how far it is, and Ctrl-C is heard.
@partial(jax.jit, static_argnums=(0, 1, 2), compiler_options=COMPILER_OPTIONS)
def _advance(
    model: Model, rules: _Rules, per_seed: bool, data: AgentData, keys: Array, chunk: Array, most: Array, p: _Training
) -> _Training:
    """Go on from chunk number `chunk`, for at most `most` chunks or until every agent is done."""

    def check(p: _Training, data: AgentData) -> _Training:
        loss, norm = loss_and_gradient_norm(model.loss, p.model, data.train)
        judged = model.loss(p.model, data.validation) if rules.early_stopping else loss
        better = judged < p.best * (1 - rules.plateau_tolerance)
        waited = jnp.where(better, 0, p.waited + 1)
        flat = (waited >= rules.patience) & (rules.early_stopping or rules.plateau_tolerance > 0)
        calm = norm <= rules.gradient_tolerance
        lost = ~jnp.isfinite(loss) | ~jnp.isfinite(norm)
        rule = jnp.where(lost, 3, jnp.where(calm, 1, jnp.where(flat, 4 if rules.early_stopping else 2, 0)))
        done = calm | flat | (p.steps >= rules.max_steps) | lost
        kept = None
        if rules.early_stopping:  # the best so far, which is what the training gives when it is done
            here = (p.model, loss, norm)
            kept = jax.tree.map(partial(jnp.where, judged < p.best), here, p.kept)
            given, loss, norm = jax.tree.map(partial(jnp.where, done & ~lost), kept, here)
            p = p._replace(model=given)
        best = jnp.minimum(p.best, judged)
        return _Training(p.model, p.memory, p.steps, best, kept, waited, loss, norm, rule, done)

    def advance(p: _Training, data: AgentData, key: Array, chunk: Array) -> _Training:
        left = rules.max_steps - p.steps
        reached = descend(
            model.loss, p.model, data.train, jax.random.fold_in(key, chunk), by=rules.by,
            steps=rules.check_every, batch=rules.batch, memory=p.memory,
            limit=left if rules.max_steps % rules.check_every else None,
        )  # fmt: skip
        steps = p.steps + jnp.minimum(rules.check_every, left)
        after = check(p._replace(model=reached.vector, memory=reached.memory, steps=steps), data)
        return jax.tree.map(lambda old, new: jnp.where(p.done, old, new), p, after)

    keys = jax.random.wrap_key_data(keys)
    all_at_once = jax.vmap(jax.vmap(advance, (0, 0, 0, None)), (0, 0 if per_seed else None, 0, None))

    def of_some(data: AgentData, keys: Array, chunk: Array, most: Array, p: _Training) -> _Training:
        def go(carry: tuple[Array, _Training]) -> tuple[Array, _Training]:
            chunk, p = carry
            return chunk + 1, all_at_once(p, data, keys, chunk)

        last = chunk + most
        return jax.lax.while_loop(lambda c: ~c[1].done.all() & (c[0] < last), go, (chunk, p))[1]

    split = (per_seed, True, False, False, True)
    trained: _Training = over_devices(of_some, len(keys), split)(data, keys, chunk, most, p)
    return trained


@partial(jax.jit, static_argnums=(0, 1), compiler_options=COMPILER_OPTIONS)
def _sharpness(model: Model, per_seed: bool, models: Array, samples: Samples, keys: Array) -> Array:
    """The largest curvature of every agent's loss at its model."""

    def sharpness(vector: Array, samples: Samples, key: Array) -> Array:
        return largest_eigenvalue(lambda v: model.loss(v, samples), vector, key)

    both = jax.vmap(jax.vmap(sharpness), (0, 0 if per_seed else None, 0))
    return both(models, samples, jax.random.wrap_key_data(keys))
