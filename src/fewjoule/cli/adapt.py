"""`fewjoule adapt`, `predict` and `evaluate`: what is done with a meta-model."""

import csv
import io
from pathlib import Path
from typing import Annotated, Any

import typer

from fewjoule.cli.screen import say, stage, table

ModelFile = Annotated[Path, typer.Argument(help="A model: .safetensors of fewjoule, PyTorch or Flax.")]
Spec = Annotated[str | None, typer.Option("--model", help="Architecture, where the file has no fewjoule card.")]
Loss = Annotated[str | None, typer.Option(help="mse or cross_entropy, where the file has no fewjoule card.")]
Layout = Annotated[str | None, typer.Option(help="pytorch, flax or fewjoule, where the weights do not tell.")]
Target = Annotated[str | None, typer.Option(help="Target column of CSV and Parquet (default: as in training).")]
DivideBy = Annotated[float | None, typer.Option(help="Divide every input by this (default: as in training).")]
Step = Annotated[float, typer.Option(help="Size of a fine-tuning step.")]
Optimiser = Annotated[str, typer.Option(help="sgd, adam, ...")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]


def load(path: Path, spec: str | None, loss: str | None, layout: str | None) -> Any:
    """A model by its file; flags say what a file without a card does not."""
    from fewjoule.files import use_compile_cache
    from fewjoule.models.nets import model_from_spec
    from fewjoule.models.weights import read_card, read_model

    use_compile_cache()
    model = None
    known = loss or (read_card(path) or {}).get("loss")
    if spec is not None and known is not None:
        model = model_from_spec(spec, loss=known)
    return read_model(path, model=model, loss=loss, layout=layout)


def reading_of(loaded: Any, target: str | None, divide_by: float | None) -> Any:
    """How the model's files are read: as its card says, unless a flag says otherwise."""
    from fewjoule.tasks.files import DataFormat

    known = dict(loaded.card.get("reading") or {})
    known = {key: tuple(v) if isinstance(v, list) else v for key, v in known.items() if key in DataFormat._fields}
    reading = DataFormat(**known)
    task = "regression" if loaded.model.loss_name == "mse" else "classification"
    reading = reading._replace(task=task)
    if target is not None:
        reading = reading._replace(target=target)
    return reading if divide_by is None else reading._replace(divide_by=divide_by)


def adapt(
    meta: ModelFile,
    new: Annotated[Path, typer.Argument(help="The new task's samples: .npz, .csv or .parquet.")],
    steps: Annotated[int, typer.Option(help="Fine-tuning steps (at most, with --choose).")] = 10,
    step: Step = 0.01,
    optimiser: Optimiser = "sgd",
    choose: Annotated[str | None, typer.Option(help="Choose the steps by leave-one-out or validation.")] = None,
    share: Annotated[float, typer.Option(help="Share held out by --choose validation.")] = 0.25,
    test: Annotated[Path | None, typer.Option(help="Held-out samples, where NEW has no x_test.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: NEW.adapted.safetensors.")] = None,
    target: Target = None,
    divide_by: DivideBy = None,
    spec: Spec = None,
    loss: Loss = None,
    layout: Layout = None,
    meter: Annotated[str, typer.Option(help="auto, powercap, cpu-time or operations.")] = "auto",
    device: Annotated[str | None, typer.Option(help="The device whose watts the models take.")] = None,
    seed: Annotated[int, typer.Option(help="Of the split by --choose validation.")] = 0,
    force: Force = False,
) -> None:  # fmt: skip
    """Fine-tune META to a new task from a few samples."""
    from fewjoule.cli.settings import energy_settings
    from fewjoule.cli.train import show_energy
    from fewjoule.energy import Ledger
    from fewjoule.files import check_writable
    from fewjoule.models.model import check_samples
    from fewjoule.models.weights import write_model
    from fewjoule.simulate.work import adaptation_flops
    from fewjoule.study.train import charge_reading, energy_table, with_name
    from fewjoule.tasks.files import read_task
    from fewjoule.training.fine_tune import FineTuned, check_settings, choose_steps, fine_tune, one_task

    output = output or new.with_name(f"{new.stem}.adapted.safetensors")
    check_writable(output, force=force)
    check_settings(steps, step, optimiser)
    loaded = load(meta, spec, loss, layout)
    reading = reading_of(loaded, target, divide_by)
    support, held = read_task(new, reading)
    if test is not None:
        held = read_task(test, reading)[0]
    for path, samples in ((new, support), (test or new, held)):
        if samples is not None:
            with_name(path, check_samples, loaded.model, samples, "the samples")
    reader, ledger = energy_settings(meter=meter, device=device).metering(), Ledger()
    settings: dict[str, Any] = {"step": step, "optimiser": optimiser}
    count = int(support.mask.sum())
    say(f"{loaded.model.spec}, {loaded.model.loss_name}; {count} samples of {new.name}")
    say(f"arithmetic: {reader.describe()}")
    chosen = None
    if choose is not None:
        with stage(f"choosing the number of steps by {choose}"):
            chosen = choose_steps(
                loaded.model, loaded.vector, support, most=steps, by=choose, share=share, seed=seed, **settings
            )
        steps = chosen.steps
        say(f"{steps} steps, chosen by {choose}: loss {chosen.loss[steps]:.4g} ({chosen.loss[0]:.4g} without any)")

    def tune() -> FineTuned:
        return fine_tune(loaded.model, loaded.vector, support, held, steps=steps, **settings)

    flops = adaptation_flops(loaded.model, one_task(support), steps, step)
    with stage(f"{steps} steps of {step:g}"):
        tune()  # compiles, which no device pays for
        done, spent_there = reader.read(lambda around: around(tune), flops)
    charge_reading(ledger, "adapt", seed, "adaptation", spent_there, flops)
    _show_steps(done, loaded.model.loss_name == "cross_entropy")
    adapted = {"samples": count, "steps": steps, **settings, "from": meta.name, "loss": done.loss[-1]}
    if chosen is not None:
        adapted["chosen_by"] = choose
    if done.test_loss is not None:
        adapted["test_loss"] = done.test_loss[-1]
    spent = energy_table(ledger)
    card = {**loaded.card, "reading": reading._asdict(), "adapted": adapted}
    card["energy"] = [*(loaded.card.get("energy") or []), *spent]
    write_model(output, loaded.model, done.vector, card, force=force)
    show_energy(spent, None)
    say(f"adapted model: {output}")


def predict(
    file: ModelFile,
    inputs: Annotated[Path, typer.Argument(help="Inputs: .npz with x, .csv or .parquet; a target is left aside.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A CSV file; else the screen.")] = None,
    target: Target = None,
    divide_by: DivideBy = None,
    spec: Spec = None,
    loss: Loss = None,
    layout: Layout = None,
    force: Force = False,
) -> None:  # fmt: skip
    """Write a model's predictions for INPUTS as CSV: one line per sample."""
    from fewjoule.cli.predictions import predictions
    from fewjoule.files import check_writable, write_atomically
    from fewjoule.tasks.files import read_inputs

    if output is not None:
        check_writable(output, force=force)
    loaded = load(file, spec, loss, layout)
    reading = reading_of(loaded, target, divide_by)
    header, rows = predictions(loaded.model, loaded.vector, read_inputs(inputs, reading), reading, inputs)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    if output is None:
        typer.echo(text.getvalue(), nl=False)
    else:
        write_atomically(output, text.getvalue().encode(), force=force)
        say(f"{len(rows)} predictions: {output}")


def evaluate(
    meta: ModelFile,
    folder: Annotated[Path, typer.Argument(help="One file per new task; x_test and y_test judge, or give --shots.")],
    shots: Annotated[int | None, typer.Option(help="Samples (per class) to adapt on, without x_test.")] = None,
    steps: Annotated[str, typer.Option(help="Numbers of fine-tuning steps, with commas.")] = "0,1,5,10,50",
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
    from fewjoule.cli.predictions import cdf_table, cdf_text, evaluation_table, quantile_rows
    from fewjoule.cli.settings import step_list
    from fewjoule.files import check_writable, write_atomically
    from fewjoule.tasks.files import read_tasks
    from fewjoule.training.adapt import adapt as adapt_all

    for path in (output, cdf):
        if path is not None:
            check_writable(path, force=force)
    wanted = step_list(steps)
    loaded = load(meta, spec, loss, layout)
    tasks, names, *_ = read_tasks(folder, reading_of(loaded, target, divide_by), shots=shots, seed=seed)
    with stage(f"fine-tuning to {len(names)} tasks"):
        result = adapt_all(loaded.model, loaded.vector, tasks, steps=wanted, step=step, optimiser=optimiser)
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


def _show_steps(done: Any, classes: bool) -> None:
    from fewjoule.training.fine_tune import step_grid

    grid = step_grid(len(done.loss) - 1)
    columns = {"steps": list(range(len(done.loss))), "loss": done.loss}
    if classes:
        columns["accuracy"] = done.accuracy
    if done.test_loss is not None:
        columns["held-out loss"] = done.test_loss
        if classes:
            columns["held-out accuracy"] = done.test_accuracy
    table(list(columns), [[column[i] for column in columns.values()] for i in grid])
