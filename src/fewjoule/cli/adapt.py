"""`fewjoule adapt`: fine-tune a meta-model to one new task from a few samples, or to every task of a folder."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fewjoule import files
from fewjoule.cli import options
from fewjoule.cli.screen import CHOOSING, say, show_energy, stage, table
from fewjoule.energy import Ledger
from fewjoule.energy.metering import Metering
from fewjoule.errors import InputError, positive, positive_int
from fewjoule.models.model import check_samples
from fewjoule.models.weights import ModelFile, write_model
from fewjoule.simulation.work import adaptation_flops
from fewjoule.studies.outputs import energy_table
from fewjoule.tasks.files import read_folder, read_task
from fewjoule.tasks.format import DataFormat
from fewjoule.tasks.samples import Tasks
from fewjoule.training.adapt import FineTuning, one_task
from fewjoule.training.adapt import adapt as fine_tune
from fewjoule.training.choose import choose_steps
from fewjoule.training.descent import optimiser as named_optimiser
from fewjoule.training.tuning import Tuning, tuning_of


def adapt(
    meta: options.MetaFile,
    new: Annotated[Path, typer.Argument(help="A new task's samples: .npz, .csv, .parquet; or a folder of them.")],
    steps: Annotated[int, typer.Option(help="Fine-tuning steps (at most, with --choose).")] = 10,
    learning_rate: options.LearningRate = 0.01,
    optimiser: options.Optimiser = "sgd",
    choose: Annotated[str | None, typer.Option(help="Choose the steps by leave-one-out or validation.")] = None,
    share: Annotated[float, typer.Option(help="Share held out by --choose validation.")] = 0.25,
    test: Annotated[Path | None, typer.Option(help="Held-out samples, if NEW has no x_test.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: next to NEW.")] = None,
    target: options.Target = None,
    divide_by: options.DivideBy = None,
    spec: options.Spec = None,
    loss: options.Loss = None,
    layout: options.Layout = None,
    meter: options.MeterName = None,
    device: options.DeviceName = None,
    seed: Annotated[int, typer.Option(help="Random seed of --choose validation.")] = 0,
    force: options.Force = False,
) -> None:  # fmt: skip
    """Fine-tune META to a new task from a few samples, or to every task in a folder."""
    positive_int("steps", steps, least=0)
    positive("learning_rate", learning_rate)
    named_optimiser(optimiser, learning_rate)
    settings: dict[str, Any] = {"learning_rate": learning_rate, "optimiser": optimiser}
    many = new.is_dir()
    if many and (choose is not None or test is not None or force):
        raise InputError("--choose, --test and --force are for one task; adapt to the tasks of a folder one by one.")
    ending = ".adapted" if many else ".adapted.safetensors"
    output = output or new.resolve().with_name(f"{new.resolve().name if many else new.stem}{ending}")
    if many:
        files.check_new_folder(output)
    else:
        options.writable(output, force=force)
    loaded = options.load(meta, spec, loss, layout)
    model, form = loaded.model, options.format_of(loaded, target, divide_by)
    settings |= {"tuning": (tuning := tuning_of(loaded.card)), "rates": loaded.rates}
    if many:
        reader = Metering(**options.given(meter=meter, device=device))
        adapt_folder(new, output, loaded, form, reader, meta.name, steps=steps, seed=seed, **settings)
        return
    support, held = read_task(new, form)
    if test is not None:
        held = read_task(test, form)[0]
    for path, samples in ((new, support), (test or new, held)):
        if samples is not None:
            check_samples(model, samples, f"{path}: the samples")
    reader = Metering(**options.given(meter=meter, device=device))
    count = int(support.mask.sum())
    say(f"{model.spec}, {model.loss_name}; {count} samples of {new.name}")
    say(f"energy: {reader.describe()}")
    said: dict[str, Any] = {"learning_rate": learning_rate, "optimiser": optimiser}
    if loaded.rates is not None:
        said = {"learning_rate": "learned", "optimiser": "sgd"}
    adapted = {"samples": count, "steps": steps, **said, "from": meta.name}
    ledger = Ledger()
    if choose is not None:
        held_out: dict[str, Any] = {"most": steps, "by": choose, "share": share, "seed": seed, **settings}
        with stage(f"choosing the number of steps by {choose}"):
            chosen, spent = reader.read(
                lambda around: choose_steps(model, loaded.vector, support, **held_out, around=around), None
            )
        spent = reader.of_flops(spent, chosen.flops)
        spent["source"] += f"; {CHOOSING}"
        ledger.add_reading(spent, method="choose", seed=seed, phase="adaptation", flops=chosen.flops)
        steps = chosen.steps
        adapted |= {"steps": steps, "chosen_by": choose}
        say(f"{steps} steps, chosen by {choose}: loss {chosen.loss[steps]:.4g} ({chosen.loss[0]:.4g} without any)")
    task = one_task(support)
    fine_tuning = FineTuning(model, loaded.vector, task.support, steps=steps, **settings)
    flops = adaptation_flops(model, task, steps, learning_rate, optimiser, tuning)
    with stage(f"{steps} steps of {named_rate(loaded, learning_rate)}"):
        (vector,), spent = reader.read(fine_tuning.run, flops)
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


def adapt_folder(
    folder: Path, output: Path, loaded: ModelFile, form: DataFormat, reader: Metering, source: str, *,
    steps: int, learning_rate: float, optimiser: str, tuning: Tuning, rates: Any, seed: int,
) -> None:  # fmt: skip
    """All tasks of a folder at once: one table on the screen, and a folder with one model each and tasks.csv."""
    model = loaded.model
    names, support, held = read_folder(folder, form)
    for samples in (support, held):
        check_samples(model, samples, f"{folder}: the samples")
    say(f"{model.spec}, {model.loss_name}; {len(names)} tasks of {folder}")
    say(f"energy: {reader.describe()}")
    settings: dict[str, Any] = {"learning_rate": learning_rate, "optimiser": optimiser}
    how: dict[str, Any] = {**settings, "tuning": tuning, "rates": rates}
    fine_tuning = FineTuning(model, loaded.vector, support, steps=steps, **how)
    flops = adaptation_flops(model, Tasks(support, held), steps, learning_rate, optimiser, tuning)
    grid = sorted({0, steps})
    with stage(f"{steps} steps of {named_rate(loaded, learning_rate)} on {len(names)} tasks"):
        vectors, spent = reader.read(fine_tuning.run, flops * len(names))
        own, other = (fine_tune(model, loaded.vector, Tasks(support, q), steps=grid, **how) for q in (support, held))
    lost = ~np.isfinite(vectors).all(-1) | ~np.isfinite(own.loss).all(-1)
    if lost.any():
        gone = [name for name, away in zip(names, lost, strict=True) if away]
        raise InputError(
            f"{folder}: fine-tuning diverged on {len(gone)} of {len(names)} tasks ({', '.join(gone[:5])}) within "
            f"{steps} steps of {learning_rate:g}; lower --learning-rate."
        )
    columns: dict[str, Any] = {"task": names, "samples": np.asarray(support.mask.sum(-1), int).tolist()}
    every, some = np.ones(len(names), bool), np.asarray(held.mask.sum(-1)) > 0
    for kind, curve, known in (("", own, every), ("held-out ", other, some)):
        for metric in ("loss", "accuracy") if model.loss_name == "cross_entropy" else ("loss",):
            for at, done in enumerate(grid if known.any() else []):
                values = getattr(curve, metric)[:, at].tolist()
                columns[f"{kind}{metric} after {done}"] = [v if k else None for v, k in zip(values, known, strict=True)]
    rows = list(zip(*columns.values(), strict=True))
    ledger = Ledger()
    same: dict[str, Any] = {"method": "adapt", "seed": seed, "phase": "adaptation", "flops": flops}
    ledger.add_reading(spent, **same, shares=len(names), of="new task")
    energy, before = energy_table(ledger), loaded.card.get("energy") or []
    with files.new_folder_atomically(output) as place:
        for i, name in enumerate(names):
            adapted = {"samples": columns["samples"][i], "steps": steps, **settings, "from": source}
            adapted |= {"loss": own.loss[i, -1]} | ({"test_loss": other.loss[i, -1]} if some[i] else {})
            card = {**loaded.card, "reading": form._asdict(), "adapted": adapted, "energy": [*before, *energy]}
            write_model(place / f"{name}.safetensors", model, vectors[i], card)
        files.write_csv(place / "tasks.csv", list(columns), rows)
    table(list(columns), rows)
    say("each task:")
    show_energy(energy, None)
    say(f"adapted models and tasks.csv: {output}")


def named_rate(loaded: ModelFile, learning_rate: float) -> str:
    """The step of the fine-tuning for people: a meta-model may come with its own."""
    return f"{learning_rate:g}" if loaded.rates is None else "learned rates"


def step_grid(most: int) -> tuple[int, ...]:
    """Numbers of steps worth looking at: 0, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, ... and `most` itself."""
    grid = {0, 1, most, *(round(m * 10**e) for e in range(7) for m in (1, 1.5, 2, 3, 5, 7))}
    return tuple(sorted(n for n in grid if n <= most))
