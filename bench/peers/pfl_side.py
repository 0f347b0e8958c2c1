"""pfl: its FedAvg, one user after the other; a user's samples of a round are the rows that were drawn for it."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812, as torch calls it
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from worker import MLP, Data, layers, serve


class Net(torch.nn.Module):
    def __init__(self, start: np.ndarray) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in ((784, 8), (8, 8), (8, 10)))
        with torch.no_grad():
            for tensor, array in zip(self.parameters(), layers(MLP["digits"], start), strict=True):
                tensor.copy_(torch.tensor(array.T.copy()))

    def loss(self, x: torch.Tensor, y: torch.Tensor, **ignored: Any) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return F.cross_entropy(self.layers[-1](x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor, **ignored: Any) -> dict[str, float]:
        return {}


def j5(data: Data) -> Any:
    x, y, rows = torch.tensor(data["x"]), torch.tensor(data["y"].astype(np.int64)), torch.tensor(data["rows"]).long()
    agents = len(x)

    def run(rounds: int) -> np.ndarray:
        turns = iter(range(rounds * agents))

        def dataset(turn: int) -> Dataset:
            agent = turn % agents
            drawn = rows[turn // agents, agent]
            return Dataset([x[agent, drawn], y[agent, drawn]], user_id=str(agent))

        net = Net(data["start"])
        model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
        federated = FederatedDataset(dataset, lambda: next(turns))
        FederatedAveraging().run(
            NNAlgorithmParams(rounds, rounds + 1, agents, None),
            SimulatedBackend(federated, federated),
            model,
            NNTrainHyperParams(local_batch_size=rows.shape[-1], local_num_epochs=1, local_learning_rate=0.01),
            send_metrics_to_platform=False,
        )
        return np.concatenate([a.detach().T.reshape(-1).numpy() for a in net.parameters()])

    return run


if __name__ == "__main__":
    serve({"J5-2": j5, "J5-100": j5}, ["pfl", "torch"])
