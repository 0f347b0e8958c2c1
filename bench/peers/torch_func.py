"""torch.func + torch.compile: a round is one graph, or several where one with all steps would compile for minutes."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812, as torch calls it
from torch.func import grad, vmap
from worker import MLP, Data, layers, serve


def tensors(sizes: tuple[int, ...], vector: np.ndarray) -> tuple[torch.Tensor, ...]:
    """Weights as torch.nn.Linear keeps them, [out, in]; its products are faster than those of [in, out]."""
    return tuple(torch.tensor(a.T if a.ndim == 2 else a).contiguous() for a in layers(sizes, vector))


def flat(weights: Any) -> np.ndarray:
    return np.concatenate([(a.T if a.ndim == 2 else a).reshape(-1).numpy() for a in weights])


def net(weights: Any, x: torch.Tensor) -> torch.Tensor:
    for i in range(0, len(weights) - 2, 2):
        x = torch.relu(F.linear(x, weights[i], weights[i + 1]))
    return F.linear(x, weights[-2], weights[-1])


def mse(weights: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((net(weights, x) - y) ** 2).mean()


def entropy(weights: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(net(weights, x), y)


def down(weights: Any, gradient: Any, rate: float) -> Any:
    return tuple(a - rate * g for a, g in zip(weights, gradient, strict=True))


def many(count: int, weights: Any) -> Any:
    return tuple(a.expand(count, *a.shape) for a in weights)


def j1(data: Data) -> Any:
    xa, ya, xb, yb = (torch.tensor(data[k]) for k in ("xa", "ya", "xb", "yb"))

    def meta(theta: Any, xa: Any, ya: Any, xb: Any, yb: Any) -> Any:
        return mse(down(theta, grad(mse)(theta, xa, ya), 0.01), xb, yb)

    @torch.compile
    def one_round(theta: Any, m: Any, v: Any, scale: torch.Tensor, floor: torch.Tensor) -> Any:
        g = [a.mean(0) for a in vmap(grad(meta), (None, 0, 0, 0, 0))(theta, xa, ya, xb, yb)]
        m = tuple(0.9 * a + 0.1 * b for a, b in zip(m, g, strict=True))
        v = tuple(0.999 * a + 0.001 * b * b for a, b in zip(v, g, strict=True))
        theta = tuple(a - scale * b / (c.sqrt() * floor + 1e-8) for a, b, c in zip(theta, m, v, strict=True))
        return theta, m, v

    start, turns = tensors(MLP["sine"], data["start"]), range(1, int(data["rounds"]) + 1)
    # Adam's corrections of its two means, for every round
    scales = [torch.tensor(1e-3 / (1 - 0.9**k), dtype=torch.float32) for k in turns]
    floors = [torch.tensor((1 - 0.999**k) ** -0.5, dtype=torch.float32) for k in turns]

    def run(rounds: int) -> np.ndarray:
        theta, m = start, tuple(torch.zeros_like(a) for a in start)
        v = tuple(torch.zeros_like(a) for a in start)
        for scale, floor in zip(scales[:rounds], floors[:rounds], strict=True):
            theta, m, v = one_round(theta, m, v, scale, floor)
        return flat(theta)

    return run


def j2(data: Data) -> Any:
    xa, ya, xb, yb = (torch.tensor(data[k]) for k in ("xa", "ya", "xb", "yb"))
    strength, inner_steps, cg_steps, together = 2.0, 50, 5, 10

    def dot(a: Any, b: Any) -> torch.Tensor:
        return sum((p * q).sum() for p, q in zip(a, b, strict=True))

    def descend(phi: Any, theta: Any, xa: Any, ya: Any) -> Any:
        for _ in range(together):
            g = grad(mse)(phi, xa, ya)
            phi = tuple(p - 0.01 * (a + strength * (p - t)) for p, a, t in zip(phi, g, theta, strict=True))
        return phi

    def implicit(phi: Any, xa: Any, ya: Any, xb: Any, yb: Any) -> Any:
        g = grad(mse)(phi, xb, yb)
        v, r, p = tuple(torch.zeros_like(a) for a in g), g, g
        norm = dot(r, r)
        for _ in range(cg_steps):
            # torch.compile fails on jvp of grad under vmap, which would be a little less work
            h = grad(lambda w, p=p: dot(grad(mse)(w, xa, ya), p))(phi)
            q = tuple(a + b / strength for a, b in zip(p, h, strict=True))
            along = norm / dot(p, q)
            v = tuple(a + along * b for a, b in zip(v, p, strict=True))
            r = tuple(a - along * b for a, b in zip(r, q, strict=True))
            after = dot(r, r)
            p = tuple(a + after / norm * b for a, b in zip(r, p, strict=True))
            norm = after
        return v

    steps = torch.compile(lambda phis, theta: vmap(descend, (0, None, 0, 0))(phis, theta, xa, ya))

    @torch.compile
    def server(theta: Any, phis: Any) -> Any:
        return down(theta, [a.mean(0) for a in vmap(implicit)(phis, xa, ya, xb, yb)], 0.01)

    start = tensors(MLP["sine"], data["start"])

    def run(rounds: int) -> np.ndarray:
        theta = start
        for _ in range(rounds):
            phis = tuple(a.contiguous() for a in many(len(xa), theta))
            for _ in range(inner_steps // together):
                phis = steps(phis, theta)
            theta = server(theta, phis)
        return flat(theta)

    return run


def j4(data: Data) -> Any:
    xa, ya, xb, yb = (torch.tensor(data[k]) for k in ("xa", "ya", "xb", "yb"))
    start, together = tensors(MLP["sine"], data["start"]), 5

    @torch.compile
    def steps(weights: Any) -> Any:
        for _ in range(together):
            weights = down(weights, vmap(grad(mse))(weights, xa, ya), 0.01)
        return weights

    judge = torch.compile(lambda weights: vmap(mse)(weights, xb, yb))

    def run(wanted: int) -> np.ndarray:
        weights = tuple(a.contiguous() for a in many(len(xa), start))
        for _ in range(wanted // together):
            weights = steps(weights)
        return judge(weights).numpy()

    return run


def j5(data: Data) -> Any:
    x, y, rows = torch.tensor(data["x"]), torch.tensor(data["y"].astype(np.int64)), torch.tensor(data["rows"]).long()
    start = tensors(MLP["digits"], data["start"])

    def agent(theta: Any, x: Any, y: Any, rows: Any) -> Any:
        return down(theta, grad(entropy)(theta, x[rows], y[rows]), 0.01)

    @torch.compile
    def one_round(theta: Any, rows: Any) -> Any:
        return tuple(a.mean(0) for a in vmap(agent, (None, 0, 0, 0))(theta, x, y, rows))

    def run(rounds: int) -> np.ndarray:
        theta = start
        for drawn in rows[:rounds]:
            theta = one_round(theta, drawn)
        return flat(theta)

    return run


def j6(data: Data) -> Any:
    x, y, rows = torch.tensor(data["x"]), torch.tensor(data["y"]), torch.tensor(data["rows"]).long()
    start = tensors(MLP["sine"], data["start"])

    def agent(phi: Any, x: Any, y: Any, rows: Any, centre: Any) -> Any:
        g = grad(mse)(phi, x[rows], y[rows])
        offset = tuple(p + 1e-4 * a - c for p, a, c in zip(phi, g, centre, strict=True))
        scale = torch.clamp(1e-3 / sum((o * o).sum() for o in offset).sqrt(), max=1.0)
        return tuple(c + o * scale for c, o in zip(centre, offset, strict=True))

    @torch.compile
    def one_round(phis: Any, centre: Any, rows: Any) -> Any:
        phis = vmap(agent, (0, 0, 0, 0, None))(phis, x, y, rows, centre)
        return phis, tuple(a.mean(0) for a in phis)

    def run(rounds: int) -> np.ndarray:
        phis, centre = tuple(a.contiguous() for a in many(len(x), start)), start
        for drawn in rows[:rounds]:
            phis, centre = one_round(phis, centre, drawn)
        return flat(centre)

    return run


if __name__ == "__main__":
    serve({"J1": j1, "J2": j2, "J4": j4, "J5-2": j5, "J5-100": j5, "J6": j6}, ["torch"])
