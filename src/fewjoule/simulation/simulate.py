"""All agents, all rounds, all seeds of one method in one compiled program.

From a method, agents and their local models to one meta-model per seed, a trace per round and a flag where it diverged.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import Array

from fewjoule.energy.metering import Around
from fewjoule.errors import DivergedWarning, InputError
from fewjoule.methods.method import Method
from fewjoule.models.model import Model, OwnModel, check_alike, check_fit
from fewjoule.randomness import agent_ids
from fewjoule.simulation import rules
from fewjoule.simulation.how import How, how_to_go, round_flops
from fewjoule.simulation.learning import Learning
from fewjoule.simulation.rounds import draws, mean_losses, rounds_program
from fewjoule.simulation.run import Run
from fewjoule.simulation.work import data_of
from fewjoule.tasks.samples import Agents
from fewjoule.training.local import LocalModels, seed_list
from fewjoule.training.mesh import is_small
from fewjoule.training.program import Program


def simulate(
    method: Method,
    model: Model,
    agents: Agents,
    local: LocalModels | Array | Sequence[OwnModel] | None = None,
    *,
    seed: int | Sequence[int] = 0,
    participation: float = 1.0,
    availability: Any = None,
    diverged_at: float = rules.DIVERGED_AT,
    keep_paths: bool | Sequence[int] = False,
    one_by_one: bool = False,
) -> Run:
    """Run a method over its rounds.

    `local` are the agents' own models, needed unless the method starts at random; a method that asks them for answers
    takes a list of `OwnModel`s of any architectures as well. `participation` is the share of
    agents (at least one) drawn afresh every round; `availability` [rounds, agents] says instead who is there when.
    An absent agent keeps its state; a round with nobody changes nothing. `keep_paths` keeps the models of the first
    seed after every round, or after these rounds (1, 2, ...). `one_by_one` computes every agent as it would alone,
    slower and with the last bits of a federation; see docs/federation-rules.md.
    """
    return Simulation(
        method, model, agents, local, seed=seed, participation=participation, availability=availability,
        diverged_at=diverged_at, keep_paths=keep_paths, one_by_one=one_by_one,
    ).run()  # fmt: skip


class Simulation:
    """A run that is checked and ready: `simulate` in two steps, for those who compile ahead or meter the execution."""

    def __init__(
        self, method: Method, model: Model, agents: Agents,
        local: LocalModels | Array | Sequence[OwnModel] | None = None, *,
        seed: int | Sequence[int] = 0, participation: float = 1.0, availability: Any = None,
        diverged_at: float = rules.DIVERGED_AT, keep_paths: bool | Sequence[int] = False, one_by_one: bool = False,
    ) -> None:  # fmt: skip
        seeds = seed_list(seed, agents)
        present, cohorts = _checked_presence(method, agents, participation, availability)
        check_fit(model, agents)
        owners, models = _checked_models(method, model, agents, local, len(seeds))
        kept = _kept_rounds(method, keep_paths)
        how, small = How(alone=one_by_one, apart=owners is not None), False
        if not (how.alone or how.apart):
            rows = present or (len(agents) if cohorts is None else cohorts.shape[1])
            how = how_to_go(method, model, data_of(agents), rows, len(seeds), kept is not None)
            small = len(seeds) == 1 and is_small(round_flops(method, model, data_of(agents), rows))
        static = (method, model, owners, agents.seeds is not None, present, kept, how)
        ids = agent_ids(agents.names)
        drawn = draws(method, model, present, cohorts, ids, seeds, apart=how.apart)
        arrays = (agents.data, ids, models, drawn, seeds)
        self._program = Program(rounds_program, static, arrays, small=small)
        per_seed, samples = agents.seeds is not None, jax.tree.map(np.asarray, agents.data)
        self._losses: Callable[[Any], Program] = lambda ends: Program(
            mean_losses, (model, how, per_seed), (ends, samples), brief=True
        )
        self._learning = None if method.learn is None else Learning(method, model, agents, seeds)
        self.method, self._model = method, model
        self._seeds, self._single = tuple(map(int, seeds)), np.ndim(seed) == 0
        self._result = partial(Run, method, model, agents.names, self._seeds, data=data_of(agents))
        self._diverged_at = diverged_at

    def compile(self) -> None:
        """Compile without running; several simulations may compile at once in threads."""
        self._program.compile()
        shape = (len(self._seeds), 2, self._model.size)
        self._losses(jax.ShapeDtypeStruct(shape, np.float32)).compile()  # type: ignore[no-untyped-call]
        if self._learning is not None:
            self._learning.compile()

    def run(self, around: Around | None = None, around_server: Around | None = None) -> Run:
        """Run once. `around` is where a meter goes: it is handed the execution of the compiled program; and
        `around_server` that of the server's own learning, where the method has it."""
        out = dict(jax.tree.map(np.asarray, self._program.run(around)))  # NumPy has nothing to compile for what follows
        messages = out.pop("messages")
        if self._learning is not None:
            out["meta"] = np.asarray(self._learning.run(out["start"], messages, around_server))
        ends = np.stack([out["start"], out["meta"]], 1)
        out["start_loss"], out["final_loss"] = start_loss, final_loss = np.asarray(self._losses(ends).run()).T
        last_loss = out["trace"].loss[:, -1] if self.method.rounds else final_loss
        losses = (start_loss, final_loss, last_loss)
        finite = np.isfinite(out["meta"]).all(-1)
        diverged = rules.has_diverged(self.method, *losses, finite, self._diverged_at)
        out["meta"] = np.where(diverged[:, None], np.float32(np.nan), out["meta"])
        warn_diverged(self.method, self._seeds, diverged, start_loss, final_loss, self._diverged_at)
        bits = tuple(8 * np.asarray(b, np.int64) for b in out.pop("size_bytes"))
        paths = out.pop("paths") or (None, None)
        if paths[0] is not None and self._learning is not None:
            paths = (np.concatenate([paths[0][:-1], out["meta"][:1]]), paths[1])
        if self._single:
            out, diverged, bits = jax.tree.map(lambda a: a[0], (out, diverged, bits))
        out, diverged, paths = jax.device_put((out, diverged, paths))
        out |= {"diverged": diverged, "meta_path": paths[0], "agent_path": paths[1]}
        return self._result(uplink_bits=bits[0], downlink_bits=bits[1], **out)


def _kept_rounds(method: Method, keep_paths: bool | Sequence[int]) -> tuple[int, ...] | None:
    if isinstance(keep_paths, bool):
        return tuple(range(1, method.rounds + 1)) if keep_paths else None
    kept = tuple(int(r) for r in keep_paths)
    if list(kept) != sorted(set(kept) & set(range(1, method.rounds + 1))):
        raise InputError(f"keep_paths must be rounds from 1 to {method.rounds}, rising, got {list(kept)}.")
    return kept


def present_of(agents: int, participation: float) -> int:
    """How many agents take part in a round."""
    return max(1, round(participation * agents))


def _checked_presence(
    method: Method, agents: Agents, participation: float, availability: Any
) -> tuple[int | None, np.ndarray[Any, Any] | None]:
    """How many agents a round draws (None for all), and the positions of those who are there in each round (None where
    nobody said), [rounds, the most of a round], with fillers after the last."""
    if not 0 < participation <= 1:
        raise InputError(f"participation must be above 0 and at most 1, got {participation}.")
    if availability is not None:
        if participation != 1.0:
            raise InputError("give participation or availability, not both.")
        availability = np.asarray(availability, bool)
        if availability.shape != (method.rounds, len(agents)):
            raise InputError(
                f"availability must have shape [rounds, agents] = [{method.rounds}, {len(agents)}], "
                f"got {list(availability.shape)}."
            )
    present = None if participation == 1.0 else present_of(len(agents), participation)
    rules.check_agents(method, present or len(agents))
    return present, None if availability is None else _positions(availability)


def _positions(availability: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    rounds, agents = availability.shape
    cohorts = np.full((rounds, max(1, availability.sum(1).max(initial=0))), agents, np.int32)
    for row, there in zip(cohorts, availability, strict=True):
        row[: there.sum()] = np.flatnonzero(there)
    return cohorts


def _checked_models(
    method: Method, model: Model, agents: Agents, local: LocalModels | Array | Sequence[OwnModel] | None, seeds: int
) -> tuple[tuple[Model, ...] | None, Any]:
    """The local models as [seeds, agents, d], None where the method does not ask for them; or, where each has an
    architecture of its own, those and a tuple of [seeds, d]."""
    if method.needs_validation and not np.asarray(agents.data.validation.mask).any(-1).all():
        raise InputError(f"{method.name} needs validation samples of every agent; give make_agents(validation=...).")
    if local is None:
        if rules.uses_local(method):
            bound = method.needs_local or method.name in ("average", "local", "meta_backward")
            cure = "pass local=train_locally(model, agents)" + ("." if bound else ", or set start='random'.")
            raise InputError(f"{method.name} starts from the agents' own models; {cure}")
        return None, None
    if isinstance(local, Sequence):
        return _own_models(method, model, agents, local, seeds)
    models = np.asarray(local.models if isinstance(local, LocalModels) else local, np.float32)
    if models.ndim == 2:
        models = np.repeat(models[None], seeds, 0)
    if models.shape != (seeds, len(agents), model.size):
        raise InputError(
            f"local models must have shape [seeds, agents, weights] = [{seeds}, {len(agents)}, {model.size}], "
            f"got {list(models.shape)}."
        )
    if isinstance(method.start, int) and method.start >= len(agents):
        raise InputError(f"agent must be below the number of agents, {len(agents)}, got {method.start}.")
    if not np.isfinite(models).all():
        raise InputError(
            "local models must be finite, got NaN or infinity; lower the learning rate of the local training."
        )
    return None, models


def _own_models(
    method: Method, model: Model, agents: Agents, local: Sequence[OwnModel], seeds: int
) -> tuple[tuple[Model, ...], Any]:
    if not method.asks:
        raise InputError(f"{method.name} needs models of one architecture; use answers where they differ.")
    if len(local) != len(agents):
        raise InputError(f"local models must be one per agent: {len(agents)}, got {len(local)}.")
    vectors = []
    for name, own in zip(agents.names, local, strict=True):
        vector = np.asarray(own.vector, np.float32)
        vector = np.repeat(vector[None], seeds, 0) if vector.ndim == 1 else vector
        if vector.shape != (seeds, own.model.size) or not np.isfinite(vector).all():
            raise InputError(
                f"the model of agent {name!r} must be {own.model.size} finite weights, for each seed or all."
            )
        check_alike(own.model, model, f"the model of agent {name!r}")
        vectors.append(vector)
    return tuple(own.model for own in local), tuple(vectors)


def warn_diverged(
    method: Method, seeds: Any, diverged: Any, start_loss: Any, final_loss: Any, diverged_at: float
) -> None:
    """Warn the caller of the caller's caller of seeds that diverged, from the agents' mean losses of every seed."""
    gone = [int(s) for s, d in zip(seeds, diverged, strict=True) if d]
    if gone:
        with np.errstate(all="ignore"):
            worst = float(np.where(diverged, final_loss / start_loss, -np.inf).max())
        how = f"the agents' loss rose {worst:.3g} times" if np.isfinite(worst) else "the loss overflowed"
        warnings.warn(
            f"{method.name} diverged for {len(gone)} of {len(seeds)} seeds ({', '.join(map(str, gone))}): {how}, "
            f"beyond {diverged_at:g} times the start's. Their meta-models are NaN. Lower learning_rate or radius.",
            DivergedWarning,
            stacklevel=4,
        )
