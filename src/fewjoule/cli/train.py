"""`fewjoule train`: a folder of agents -> a meta-model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fewjoule.cli.screen import say, stage, table


def train(
    folder: Annotated[Path, typer.Argument(help="One file per agent: NAME.npz, .csv or .parquet.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The meta-model's file.")],
    method: Annotated[str, typer.Option(help="average, fedavg, reptile, maml, meta_backward, ...")] = "fedavg",
    settings: Annotated[list[str] | None, typer.Option("--set", help="A setting of the method: rounds=10.")] = None,
    model: Annotated[str | None, typer.Option(help="mlp:784-8-8-10, conv4:28x28x1-5-64; else from weights.")] = None,
    study: Annotated[str | None, typer.Option(help="A study whose model, local, energy tables are used.")] = None,
    task: Annotated[str | None, typer.Option(help="regression or classification; else by the targets' type.")] = None,
    target: Annotated[str, typer.Option(help="Target column of CSV and Parquet; several with commas.")] = "y",
    divide_by: Annotated[float, typer.Option(help="Divide every input by this: 255 for 8-bit images.")] = 1.0,
    validation: Annotated[float | None, typer.Option(help="Share held out, if a file has no x_test.")] = None,
    align: Annotated[str, typer.Option(help="auto, always or never reorder hidden units before averaging.")] = "auto",
    layout: Annotated[str | None, typer.Option(help="pytorch, flax or fewjoule, where weights do not tell.")] = None,
    local_step: Annotated[float | None, typer.Option(help="Step of the local training (default: 0.01).")] = None,
    local_steps: Annotated[int | None, typer.Option(help="Most steps of the local training (default: 20000).")] = None,
    local_optimiser: Annotated[str | None, typer.Option(help="sgd, adam, ... for the same (default: sgd).")] = None,
    link: Annotated[str | None, typer.Option(help="The agents' radio link (default: paper).")] = None,
    meter: Annotated[str | None, typer.Option(help="auto, powercap, cpu-time or operations (default: auto).")] = None,
    device: Annotated[str | None, typer.Option(help="The device whose watts the models take.")] = None,
    seed: Annotated[int, typer.Option(help="Of every random choice.")] = 0,
    energy: Annotated[Path | None, typer.Option(help="Write the ledger to this CSV file.")] = None,
    run_folder: Annotated[Path | None, typer.Option("--run", help="A run folder with a report; needs --tasks.")] = None,
    tasks: Annotated[Path | None, typer.Option(help="For the report: a folder of new tasks, one file each.")] = None,
    shots: Annotated[int | None, typer.Option(help="Samples (per class) to adapt on, if a task has no x_test.")] = None,
    steps: Annotated[str, typer.Option(help="For the report: numbers of fine-tuning steps.")] = "0,1,5,10,50",
    step: Annotated[float, typer.Option(help="For the report: size of a fine-tuning step.")] = 0.01,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:  # fmt: skip
    """Train a meta-model over the agents in FOLDER."""
    from fewjoule.cli.settings import method_settings, sections, step_list
    from fewjoule.cli.train_report import TrainingReport
    from fewjoule.energy import Ledger
    from fewjoule.errors import InputError
    from fewjoule.files import check_writable, use_compile_cache
    from fewjoule.methods import method as named_method
    from fewjoule.models.weights import write_model
    from fewjoule.study import train as work
    from fewjoule.tasks.files import DataFormat, read_agents
    from fewjoule.training.align import MODES
    from fewjoule.training.align import align as align_models

    if align not in MODES:
        raise InputError(f"--align must be one of {', '.join(MODES)}, got {align!r}.")
    for path in (output, energy):
        if path is not None:
            check_writable(path, force=force)
    if (run_folder is None) != (tasks is None):
        raise InputError("--run and --tasks go together: the report judges the meta-model on new tasks.")
    changes = method_settings(settings or [])
    chosen = named_method(method, **({} if method == "lean" else changes))
    spec, init, local, energies = sections(
        study,
        model=model,
        local={"step": local_step, "max_steps": local_steps, "optimiser": local_optimiser},
        energy={"link": link, "meter": meter, "device": device},
    )
    share = (0.2 if chosen.needs_validation else 0.0) if validation is None else validation
    found = read_agents(folder, DataFormat(target, task, divide_by), validation=share, seed=seed)
    for path, held in zip(found.files, found.agents.data.validation.mask.sum(-1), strict=True):
        if chosen.needs_validation and not held:
            raise InputError(f"{path}: {method} needs held-out samples; give x_test and y_test, or --validation 0.2.")
    use_compile_cache()
    given = work.given_models(found, spec, init=init, layout=layout)
    if method == "lean":  # its rule asks for the model and the link, which are known only now
        known: dict[str, Any] = {"link": energies.link, "training_steps": local.max_steps, "step": local.step}
        if device is not None:
            known["device"] = device
        changes = {"weights": given.model.size, **known, **changes}
        chosen = named_method(method, **changes)
    reader = energies.metering()
    report = None
    if run_folder is not None and tasks is not None:
        family = {
            "folder": str(folder), "new_tasks": str(tasks), "target": target, "task": found.format.task,
            "divide_by": divide_by, "validation": share, "align": align, "layout": layout,
        }  # fmt: skip
        report = TrainingReport(
            run_folder, family, found.format, given.model, init=init, method=method, settings=changes, seed=seed,
            local=local, energy=energies, shots=shots, steps=step_list(steps), step=step,
        )  # fmt: skip
    say(f"{found.format.task} ({found.why}); model {given.model.spec} ({given.source}), {given.model.size} weights")
    for i, kind in given.layouts.items():
        if kind != "fewjoule":
            say(f"{found.models[i]}: {kind} layout, taken as a ReLU net (the file does not name its activation)")
    _show_agents(found, given)
    say(f"arithmetic: {reader.describe()}")

    ledger = Ledger()
    models = aligned = None
    if chosen.start == "random" and not chosen.needs_local:
        say(f"no local models are needed: {method} starts at random here")
    else:
        missing = len(found.agents) - len(given.vectors)
        with stage(f"training {missing} local models" if missing else "checking the local models"):
            models = work.local_models(found, given, local, ledger, reader, name=method, seed=seed)
        if missing:
            losses = zip(found.agents.names, models.loss, strict=True)
            say("local losses: " + ", ".join(f"{name} {loss:.4g}" for name, loss in losses))
        # only models that are merged need a common order of their hidden units
        mode = align if (chosen.start == "average" or chosen.needs_local) and len(found.agents) > 1 else "never"
        with stage("aligning"):
            aligned = align_models(given.model, models.models, found.agents, mode=mode)
        _show_alignment(aligned, mode)
    with stage(f"{method}, {chosen.rounds} rounds over {len(found.agents)} agents"):
        run = work.run_method(
            chosen, found, given.model, aligned.models if aligned else None, ledger, reader, link=energies.link,
            name=method, seed=seed,
        )  # fmt: skip
    say(f"mean loss on the agents' samples: {float(run.start_loss):.4g} at the start, {float(run.final_loss):.4g} now")
    card = work.model_card(found, given, models, aligned, run, ledger, link=energies.link, seed=seed, settings=local)
    write_model(output, given.model, run.meta, card, force=force)
    show_energy(card["energy"], energies.link)
    if energy is not None:
        write_ledger(energy, ledger, force)
        say(f"ledger: {energy}")
    say(f"meta-model: {output}")
    if report is not None:
        report.write(aligned.models if aligned else None, ledger)


def show_energy(rows: list[dict[str, Any]], link: str | None) -> None:
    """The ledger by phase and kind; kinds are not added up."""
    if not rows:
        say("energy: nothing was spent")
        return
    say(f"energy, all agents together (radio link {link!r}):" if link else "energy:")
    keys = ("phase", "kind", "joules", "seconds", "bits", "flops")
    table(("phase", "kind", "joules", "seconds", "bits", "FLOPs"), [[row.get(k) for k in keys] for row in rows])
    from fewjoule.study.train import receiving_is_known

    if link and not receiving_is_known(link):
        say("the downlink is not charged: this link does not say what receiving costs")


def write_ledger(path: Path, ledger: Any, force: bool) -> None:
    """Write a ledger whole or not at all."""
    import tempfile

    from fewjoule.files import write_atomically

    with tempfile.TemporaryDirectory() as folder:
        ledger.to_csv(Path(folder) / "energy.csv")
        write_atomically(path, (Path(folder) / "energy.csv").read_bytes(), force=force)


def _show_agents(found: Any, given: Any) -> None:
    import numpy as np

    data, model = found.agents.data, given.model
    rows = []
    for i, path in enumerate(found.files):
        count, held = int(data.train.mask[i].sum()), int(data.validation.mask[i].sum())
        y = np.asarray(data.train.y[i][:count])
        if found.format.task == "classification":
            seen = np.unique(y)
            names = found.format.classes
            what = ", ".join(names[c] if names else str(c) for c in seen[:8]) + (", …" if len(seen) > 8 else "")
        else:
            what = f"{y.min():.3g} to {y.max():.3g}"
        loss = None
        if i in given.vectors:
            samples = type(data.train)(data.train.x[i], data.train.y[i], data.train.mask[i])
            loss = float(model.loss(given.vectors[i], samples))
        own = found.models[i].name if found.models[i] else "to be trained"
        rows.append((path.name, count, held, what, own, loss))
    target = "classes" if found.format.task == "classification" else "targets"
    table(("agent", "samples", "held out", target, "model", "local loss"), rows)


def _show_alignment(aligned: Any, mode: str) -> None:
    before, after = f"{aligned.barrier_before:.4g}", f"{aligned.barrier_after:.4g}"
    if mode == "never":
        say(f"not aligned; barrier of the average {before}")
    elif aligned.applied:
        say(f"aligned; barrier of the average {before} before, {after} after")
    else:
        say(f"not aligned: that does not lower the barrier of the average ({before} as they are, {after} aligned)")
