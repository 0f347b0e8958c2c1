"""Flower's simulation: its FedAvg, clients in processes of Ray. The clock leaves out the start of Ray, which every call
of a simulation begins with."""

import logging
import sys
import time
from typing import Any

import flwr.app as fl
import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812, as torch calls it
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from worker import MLP, Data, layers, loaded, serve

client_app = ClientApp()


@client_app.train()
def train(message: fl.Message, context: fl.Context) -> fl.Message:
    """One step on the rows that were drawn for this client and round."""
    config, agent = message.content["config"], int(context.node_config["partition-id"])
    data = loaded(config["file"])
    rows = data["rows"][config["server-round"] - 1, agent]
    x, y = torch.tensor(data["x"][agent][rows]), torch.tensor(data["y"][agent][rows].astype(np.int64))
    weights = [torch.tensor(a).requires_grad_() for a in message.content["arrays"].to_numpy_ndarrays()]
    for i in range(0, len(weights) - 2, 2):
        x = torch.relu(x @ weights[i] + weights[i + 1])
    loss = F.cross_entropy(x @ weights[-2] + weights[-1], y)
    slopes = torch.autograd.grad(loss, weights)
    after = [(a - 0.01 * g).detach().numpy() for a, g in zip(weights, slopes, strict=True)]
    content = {"arrays": fl.ArrayRecord(after), "metrics": fl.MetricRecord({"num-examples": len(rows)})}
    return fl.Message(fl.RecordDict(content), reply_to=message)


def j5(data: Data) -> Any:
    start, agents = layers(MLP["digits"], data["start"]), len(data["x"])

    def run(rounds: int) -> np.ndarray:
        server_app, out = ServerApp(), {}

        @server_app.main()
        def main(grid: Grid, context: fl.Context) -> None:
            strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=agents, min_available_nodes=agents)
            config = fl.ConfigRecord({"file": sys.argv[2]})
            strategy.start(grid, fl.ArrayRecord(start), num_rounds=1, train_config=config)  # so that actors are there
            before = time.perf_counter()
            result = strategy.start(grid, fl.ArrayRecord(start), num_rounds=rounds, train_config=config)
            run.seconds = time.perf_counter() - before  # type: ignore[attr-defined]
            out["weights"] = result.arrays.to_numpy_ndarrays()

        run_simulation(server_app, client_app, agents, backend_config={"client_resources": {"num_cpus": 1}})
        return np.concatenate([a.reshape(-1) for a in out["weights"]])

    return run


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.ERROR)
    serve({"J5-2": j5, "J5-100": j5}, ["flwr", "ray", "torch"])
