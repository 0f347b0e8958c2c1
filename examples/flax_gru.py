"""A Flax GRU over sequences, with a loss of its own: what a sensor will say next, from agents that share no data.

Run it with `python examples/flax_gru.py` (needs flax).
"""

import jax.numpy as jnp
import numpy as np
from flax import linen

import fewjoule as fj

STEPS, CHANNELS = 20, 3


class Gru(linen.Module):
    @linen.compact
    def __call__(self, x):
        return linen.Dense(1)(linen.RNN(linen.GRUCell(8))(x)[:, -1])


def huber(outputs, targets):
    """Small errors count squared, large ones by their size: a broken sensor does not rule the rest."""
    gap = jnp.abs(outputs - targets)
    return jnp.where(gap < 1, gap**2 / 2, gap - 0.5)


def sequences(slope: float, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Noisy sequences [count, STEPS, CHANNELS]; the target is what the first channel will be one step later."""
    phase, time = rng.uniform(0, 6, (count, 1, CHANNELS)), np.arange(STEPS + 1)[None, :, None]
    x = slope * np.sin(0.4 * time + phase) + rng.normal(0, 0.05, (count, STEPS + 1, CHANNELS))
    return x[:, :-1], x[:, -1, :1]


def main() -> dict[int, float]:
    rng = np.random.default_rng(0)
    agents = fj.make_agents([sequences(slope, 100, rng) for slope in (0.5, 1.0, 2.0)])
    model = fj.from_flax(Gru(), np.zeros((1, STEPS, CHANNELS)), loss=huber)
    local = fj.train_locally(model, agents, optimiser="adam", schedule="cosine", max_steps=300)
    run = fj.simulate(fj.fedavg(rounds=5, local_steps=20, learning_rate=0.1), model, agents, local)
    slopes = rng.uniform(0.3, 2.5, 10)
    tasks = fj.make_tasks([sequences(s, 10, rng) for s in slopes], [sequences(s, 50, rng) for s in slopes])
    errors = fj.adapt(model, run.meta, tasks, steps=[0, 10, 50], learning_rate=0.1).median()
    print(f"{model}; median loss on new sensors by steps:", {k: round(v, 4) for k, v in errors.items()})
    return errors


if __name__ == "__main__":
    main()
