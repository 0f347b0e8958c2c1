"""TorchOpt: MAML with its differentiable SGD, iMAML with its implicit gradient; task by task, as its examples do."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812, as torch calls it
import torchopt
from worker import MLP, Data, layers, serve


class Net(torch.nn.Module):
    def __init__(self, start: np.ndarray) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in ((1, 40), (40, 40), (40, 1)))
        with torch.no_grad():
            for tensor, array in zip(self.parameters(), layers(MLP["sine"], start), strict=True):
                tensor.copy_(torch.tensor(array.T.copy()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x))
        return self.layers[-1](x)


def flat(weights: Any) -> np.ndarray:
    return np.concatenate([a.detach().T.reshape(-1).numpy() for a in weights])


def tasks_of(data: Data) -> list[tuple[torch.Tensor, ...]]:
    return list(zip(*(torch.tensor(data[k]) for k in ("xa", "ya", "xb", "yb")), strict=True))


def j1(data: Data) -> Any:
    tasks = tasks_of(data)

    def run(rounds: int) -> np.ndarray:
        net = Net(data["start"])
        inner, outer = torchopt.MetaSGD(net, lr=0.01), torch.optim.Adam(net.parameters(), lr=1e-3)
        for _ in range(rounds):
            outer.zero_grad()
            before = [torchopt.extract_state_dict(part, by="reference") for part in (net, inner)]
            for xa, ya, xb, yb in tasks:
                inner.step(F.mse_loss(net(xa), ya))
                (F.mse_loss(net(xb), yb) / len(tasks)).backward()
                torchopt.recover_state_dict(net, before[0])
                torchopt.recover_state_dict(inner, before[1])
            outer.step()
        return flat(net.parameters())

    return run


def j2(data: Data) -> Any:
    tasks, strength = tasks_of(data), 2.0

    def loss(weights: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for i in range(0, len(weights) - 2, 2):
            x = torch.relu(F.linear(x, weights[i], weights[i + 1]))
        return F.mse_loss(F.linear(x, weights[-2], weights[-1]), y)

    def objective(phi: Any, theta: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        pull = sum(((p - t) ** 2).sum() for p, t in zip(phi, theta, strict=True))
        return loss(phi, x, y) + strength / 2 * pull

    slope = torch.func.grad(objective)

    @torchopt.diff.implicit.custom_root(
        slope, argnums=1, solve=torchopt.linear_solve.solve_cg(maxiter=5, rtol=0.0, atol=0.0)
    )
    def descend(phi: Any, theta: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        for _ in range(50):
            phi = tuple(p - 0.01 * g for p, g in zip(phi, slope(phi, theta, x, y), strict=True))
        return phi

    def run(rounds: int) -> np.ndarray:
        theta = tuple(a.detach().requires_grad_() for a in Net(data["start"]).parameters())
        for _ in range(rounds):
            total = [torch.zeros_like(a) for a in theta]
            for xa, ya, xb, yb in tasks:
                phi = descend(tuple(a.detach() for a in theta), theta, xa, ya)
                total = [a + b for a, b in zip(total, torch.autograd.grad(loss(phi, xb, yb), theta), strict=True)]
            theta = tuple(
                (a - 0.01 * g / len(tasks)).detach().requires_grad_() for a, g in zip(theta, total, strict=True)
            )
        return flat(theta)

    return run


if __name__ == "__main__":
    serve({"J1": j1, "J2": j2}, ["torchopt", "torch"])
