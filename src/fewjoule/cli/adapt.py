"""`fewjoule adapt`: fine-tune a meta-model to one new task from a few samples."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fewjoule.cli import options
from fewjoule.cli.screen import say, show_energy, stage, table
from fewjoule.energy import Ledger
from fewjoule.energy.metering import Metering
from fewjoule.errors import InputError, positive, positive_int
from fewjoule.models.model import check_samples
from fewjoule.models.weights import write_model
from fewjoule.simulate.work import adaptation_flops
from fewjoule.study.outputs import energy_table
from fewjoule.tasks.files import read_task
from fewjoule.training.adapt import FineTuning, choose_steps, one_task
from fewjoule.training.adapt import adapt as fine_tune
from fewjoule.training.descent import optimiser as named_optimiser


def adapt(
    meta: options.MetaFile,
    new: Annotated[Path, typer.Argument(help="The new task's samples: .npz, .csv or .parquet.")],
    steps: Annotated[int, typer.Option(help="Fine-tuning steps (at most, with --choose).")] = 10,
    learning_rate: options.LearningRate = 0.01,
    optimiser: options.Optimiser = "sgd",
    choose: Annotated[str | None, typer.Option(help="Choose the steps by leave-one-out or validation.")] = None,
    share: Annotated[float, typer.Option(help="Share held out by --choose validation.")] = 0.25,
    test: Annotated[Path | None, typer.Option(help="Held-out samples, where NEW has no x_test.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: NEW.adapted.safetensors.")] = None,
    target: options.Target = None,
    divide_by: options.DivideBy = None,
    spec: options.Spec = None,
    loss: options.Loss = None,
    layout: options.Layout = None,
    meter: options.MeterName = None,
    device: options.DeviceName = None,
    seed: Annotated[int, typer.Option(help="Of the split by --choose validation.")] = 0,
    force: options.Force = False,
) -> None:  # fmt: skip
    """Fine-tune META to a new task from a few samples."""
    output = output or new.with_name(f"{new.stem}.adapted.safetensors")
    options.writable(output, force=force)
    positive_int("steps", steps, least=0)
    positive("learning_rate", learning_rate)
    named_optimiser(optimiser, learning_rate)
    loaded = options.load(meta, spec, loss, layout)
    model, form = loaded.model, options.format_of(loaded, target, divide_by)
    support, held = read_task(new, form)
    if test is not None:
        held = read_task(test, form)[0]
    for path, samples in ((new, support), (test or new, held)):
        if samples is not None:
            check_samples(model, samples, f"{path}: the samples")
    reader = Metering(**options.given(meter=meter, device=device))
    settings: dict[str, Any] = {"learning_rate": learning_rate, "optimiser": optimiser}
    count = int(support.mask.sum())
    say(f"{model.spec}, {model.loss_name}; {count} samples of {new.name}")
    say(f"arithmetic: {reader.describe()}")
    adapted = {"samples": count, "steps": steps, **settings, "from": meta.name}
    ledger = Ledger()
    if choose is not None:
        held_out: dict[str, Any] = {"most": steps, "by": choose, "share": share, "seed": seed, **settings}
        with stage(f"choosing the number of steps by {choose}"):
            chosen, spent = reader.read(
                lambda around: choose_steps(model, loaded.vector, support, **held_out, around=around), None
            )
        spent = reader.of_flops(spent, chosen.flops)
        spent["source"] += "; choosing the number of steps"
        ledger.add_reading(spent, method="choose", seed=seed, phase="adaptation", flops=chosen.flops)
        steps = chosen.steps
        adapted |= {"steps": steps, "chosen_by": choose}
        say(f"{steps} steps, chosen by {choose}: loss {chosen.loss[steps]:.4g} ({chosen.loss[0]:.4g} without any)")
    task = one_task(support)
    tuning = FineTuning(model, loaded.vector, task.support, steps=steps, **settings)
    flops = adaptation_flops(model, task, steps, learning_rate, optimiser)
    with stage(f"{steps} steps of {learning_rate:g}"):
        (vector,), spent = reader.read(tuning.run, flops)
        grid = step_grid(steps)
        curves = {
            name: fine_tune(model, loaded.vector, one_task(support, query), steps=grid, **settings)
            for name, query in (("", support), ("held-out ", held))
            if query is not None
        }
    if not np.isfinite(vector).all() or not np.isfinite(curves[""].loss).all():
        raise InputError(f"fine-tuning diverged within {steps} steps of {learning_rate:g}; lower --learning-rate.")
    columns: dict[str, Any] = {"steps": grid}
    for name, curve in curves.items():
        columns[f"{name}loss"] = curve.loss[0].tolist()
        if model.loss_name == "cross_entropy":
            columns[f"{name}accuracy"] = curve.accuracy[0].tolist()
    table(list(columns), list(zip(*columns.values(), strict=True)))
    adapted["loss"] = curves[""].loss[0, -1]
    if held is not None:
        adapted["test_loss"] = curves["held-out "].loss[0, -1]
    ledger.add_reading(spent, method="adapt", seed=seed, phase="adaptation", flops=flops)
    energy = energy_table(ledger)
    before = loaded.card.get("energy") or []
    card = {**loaded.card, "reading": form._asdict(), "adapted": adapted, "energy": [*before, *energy]}
    write_model(output, model, vector, card, force=force)
    show_energy(energy, None)
    say(f"adapted model: {output}")


def step_grid(most: int) -> tuple[int, ...]:
    """Numbers of steps worth looking at: 0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, ... and `most` itself."""
    grid = {0, 1, most, *(round(m * 10**e) for e in range(7) for m in (1, 1.5, 2, 3, 5, 7))}
    return tuple(sorted(n for n in grid if n <= most))
