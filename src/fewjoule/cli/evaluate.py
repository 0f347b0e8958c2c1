"""`fewjoule evaluate`: fine-tune a meta-model to a folder of new tasks and show the distribution of its quality."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fewjoule.cli.options import (
    DivideBy,
    Force,
    Layout,
    Loss,
    MetaFile,
    Optimiser,
    Shots,
    Spec,
    Step,
    Steps,
    Target,
    format_of,
    load,
    step_list,
    writable,
)  # fmt: skip
from fewjoule.cli.screen import say, short, stage, table


def evaluate(
    meta: MetaFile,
    folder: Annotated[Path, typer.Argument(help="One file per new task; x_test and y_test judge, or give --shots.")],
    shots: Shots = None,
    steps: Steps = "0,1,5,10,50",
    step: Step = 0.01,
    optimiser: Optimiser = "sgd",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="CSV: task, steps, loss, accuracy.")] = None,
    cdf: Annotated[Path | None, typer.Option(help="CSV: steps, value, share of tasks up to it.")] = None,
    target: Target = None,
    divide_by: DivideBy = None,
    spec: Spec = None,
    loss: Loss = None,
    layout: Layout = None,
    seed: Annotated[int, typer.Option(help="Of the choice of shots.")] = 0,
    force: Force = False,
) -> None:  # fmt: skip
    """Fine-tune META to every new task in FOLDER and show how good that is, as a CDF and a table."""
    from fewjoule.files import write_atomically
    from fewjoule.tasks.files import read_tasks
    from fewjoule.training.adapt import adapt

    writable(output, cdf, force=force)
    wanted = step_list(steps)
    loaded = load(meta, spec, loss, layout)
    tasks, names, *_ = read_tasks(folder, format_of(loaded, target, divide_by), shots=shots, seed=seed)
    with stage(f"fine-tuning to {len(names)} tasks"):
        result = adapt(loaded.model, loaded.vector, tasks, steps=wanted, step=step, optimiser=optimiser)
    metric = "accuracy" if loaded.model.loss_name == "cross_entropy" else "loss"
    values = getattr(result, metric)
    say(f"{metric} on the held-out samples of {len(names)} tasks, after each number of steps:")
    table(("steps", "mean", "5 %", "25 %", "median", "75 %", "95 %"), quantile_rows(wanted, values))
    say()
    for line in cdf_text(values[:, -1], f"{metric} after {wanted[-1]} steps"):
        say(line)
    if output is not None:
        write_atomically(output, evaluation_table(names, result).encode(), force=force)
        say(f"every task: {output}")
    if cdf is not None:
        write_atomically(cdf, cdf_table(wanted, values).encode(), force=force)
        say(f"CDF: {cdf}")


def quantile_rows(steps: Sequence[int], values: Any) -> list[list[Any]]:
    """For each number of steps: mean, then the quantiles 5, 25, 50, 75 and 95 % over tasks [tasks, steps]."""
    import numpy as np

    quantiles = np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95), axis=0, method="inverted_cdf")
    return [[s, float(values[:, i].mean()), *(float(q) for q in quantiles[:, i])] for i, s in enumerate(steps)]


def cdf_table(steps: Sequence[int], values: Any) -> str:
    """CSV of the empirical distribution: the share of tasks whose value is at most this one."""
    import numpy as np

    lines = ["steps,value,share"]
    for i, s in enumerate(steps):
        points, counts = np.unique(values[:, i], return_counts=True)
        lines += [f"{s},{short(p)},{short(c)}" for p, c in zip(points, counts.cumsum() / len(values), strict=True)]
    return "\n".join(lines) + "\n"


def cdf_text(values: Any, what: str, width: int = 50) -> list[str]:
    """The empirical distribution as lines of text: each decile with a bar as long as its share."""
    import numpy as np

    lines = [f"CDF: share of tasks with {what} at most ..."]
    for share in range(10, 101, 10):
        value = float(np.quantile(values, share / 100, method="inverted_cdf"))
        lines.append(f"  {share:3d} %  {'#' * (width * share // 100):<{width}}  {value:.4g}")
    return lines


def evaluation_table(names: Sequence[str], result: Any) -> str:
    """CSV with one line per task and number of steps."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("task", "steps", "loss", "accuracy"))
    for t, name in enumerate(names):
        for i, s in enumerate(result.steps):
            writer.writerow((name, s, short(result.loss[t, i]), short(result.accuracy[t, i])))
    return text.getvalue()
