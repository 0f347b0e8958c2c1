"""FedProx (Li et al. 2020, "Federated Optimization in Heterogeneous Networks").

    agent    message phi_i = SGD_steps(theta; L_i(phi) + proximal/2 ||phi - theta||²)
    server   theta <- mean(phi_i)

`proximal` is the paper's mu: it keeps agents whose data differ near the common model. With 0 it is FedAvg.
"""

from jax import Array

from fewjoule.errors import Batch, Count, Epochs, NotNegative, Positive
from fewjoule.methods.fedavg import local_sgd
from fewjoule.methods.method import Broadcast, Combine, Method, StartAt, Weighting, factory


@factory
def fedprox(
    *,
    rounds: Count = 5,
    local_steps: Count = 100,
    epochs: Epochs = None,
    learning_rate: Positive = 0.01,
    proximal: NotNegative = 0.1,
    batch: Batch = 100,
    start: StartAt = "average",
    weighting: Weighting = "agents",
    combine: Combine = "mean",
) -> Method:
    """FedAvg whose local steps are pulled back towards the common model."""

    def server(model: Array, mean: Array) -> tuple[Array, Broadcast]:
        return mean, Broadcast(mean)

    return Method("fedprox", rounds, start, local_sgd(local_steps, learning_rate, batch, epochs, proximal), server)
