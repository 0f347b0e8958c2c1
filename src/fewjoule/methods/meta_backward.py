"""Meta-Backward (Elgabli et al. 2021, "Energy-Efficient and Federated Meta-Learning via Projected Stochastic Gradient
Ascent"), Algorithm 1.

    phi_i^K = agent i's own model, trained offline;   Phi^K = mean_i phi_i^K
    for k = K-1, ..., 0:
        agent    p = phi_i^{k+1} + learning_rate * grad L_i(phi_i^{k+1})                      ascent on a mini-batch
                 phi_i^k = the point nearest to p with ||phi - Phi^{k+1}||² <= delta_k
        server   Phi^k = mean_i phi_i^k
    meta-model = Phi^0

The paper's quadratic in mu gives the projection in closed form: p itself where it lies in the ball, else
Phi + (p - Phi) * sqrt(delta) / ||p - Phi||. Radii here are distances, sqrt(delta_k).
"""

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.errors import LARGEST_REAL, Batch, Count, InputError, Positive, is_real, not_negative, unknown
from fewjoule.methods.method import Broadcast, Combine, Info, Method, Start, Turn, Weighting, factory, own_model_kept
from fewjoule.tasks.samples import AgentData, draw
from fewjoule.training.curvature import largest_eigenvalue
from fewjoule.training.descent import Loss

SCHEDULES = ("constant", "linear", "geometric")
AUTO_RISE = 0.01
"""`auto` lets the agents' mean loss at the average rise by at most this share of itself over all rounds."""


@dataclass(frozen=True)
class Schedule:
    """How delta_k falls from the first round (k = K-1) to the last (k = 0), as multiples of the agents' spread.

    The spread D is the largest squared distance of a local model from their average: `Schedule("linear")` begins with
    delta = D and ends with D / rounds. `first` and `last` are delta / D in the first and the last round.
    """

    kind: str
    first: float = 1.0
    last: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in SCHEDULES:
            raise unknown("schedule", self.kind, SCHEDULES)
        for name, value in (("first", self.first), ("last", self.last)):
            if value is not None and not (is_real(value) and 0 <= value <= LARGEST_REAL):
                raise InputError(f"{name} of a radius schedule must be a finite number of 0 or more, got {value!r}.")
        if self.kind == "constant" and self.last not in (None, self.first):
            raise InputError(f"a constant schedule has no last value, got {self.last}; leave it out.")
        if self.last is not None and self.last > self.first:
            raise InputError(
                f"the radius must not grow towards round 0, got first {self.first} and last {self.last}; swap them."
            )
        if self.kind == "geometric" and (self.first == 0 or self.last == 0):
            raise InputError("a geometric schedule needs first and last above 0.")

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> "Schedule":
        """The schedule that a study file writes as a table, such as `{kind = "linear", first = 0.5}`."""
        known = [field.name for field in fields(cls)]
        for key in table:
            if key not in known:
                raise unknown("key of radius", key, known)
        if "kind" not in table:
            raise InputError(f"radius needs a kind, one of {', '.join(SCHEDULES)}, got {table}.")
        return cls(**table)

    def deltas(self, rounds: int) -> Array:
        """delta_k / D for each round, in the order of the rounds."""
        if self.kind == "constant":
            return jnp.full(rounds, float(self.first))
        first, last = float(self.first), self.last  # a file may write them as whole numbers, beyond JAX's integers
        if self.kind == "linear":
            return jnp.linspace(first, first / rounds if last is None else float(last), rounds)
        return jnp.geomspace(first, first * 1e-6 if last is None else float(last), rounds)


Radius = str | float | list[float] | tuple[float, ...] | Schedule


@factory
def meta_backward(
    *,
    rounds: Count = 50,
    learning_rate: Positive = 0.01,
    batch: Batch = 100,
    radius: Radius = "auto",
    weighting: Weighting = "agents",
    combine: Combine = "mean",
) -> Method:
    """Projected stochastic gradient ascent from the agents' own models to a common start.

    `radius` is `"auto"`; a `Schedule` or its name relative to the agents' spread; one radius sqrt(delta) for all
    rounds; or a list of one radius per round, in the order of the rounds, never growing.
    """
    wanted = _read_radius(radius, rounds)

    def probe(loss: Loss, average: Array, data: AgentData, key: Array) -> Array:
        """Three scalars per agent, on its own samples at the average: loss, gradient norm, largest curvature."""
        value, gradient = jax.value_and_grad(loss)(average, data.train)
        curvature = largest_eigenvalue(lambda v: loss(v, data.train), average, key)
        return jnp.stack([value, jnp.linalg.norm(gradient), jnp.abs(curvature)])

    def init(start: Start, probes: Any) -> tuple[Any, Broadcast]:
        if wanted is None:
            radii = jnp.full(rounds, _trust_radius(probes) / rounds)
        elif isinstance(wanted, Schedule):
            radii = jnp.sqrt(wanted.deltas(rounds) * start.spread)
        else:
            radii = jnp.asarray(wanted, jnp.float32)
        return (radii, jnp.zeros((), jnp.int32)), Broadcast(start.model, radii[0])

    def agent(loss: Loss, phi: Array, broadcast: Broadcast, data: AgentData, key: Array) -> Turn:
        value, gradient = jax.value_and_grad(loss)(phi, draw(data.train, key, batch))
        phi, active = project(phi + learning_rate * gradient, broadcast.model, broadcast.scalars)
        return phi, phi, Info(value, phi, active)

    def server(state: Any, mean: Array) -> tuple[Any, Broadcast]:
        radii, done = state
        done = done + 1
        return (radii, done), Broadcast(mean, radii[jnp.minimum(done, rounds - 1)])

    probing = probe if wanted is None else None
    return Method("meta_backward", rounds, "average", agent, server, init, own_model_kept, probe=probing)


def project(point: Array, centre: Array, radius: Array) -> tuple[Array, Array]:
    """The nearest point of the ball around `centre`, and 1 where that is not `point` itself, else 0."""
    offset = point - centre
    distance = jnp.linalg.norm(offset)
    outside = distance > radius
    scale = jnp.where(outside, radius / jnp.where(outside, distance, 1), 1)
    return jnp.where(outside, centre + offset * scale, point), outside.astype(point.dtype)


def _trust_radius(probes: Array) -> Array:
    """How far the average may move in all, from the agents' probes [agents, (loss, gradient norm, curvature)] alone.

    The distance rho at which a parabola of the agents' mean slope and largest curvature, g rho + c rho²/2, has risen
    by AUTO_RISE of their mean loss.
    """
    loss, slope, curvature = probes[:, 0].mean(), probes[:, 1].mean(), probes[:, 2].max()
    rise = AUTO_RISE * loss
    return 2 * rise / jnp.maximum(slope + jnp.sqrt(slope**2 + 2 * curvature * rise), np.finfo(probes.dtype).tiny)


def _read_radius(radius: Any, rounds: int) -> list[float] | Schedule | None:
    """Absolute radii per round, or a schedule relative to the spread; None for `auto`."""
    if isinstance(radius, Schedule):
        return radius
    if isinstance(radius, str):
        if radius not in (*SCHEDULES, "auto"):
            raise unknown("radius", radius, (*SCHEDULES, "auto"))
        return None if radius == "auto" else Schedule(radius)
    radii = list(radius) if isinstance(radius, tuple) else [radius] * rounds
    if not all(is_real(r) for r in radii):
        raise InputError(f"radius must be a name, a number, a list of numbers or a Schedule, got {radius!r}.")
    if len(radii) != rounds:
        raise InputError(f"a list of radii must have one per round: {rounds}, got {len(radii)}.")
    for r in radii:
        not_negative("radius", r)
    for before, after in pairwise(radii):
        if after > before:
            raise InputError(f"radii must not grow towards round 0, got {after} after {before}; sort them falling.")
    return radii
