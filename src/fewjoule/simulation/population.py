"""A run over a population on disk: one compiled program for a block of agents, called by a loop over rounds.

In each round a cohort is drawn; its samples are read while the round before is computed, padded by size to one of a few
buckets, and given to the program block by block. States of agents go back to a file that takes space only for those who
have taken part. The rounds are those of `simulate`; who takes part is drawn by position, so that a round costs the same
in a population of any size.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.errors import InputError, positive_int
from fewjoule.methods.method import Broadcast, Method, Start
from fewjoule.models.model import Model, check_samples
from fewjoule.randomness import PURPOSES, key_for, round_key, seeds_of
from fewjoule.simulation import rules
from fewjoule.simulation.cohort import Rows, Sums, concluded, summed, where_here
from fewjoule.simulation.how import How, at_once, equal_groups
from fewjoule.simulation.population_run import PopulationRun
from fewjoule.simulation.rounds import first_upload
from fewjoule.simulation.simulate import warn_diverged
from fewjoule.simulation.states import KeptStates
from fewjoule.simulation.work import shapes
from fewjoule.tasks.population import DiskRows, Population, ids_of
from fewjoule.tasks.samples import AgentData

Numbers = np.ndarray[Any, Any]
JUDGES = 10_000
"""Agents at most, evenly spaced, whose mean loss says whether a run has diverged."""


def simulate_population(
    method: Method,
    model: Model,
    population: Population,
    local: str | Path | None = None,
    *,
    cohort: int | None = None,
    seed: int = 0,
    states: str | Path | None = None,
    diverged_at: float = rules.DIVERGED_AT,
    told: Callable[[float], None] = lambda share: None,
) -> PopulationRun:
    """Run a method over its rounds with `cohort` agents in each, drawn afresh; None for all.

    `local` is an .npy file of the agents' own models [agents, d] in float32. `states` is a folder for what agents
    keep between rounds; a temporary one where not given. `told` is handed the share of the rounds done.
    """
    (seed,) = seeds_of(seed)
    models = None if local is None else DiskRows(Path(local))
    _check(method, model, population, models, cohort)
    with TemporaryDirectory(prefix="fewjoule-states-") as temporary:
        place = Path(temporary if states is None else states)
        running = _Running(method, model, population, models, cohort or len(population), seed, place)
        return running.run(diverged_at, told)


class _Block(NamedTuple):
    """Agents whose samples are padded to one size, with fillers at the end."""

    who: Numbers  # positions, of the real ones
    models: Numbers | None  # [rows, d], their own; None where nobody asks for them
    ids: Numbers  # [rows]
    data: AgentData  # [rows, ...]
    here: Numbers  # [rows]


class _Running:
    """A run with its files."""

    def __init__(
        self, method: Method, model: Model, population: Population, local: DiskRows | None, cohort: int, seed: int,
        place: Path,
    ) -> None:  # fmt: skip
        self._method, self._model, self._population, self._local = method, model, population, local
        self._cohort, self._seed, self._place = cohort, seed, place
        data = _shapes(population)
        self._state_shapes = shapes(method, model, data).agent_state
        most = at_once(method, model, data, 1)
        parts = 1 if len(population.buckets) == 1 else 2 * len(population.buckets)
        self._rows = equal_groups(cohort, min(most, -(-cohort // parts)))
        self._common = rules.common_start(method, model, seed)
        self._states = KeptStates(place, self._state_shapes, len(population))

    def run(self, diverged_at: float, told: Callable[[float], None]) -> PopulationRun:
        method, model, seed = self._method, self._model, np.uint32(self._seed)
        start, first_up = self._start()
        probes, first = self._probes(start.model), (first_up, 0)
        if probes is not None:
            up, down = rules.probe_bytes(method, model, jax.tree.map(lambda p: p[0], probes))
            first = (first_up + up, down)
        server, broadcast = jax.jit(method.init)(start, probes)
        traces, sizes, cohorts = [], [], []
        sums: Any = None
        for index, block, is_last in ahead(self._turns()):
            if sums is None:
                who, sent = [], []
            kept, has = self._states.read(block.who, self._rows)
            states, up_bytes, sums, after = _heard(
                method, model, is_last, seed, self._common, index, server, broadcast, block[1:], kept, has, sums
            )
            self._states.write(block.who, states)
            who.append(block.who)
            sent.append(np.asarray(up_bytes)[: len(block.who)])
            if is_last:
                server, broadcast, trace, down_bytes = after
                traces.append(jax.tree.map(np.asarray, trace))
                cohorts.append(np.concatenate(who))
                sizes.append((np.concatenate(sent), np.full(len(cohorts[-1]), down_bytes)))
                sums = None
                told((index + 1) / method.rounds)
        self._states.finish()
        meta = broadcast.model if method.final is None else method.final(server)
        meta, begin = (rules.whole(method, model, vector, self._common) for vector in (meta, start.model))
        start_loss, final_loss = self._mean_loss(begin), self._mean_loss(meta)
        trace = jax.tree.map(lambda *each: np.asarray(each), *traces)
        finite = jnp.isfinite(meta).all()
        diverged = bool(rules.has_diverged(method, start_loss, final_loss, trace.loss[-1], finite, diverged_at))
        warn_diverged(method, [self._seed], [diverged], np.array([start_loss]), np.array([final_loss]), diverged_at)
        sent_bits, received_bits = (8 * np.asarray(each, np.int64) for each in zip(*sizes, strict=True))
        return PopulationRun(
            method, model, len(self._population), self._seed, jnp.where(diverged, jnp.nan, meta), diverged, begin,
            start_loss, final_loss, trace, np.asarray(cohorts), sent_bits, received_bits, (8 * first[0], 8 * first[1]),
            _shapes(self._population),
        )  # fmt: skip

    def _turns(self) -> Iterator[tuple[int, _Block, bool]]:
        """All rounds: the number of each, its cohort block by block, and whether the block is its last."""
        for index in range(self._method.rounds):
            who, done = drawn(self._seed, index, self._cohort, len(self._population)), 0
            for block in self._blocks(who, models=self._has_states):
                done += len(block.who)
                yield index, block, done == len(who)

    def _blocks(self, who: Numbers, *, models: bool) -> Iterator[_Block]:
        """These agents bucket by bucket, in blocks of equal length, with their own models or without."""
        buckets = self._population.bucket_of(who)
        for number, size in enumerate(self._population.buckets):
            own = who[buckets == number]
            for at in range(0, len(own), self._rows):
                real = own[at : at + self._rows]
                filled = np.concatenate([real, np.repeat(real[:1], self._rows - len(real))])
                here = np.arange(self._rows) < len(real)
                own_models = self._first_models(filled) if models else None
                yield _Block(real, own_models, ids_of(filled), self._population.data(filled, size), here)

    def _first_models(self, who: Numbers) -> Numbers | None:
        """The own models of those who have kept nothing yet; nobody asks for those of the others."""
        if self._local is None:
            return None
        return self._local.read(who, wanted=~self._states.has(who))[:, 0]

    def _everybody(self, *, models: bool) -> Iterator[_Block]:
        """The whole population, a few blocks in memory at a time."""
        step = 16 * self._rows
        for at in range(0, len(self._population), step):
            yield from self._blocks(np.arange(at, min(at + step, len(self._population))), models=models)

    def _first(self, block: _Block) -> tuple[Array, Any, Array]:
        return _uploaded(self._method, self._model, block.models, block.ids, np.uint32(self._seed), self._common)

    def _start(self) -> tuple[Start, Numbers]:
        """Where the run starts, and the bytes that every agent sent before the first round."""
        sent = np.full(len(self._population), rules.weight_bytes(self._method), np.int64)
        common = self._common[: rules.shared_size(self._method, self._model)]
        if self._method.start == "random":
            return Start(common, jnp.zeros(()), common), sent
        total: Any = None
        for block in ahead(self._everybody(models=True)):
            received, _, up = self._first(block)
            total = _sum_of_models(self._method, received, block.data.train.mask, block.here, total)
            sent[block.who] = np.asarray(up)[: len(block.who)]
        average, spread = total[0] / jnp.maximum(total[1], 1), jnp.zeros(())
        for block in ahead(self._everybody(models=True)):
            spread = _farthest(spread, average, self._first(block)[0])
        return Start(average, spread, common), sent

    def _probes(self, start: Array) -> Any:
        if self._method.probe is None:
            return None
        probed: Any = None
        for block in self._everybody(models=False):
            rows = _probed(self._method, self._model, start, block.data, block.ids, np.uint32(self._seed))
            if probed is None:
                probed = jax.tree.map(lambda p: np.zeros((len(self._population), *p.shape[1:]), p.dtype), rows)
            for all_of_them, own in zip(jax.tree.leaves(probed), jax.tree.leaves(rows), strict=True):
                all_of_them[block.who] = own[: len(block.who)]
        return jax.tree.map(jnp.asarray, probed)

    def _mean_loss(self, vector: Array) -> float:
        """Of the agents that judge a run."""
        judges = np.unique(np.linspace(0, len(self._population) - 1, min(JUDGES, len(self._population))).astype(int))
        blocks = self._blocks(judges, models=False)
        return sum(float(_loss_sum(self._model, vector, block.data, block.here)) for block in blocks) / len(judges)

    @property
    def _has_states(self) -> bool:
        return bool(jax.tree.leaves(self._state_shapes))


def drawn(seed: int, index: int, cohort: int, agents: int) -> Numbers:
    """The positions of those who take part in a round, rising. It takes as long in a population of any size."""
    if cohort == agents:
        return np.arange(agents)
    generator = np.random.default_rng([seed, PURPOSES.index("participation"), index])
    return np.sort(generator.choice(agents, cohort, replace=False))


@partial(jax.jit, static_argnums=(0, 1))
def _uploaded(
    method: Method, model: Model, models: Array | None, ids: Array, seed: Array, common: Array
) -> tuple[Array, Any, Array]:
    return first_upload(method, model, models, ids, seed, common, jax.vmap)


@partial(jax.jit, static_argnums=0)
def _sum_of_models(method: Method, models: Array, mask: Array, here: Array, before: Any) -> Any:
    return _added(before, rules.sum_over(models, here, rules.weights_of(method, mask.sum(-1))))


@jax.jit
def _farthest(before: Array, average: Array, models: Array) -> Array:
    """The largest squared distance of a model from the average; fillers repeat a model."""
    return jnp.maximum(before, ((models - average) ** 2).sum(-1).max())


@partial(jax.jit, static_argnums=(0, 1))
def _probed(method: Method, model: Model, start: Array, data: AgentData, ids: Array, seed: Array) -> Any:
    keys = jax.vmap(lambda i: jax.random.fold_in(key_for(seed, "probe"), i))(ids)
    return jax.vmap(lambda d, k: method.probe(rules.loss_of(method, model), start, d, k))(data, keys)  # type: ignore[misc]


@partial(jax.jit, static_argnums=(0, 1, 2))
def _heard(
    method: Method, model: Model, is_last: bool, seed: Array, common: Array, index: Array, server: Any,
    broadcast: Broadcast, block: Any, kept: Any, has: Array, before: Sums | None,
) -> tuple[Any, Array, Sums, Any]:  # fmt: skip
    """A block's part of a round: its states, its bytes, the sums with those of the blocks before, and after the last
    block what the server makes of them."""
    models, ids, data, here = block
    states = where_here(has, kept, _uploaded(method, model, models, ids, seed, common)[1])
    keys = jax.vmap(lambda i: round_key(key_for(seed, "round"), index, i))(ids)
    rows = Rows(states, data, keys, rules.weights_of(method, data.train.mask.sum(-1)), here)
    states, up, sums = summed(method, model, How(), rules.told(broadcast, seed), rows)
    sums = _added(before, sums)
    if not is_last:
        return states, up, sums, None
    (server, after), trace = concluded(method, server, broadcast, sums)
    return states, up, sums, (server, after, trace, rules.broadcast_bytes(method, broadcast, index == 0))


@partial(jax.jit, static_argnums=0)
def _loss_sum(model: Model, vector: Array, data: AgentData, here: Array) -> Array:
    losses = jax.vmap(lambda own: rules.loss_at(model, vector, own))(data)
    return jnp.where(here, losses, 0).sum()


def ahead(items: Iterator[Any]) -> Iterator[Any]:
    """The items, each made in another thread while the one before it is worked on."""
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(next, items, None)
        while (item := waiting.result()) is not None:
            waiting = other.submit(next, items, None)
            yield item


def _added(before: Any, sums: Any) -> Any:
    return sums if before is None else jax.tree.map(jnp.add, before, sums)


def _shapes(population: Population) -> AgentData:
    """The shapes of the largest agent's data."""
    data = population.data(np.zeros(1, int), population.buckets[-1])
    return jax.eval_shape(lambda tree: jax.tree.map(lambda a: a[0], tree), data)


def _check(method: Method, model: Model, population: Population, local: DiskRows | None, cohort: int | None) -> None:
    if cohort is not None:
        positive_int("cohort", cohort)
    if cohort is not None and cohort > len(population):
        raise InputError(f"cohort must be at most the number of agents, {len(population)}, got {cohort}.")
    check_samples(model, population.a_sample(), "the population's agents")
    reasons = {
        f"combine={method.combine!r} needs all messages at once; set combine='mean'": method.combine != "mean",
        f"{method.name} learns from all messages at once": method.learn is not None,
        f"{method.name} needs validation samples": method.needs_validation,
        f"{method.name} starts from one agent's model": isinstance(method.start, int),
        f"{method.name} has no rounds": not method.rounds,
        "down_codec needs every agent in every round": method.codecs[2] is not None and cohort is not None,
    }
    for reason, holds in reasons.items():
        if holds:
            raise InputError(f"{reason}, which a population on disk does not have; use simulate.")
    if local is None and rules.uses_local(method):
        raise InputError(f"{method.name} starts from the agents' own models; give local, or set start='random'.")
    if local is not None and (local.shape != (len(population), model.size) or local.dtype != np.float32):
        raise InputError(
            f"local models must be float32 with shape [agents, weights] = [{len(population)}, {model.size}], got "
            f"{local.dtype} {list(local.shape)}."
        )
