"""All agents, all rounds, all seeds of one method in one compiled program.

From a method, agents and their local models to one meta-model per seed, a trace per round and a flag where it diverged.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.energy.metering import Around
from fewjoule.errors import DivergedWarning, InputError
from fewjoule.methods.method import Broadcast, Method
from fewjoule.models.model import Model, check_fit
from fewjoule.randomness import agent_ids, key_for, round_key
from fewjoule.simulate import rules
from fewjoule.simulate.run import Run, Trace
from fewjoule.simulate.work import data_of
from fewjoule.tasks.samples import AgentData, Agents
from fewjoule.training.local import LocalModels, seed_list
from fewjoule.training.program import Program


def simulate(
    method: Method,
    model: Model,
    agents: Agents,
    local: LocalModels | Array | None = None,
    *,
    seed: int | Sequence[int] = 0,
    participation: float = 1.0,
    availability: Any = None,
    diverged_at: float = rules.DIVERGED_AT,
    keep_paths: bool = False,
    one_by_one: bool = False,
) -> Run:
    """Run a method over its rounds.

    `local` are the agents' own models, needed unless the method starts at random. `participation` is the share of
    agents (at least one) drawn afresh every round; `availability` [rounds, agents] says instead who is there when.
    An absent agent keeps its state; a round with nobody changes nothing. `one_by_one` computes every agent as it would
    alone, slower and with the last bits of a federation; see docs/federation-rules.md.
    """
    return Simulation(
        method, model, agents, local, seed=seed, participation=participation, availability=availability,
        diverged_at=diverged_at, keep_paths=keep_paths, one_by_one=one_by_one,
    ).run()  # fmt: skip


class Simulation:
    """A run that is checked and ready: `simulate` in two steps, for those who compile ahead or meter the execution."""

    def __init__(
        self, method: Method, model: Model, agents: Agents, local: LocalModels | Array | None = None, *,
        seed: int | Sequence[int] = 0, participation: float = 1.0, availability: Any = None,
        diverged_at: float = rules.DIVERGED_AT, keep_paths: bool = False, one_by_one: bool = False,
    ) -> None:  # fmt: skip
        seeds = seed_list(seed, agents)
        present, availability = _checked_presence(method, agents, participation, availability)
        models = _checked_models(method, model, agents, local, len(seeds))
        static = (method, model, agents.seeds is not None, present, keep_paths, one_by_one)
        arrays = (agents.data, agent_ids(agents.names), models, availability, seeds)
        self._program = Program(_program, static, arrays)
        self.method, self._seeds, self._single = method, tuple(map(int, seeds)), np.ndim(seed) == 0
        self._result = partial(Run, method, model, agents.names, self._seeds, data=data_of(agents))
        self._diverged_at = diverged_at

    def compile(self) -> None:
        """Compile without running; several simulations may compile at once in threads."""
        self._program.compile()

    def run(self, around: Around | None = None) -> Run:
        """Run once. `around` is where a meter goes: it is handed the execution of the compiled program."""
        out = dict(self._program.run(around))
        start_loss, final_loss = out["start_loss"], out["final_loss"]
        last_loss = out["trace"].loss[:, -1] if self.method.rounds else final_loss
        losses = (start_loss, final_loss, last_loss)
        diverged = rules.has_diverged(self.method, *losses, out.pop("finite"), self._diverged_at)
        out["meta"] = jnp.where(diverged[:, None], jnp.nan, out["meta"])
        _warn(self.method, self._seeds, diverged, final_loss / start_loss, self._diverged_at)
        out["uplink_bits"], out["downlink_bits"] = (8 * np.asarray(b, np.int64) for b in out.pop("size_bytes"))
        if self._single:
            out, diverged = jax.tree.map(lambda a: a[0], (out, diverged))
        return self._result(diverged=diverged, **out)


def _checked_presence(
    method: Method, agents: Agents, participation: float, availability: Any
) -> tuple[int | None, Array | None]:
    """How many agents a round draws (None for all), and who is there when (None where nobody said)."""
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
    if method.codecs[2] is not None and (participation != 1.0 or availability is not None):
        raise InputError(
            "down_codec sends differences from the last broadcast, so every agent must be there every round."
        )
    present = None if participation == 1.0 else max(1, round(participation * len(agents)))
    rules.check_agents(method, present or len(agents))
    return present, availability


def _checked_models(
    method: Method, model: Model, agents: Agents, local: LocalModels | Array | None, seeds: int
) -> Array:
    """The local models as [seeds, agents, d]; zeros where the method does not ask for them."""
    check_fit(model, agents)
    if method.needs_validation and not np.asarray(agents.data.validation.mask).any(-1).all():
        raise InputError(f"{method.name} needs validation samples of every agent; give make_agents(validation=...).")
    if local is None:
        if rules.uses_local(method):
            bound = method.needs_local or method.name in ("average", "local", "meta_backward")
            cure = "pass local=train_locally(model, agents)" + ("." if bound else ", or set start='random'.")
            raise InputError(f"{method.name} starts from the agents' own models; {cure}")
        return jnp.zeros((seeds, len(agents), model.size))
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
    return jnp.asarray(models)


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5))
def _program(
    method: Method, model: Model, per_seed: bool, present: int | None, keep_paths: bool, one_by_one: bool,
    data: AgentData, ids: Array, models: Array, availability: Array | None, seeds: Array,
) -> dict[str, Any]:  # fmt: skip
    each, alone = (_in_turn, _alone) if one_by_one else (jax.vmap, lambda function: function)

    def mean_loss(vector: Array, data: AgentData) -> Array:
        return each(lambda samples: model.loss(vector, samples))(data.train).mean()

    def one_seed(seed: Array, data: AgentData, models: Array) -> dict[str, Any]:
        received, states, first_up = _first_upload(method, model, models, ids, seed, each)
        weights = rules.weights_of(method, data.train.mask.sum(-1))
        start = alone(partial(rules.start_of, method, model))(received, seed, weights)
        first_down = jnp.zeros(len(ids), jnp.int32)
        probes = None
        if method.probe is not None:
            keys = jax.vmap(lambda i: jax.random.fold_in(key_for(seed, "probe"), i))(ids)
            probes = each(lambda d, k: method.probe(model.loss, start.model, d, k))(data, keys)  # type: ignore[misc]
            up, down = rules.probe_bytes(model, jax.tree.map(lambda p: p[0], probes))
            first_up, first_down = first_up + up, first_down + down
        server, broadcast = alone(method.init)(start, probes)

        def one_round(carry: tuple[Any, Broadcast, Any], at: tuple[Array, Array, Array | None]) -> tuple[Any, Any]:
            server, broadcast, states = carry
            index, keys, available = at
            turn = lambda state, d, key: method.agent(model.loss, state, broadcast, d, key)  # noqa: E731
            new_states, messages, info = each(turn)(states, data, keys)
            here = jnp.ones(len(ids)) if available is None else available.astype(jnp.float32)
            count = here.sum()
            over_present = partial(rules.mean_over, here=available)
            new_server, new_broadcast = alone(partial(rules.server_step, method))(server, messages, weights, available)
            if available is not None:
                new_states = jax.tree.map(
                    lambda new, old: jnp.where(here.reshape((-1,) + (1,) * (new.ndim - 1)) > 0, new, old),
                    new_states, states,
                )  # fmt: skip
                new_server, new_broadcast = jax.tree.map(
                    lambda new, old: jnp.where(count > 0, new, old), (new_server, new_broadcast), (server, broadcast)
                )
            distances = jnp.linalg.norm(info.model - over_present(info.model), axis=-1) * here
            radius = broadcast.scalars if isinstance(broadcast.scalars, jax.Array) else jnp.full((), jnp.nan)
            nobody = jnp.where(count > 0, 0, jnp.nan)
            trace = Trace(
                over_present(info.loss) + nobody,
                distances.max() + nobody,
                jnp.linalg.norm(new_broadcast.model - broadcast.model),
                radius,
                over_present(info.active) + nobody,
                count,
            )
            up = rules.message_bytes(jax.tree.map(lambda m: m[0], messages), info)
            down = rules.broadcast_bytes(method, broadcast, index == 0)
            size_bytes = (up * here.astype(jnp.int32), down * here.astype(jnp.int32))
            paths = (new_broadcast.model, info.model) if keep_paths else None
            return (new_server, new_broadcast, new_states), (trace, paths, size_bytes)

        # All keys before the first round: one large draw is far cheaper than many small ones inside the loop.
        keys = _round_keys(key_for(seed, "round"), method.rounds, ids)
        there = availability
        if present is not None:
            draws = _round_keys(key_for(seed, "participation"), method.rounds, ids)
            there = jnp.argsort(jnp.argsort(jax.vmap(jax.vmap(jax.random.uniform))(draws))) < present
        rounds = (jnp.arange(method.rounds), keys, there)
        (server, broadcast, _), (trace, paths, size_bytes) = jax.lax.scan(
            one_round, (server, broadcast, states), rounds
        )
        meta = broadcast.model if method.final is None else method.final(server)
        out: dict[str, Any] = {
            "meta": meta,
            "start": start.model,
            "trace": trace,
            "start_loss": mean_loss(start.model, data),
            "final_loss": mean_loss(meta, data),
            "finite": jnp.isfinite(meta).all(),
            "size_bytes": (
                jnp.concatenate([first_up[None], size_bytes[0]]),
                jnp.concatenate([first_down[None], size_bytes[1]]),
            ),
        }
        if paths is not None:
            out["meta_path"] = jnp.concatenate([start.model[None], paths[0]])
            out["agent_path"] = paths[1]
        return out

    if len(seeds) == 1:  # an axis of one would cost a fifth of the speed
        own = jax.tree.map(lambda a: a[0], data) if per_seed else data
        return jax.tree.map(lambda a: a[None], one_seed(seeds[0], own, models[0]))
    if one_by_one:
        own_data = data if per_seed else jax.tree.map(lambda a: jnp.broadcast_to(a, (len(seeds), *a.shape)), data)
        return _in_turn(one_seed)(seeds, own_data, models)
    return jax.vmap(one_seed, (0, 0 if per_seed else None, 0))(seeds, data, models)


def _in_turn(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of every row of its arrays, one after the other."""
    return lambda *arrays: jax.lax.map(lambda row: function(*row), arrays)


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, rounding as it does when it is compiled alone: the body of a loop is never merged with what stands
    around it. A loop of one turn would be taken apart, so it has two."""

    def first_of_two(*arrays: Any) -> Any:
        twice = jax.tree.map(lambda a: jnp.stack([a, a]), arrays)
        return jax.tree.map(lambda a: a[0], _in_turn(function)(*twice))

    return first_of_two


def _round_keys(root: Array, rounds: int, ids: Array) -> Array:
    """The key of every agent in every round [rounds, agents]."""
    return jax.vmap(lambda k: jax.vmap(lambda i: round_key(root, k, i))(ids))(jnp.arange(rounds))


def _first_upload(
    method: Method, model: Model, models: Array, ids: Array, seed: Array, each: Callable[..., Any]
) -> tuple[Array, Any, Array]:
    """The local models as the server receives them, the agents' states, and bytes per agent."""
    told, senders = rules.weight_bytes(method), jnp.full(len(ids), method.start == "average", jnp.int32)
    if isinstance(method.start, int):
        senders = senders.at[method.start].set(1)
    if method.upload is None or method.start == "random":
        return models, jax.vmap(method.agent_init)(models), told + senders * rules.NUMBER_BYTES * model.size
    common, root = model.init(key_for(seed, "start")), key_for(seed, "codec")
    keys = jax.vmap(lambda i: jax.random.fold_in(root, i))(ids)
    sent = each(lambda local, key: method.upload(local, common, key))(models, keys)
    return sent.model, jax.vmap(method.agent_init)(models, sent.model), told + senders * sent.size_bytes


def _warn(method: Method, seeds: Any, diverged: Array, rise: Array, diverged_at: float) -> None:
    gone = [int(s) for s, d in zip(seeds, np.asarray(diverged), strict=True) if d]
    if gone:
        worst = float(jnp.where(diverged, rise, -jnp.inf).max())
        how = f"the agents' loss rose {worst:.3g} times" if np.isfinite(worst) else "the loss overflowed"
        warnings.warn(
            f"{method.name} diverged for {len(gone)} of {len(seeds)} seeds ({', '.join(map(str, gone))}): {how}, "
            f"beyond {diverged_at:g} times the start's. Their meta-models are NaN. Lower learning_rate or radius.",
            DivergedWarning,
            stacklevel=4,
        )
