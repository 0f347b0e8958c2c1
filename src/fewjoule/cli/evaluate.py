"""`fewjoule evaluate`: fine-tune a meta-model to a folder of new tasks and show the distribution of its quality."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fewjoule.cli import options
from fewjoule.cli.screen import say, stage, table
from fewjoule.files import write_csv
from fewjoule.studies.outputs import as_text
from fewjoule.tasks.files import read_tasks
from fewjoule.training.adapt import adapt
from fewjoule.training.tuning import tuning_of


def evaluate(
    meta: options.MetaFile,
    folder: Annotated[Path, typer.Argument(help="One file per new task, with x_test and y_test, or give --shots.")],
    shots: options.Shots = None,
    steps: options.Steps = "0,1,5,10,50",
    learning_rate: options.LearningRate = 0.01,
    optimiser: options.Optimiser = "sgd",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="CSV: task, steps, loss, accuracy.")] = None,
    cdf: Annotated[Path | None, typer.Option(help="CSV: steps, value, share of tasks at or below it.")] = None,
    target: options.Target = None,
    divide_by: options.DivideBy = None,
    spec: options.Spec = None,
    loss: options.Loss = None,
    layout: options.Layout = None,
    seed: Annotated[int, typer.Option(help="Random seed for choosing the shots.")] = 0,
    force: options.Force = False,
) -> None:  # fmt: skip
    """Fine-tune META to every new task in FOLDER and show the quality reached, as a table and a CDF."""
    options.writable(output, cdf, force=force)
    wanted = options.step_list(steps)
    loaded = options.load(meta, spec, loss, layout)
    tasks, names, *_ = read_tasks(folder, options.format_of(loaded, target, divide_by), shots=shots, seed=seed)
    with stage(f"fine-tuning to {len(names)} tasks"):
        settings: dict[str, Any] = {"learning_rate": learning_rate, "optimiser": optimiser}
        settings |= {"tuning": tuning_of(loaded.card), "rates": loaded.rates}
        result = adapt(loaded.model, loaded.vector, tasks, steps=wanted, **settings)
    metric = "accuracy" if loaded.model.loss_name == "cross_entropy" else "loss"
    values = getattr(result, metric)
    say(f"{metric} on the held-out samples of {len(names)} tasks, after each number of steps:")
    table(("steps", "mean", "5 %", "25 %", "median", "75 %", "95 %"), quantile_rows(wanted, values))
    for line in result.overflows():
        say(line)
    say()
    for line in cdf_text(values[:, -1], f"{metric} after {wanted[-1]} steps"):
        say(line)
    if output is not None:
        losses, accuracies = as_text(result.loss), as_text(result.accuracy)
        rows = [(name, s, losses[t, i], accuracies[t, i]) for t, name in enumerate(names) for i, s in enumerate(wanted)]
        write_csv(output, ("task", "steps", "loss", "accuracy"), rows, force=force)
        say(f"every task: {output}")
    if cdf is not None:
        write_csv(cdf, ("steps", "value", "share"), cdf_rows(wanted, values), force=force)
        say(f"CDF: {cdf}")


def quantile_rows(steps: Sequence[int], values: Any) -> list[list[Any]]:
    """For each number of steps: mean, then the quantiles 5, 25, 50, 75 and 95 % over tasks [tasks, steps]."""
    quantiles = np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95), axis=0)
    return [[s, float(values[:, i].mean()), *(float(q) for q in quantiles[:, i])] for i, s in enumerate(steps)]


def cdf_rows(steps: Sequence[int], values: Any) -> Iterator[tuple[int, str, str]]:
    """The empirical distribution: the share of tasks whose value is at most this one."""
    for i, s in enumerate(steps):
        points, counts = np.unique(values[:, i], return_counts=True)
        shares = counts.cumsum() / len(values)
        yield from ((s, point, share) for point, share in zip(as_text(points), as_text(shares), strict=True))


def cdf_text(values: Any, what: str, width: int = 50) -> list[str]:
    """The empirical distribution as lines of text: each decile with a bar as long as its share."""
    lines = [f"CDF: share of tasks with {what} at most ..."]
    for share in range(10, 101, 10):
        value = float(np.quantile(values, share / 100, method="inverted_cdf"))
        lines.append(f"  {share:3d} %  {'#' * (width * share // 100):<{width}}  {value:.4g}")
    return lines
