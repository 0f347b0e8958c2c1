"""fedjax: its FedAvg, one client step on rows that are cut out before the clock starts."""

from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from worker import MLP, Data, layers, serve


def net(weights: Any, x: Any) -> Any:
    for i in range(0, len(weights) - 2, 2):
        x = jax.nn.relu(x @ weights[i] + weights[i + 1])
    return x @ weights[-2] + weights[-1]


def loss(weights: Any, batch: Any, key: Any) -> Any:
    log_p = jax.nn.log_softmax(net(weights, batch["x"]))
    return -jnp.take_along_axis(log_p, batch["y"][:, None], -1).mean()


def j5(data: Data) -> Any:
    start = [jnp.asarray(a) for a in layers(MLP["digits"], data["start"])]
    size = data["rows"].shape[-1]
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss), fedjax.optimizers.sgd(0.01), fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=size, num_epochs=1),
    )  # fmt: skip
    keys = jax.random.split(jax.random.PRNGKey(0), len(data["x"]))
    rounds = [
        [
            (str(i), fedjax.ClientDataset({"x": data["x"][i][rows], "y": data["y"][i][rows]}), keys[i])
            for i, rows in enumerate(drawn)
        ]
        for drawn in data["rows"]
    ]

    def run(count: int) -> np.ndarray:
        state = algorithm.init(start)
        for clients in rounds[:count]:
            state, _ = algorithm.apply(state, clients)
        return np.concatenate([np.asarray(a).reshape(-1) for a in state.params])

    return run


if __name__ == "__main__":
    serve({"J5-2": j5, "J5-100": j5}, ["fedjax"])
