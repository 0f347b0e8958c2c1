"""`fewjoule train`: a folder of agents -> a meta-model. It is a study of one method, by the same runner as `run`."""

import tempfile
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer

from fewjoule import files
from fewjoule.cli import options
from fewjoule.cli.run import run_shown
from fewjoule.cli.screen import SEE_CHOOSING, say, show_answers, show_energy, table
from fewjoule.energy.ledger import WITH_SERVER
from fewjoule.errors import InputError
from fewjoule.methods import method as named_method
from fewjoule.methods.lean import medium
from fewjoule.models.weights import write_model
from fewjoule.simulation.rules import needs_one_architecture
from fewjoule.simulation.work import data_of, shapes
from fewjoule.studies.outputs import energy_table, model_card
from fewjoule.studies.parts import new_folder
from fewjoule.studies.prepare import OwnAgents, own_study, prepare, read_own
from fewjoule.studies.settings import read_source
from fewjoule.tasks.files import read_tasks
from fewjoule.training.align import MODES

MOST_ROWS = 20
"""Of agents on the screen."""


def train(
    folder: Annotated[Path, typer.Argument(help="One file per agent: NAME.npz, .csv or .parquet.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The meta-model's file.")],
    method: Annotated[str, typer.Option(help="average, fedavg, reptile, maml, meta_backward, ...")] = "fedavg",
    settings: Annotated[list[str] | None, typer.Option("--set", help="A setting of the method: rounds=10.")] = None,
    questions: Annotated[str | None, typer.Option(help="For answers, lean: range:LOW:HIGH, noise:8x8, a file.")] = None,
    model: Annotated[
        str | None, typer.Option(help="mlp:784-8-8-10, conv4:28x28x1-5-64, torch:FILE.py:NAME, python:FILE.py:NAME.")
    ] = None,
    study: Annotated[str | None, typer.Option(help="A study whose model, local, energy tables are used.")] = None,
    task: Annotated[str | None, typer.Option(help="regression or classification; default: by targets.")] = None,
    target: Annotated[str, typer.Option(help="Target column of CSV, Parquet; y1,y2 for several.")] = "y",
    divide_by: Annotated[float, typer.Option(help="Divide every input by this: 255 for 8-bit images.")] = 1.0,
    standardise: Annotated[bool, typer.Option("--standardise", help="Scale inputs to mean 0, deviation 1.")] = False,
    validation: Annotated[float | None, typer.Option(help="Share held out, if a file has no x_test.")] = None,
    align: Annotated[str, typer.Option(help="auto, always or never reorder hidden units before averaging.")] = "auto",
    layout: Annotated[str | None, typer.Option(help="pytorch, flax or fewjoule, if ambiguous.")] = None,
    local_learning_rate: Annotated[float | None, typer.Option(help="For the local training (default: 0.01).")] = None,
    local_steps: Annotated[int | None, typer.Option(help="At most, in local training (default: 20000).")] = None,
    local_optimiser: Annotated[str | None, typer.Option(help="For the local training (default: sgd).")] = None,
    link: Annotated[str | None, typer.Option(help="The agents' radio link (default: paper).")] = None,
    meter: options.MeterName = None,
    device: options.DeviceName = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    energy: Annotated[Path | None, typer.Option(help="Write the energy spent to this CSV file.")] = None,
    run_folder: Annotated[Path | None, typer.Option("--run", help="A run folder with a report; needs --tasks.")] = None,
    tasks: Annotated[Path | None, typer.Option(help="For the report: a folder of new tasks, one file each.")] = None,
    shots: options.Shots = None,
    steps: options.Steps = "0,1,5,10,50",
    learning_rate: Annotated[float, typer.Option(help="For the report: learning rate of the fine-tuning.")] = 0.01,
    force: options.Force = False,
) -> None:  # fmt: skip
    """Train a meta-model over the agents in FOLDER."""
    if align not in MODES:
        raise InputError(f"--align must be one of {', '.join(MODES)}, got {align!r}.")
    if output.suffix == ".onnx":
        raise InputError(
            f"train writes safetensors, not {output.name}; then: fewjoule export META --to onnx -o {output}."
        )
    options.writable(output, energy, force=force)
    if (run_folder is None) != (tasks is None):
        raise InputError("--run and --tasks go together: the report judges the meta-model on new tasks.")
    if run_folder is not None and run_folder.exists() and (not run_folder.is_dir() or any(run_folder.iterdir())):
        raise InputError(f"{run_folder} exists and is not empty; choose another --run.")
    changes = options.named_values(settings or []) | _questions(method, questions, divide_by)
    chosen = named_method(method, **({} if method == "lean" else changes))
    wanted = options.step_list(steps)
    headline = 10 if 10 in wanted else wanted[-1]
    given: dict[str, Any] = {} if study is None else read_source(study)[0]
    for name in ("model", "local", "energy"):
        if not isinstance(given.get(name, {}), dict):
            raise InputError(f"{study}: {name} must be a table, got {given[name]!r}; write it as [{name}].")
    if study is not None and model is None and "model" not in given:
        raise InputError(f'{study} has no [model]; add one with spec = "mlp:…" or give --model.')
    local = options.given(learning_rate=local_learning_rate, max_steps=local_steps, optimiser=local_optimiser)
    tables: dict[str, dict[str, Any]] = {
        "family": options.given(
            kind="files", folder=str(folder), new_tasks=tasks and str(tasks), target=target, task=task,
            divide_by=divide_by, standardise=standardise, validation=validation, align=align, layout=layout,
        ),
        "model": {**given.get("model", {}), **options.given(spec=model)},
        "local": {**given.get("local", {}), **local},
        "energy": {**given.get("energy", {}), **options.given(link=link, meter=meter, device=device)},
        "evaluation": options.given(steps=wanted, headline=headline, learning_rate=learning_rate, shots=shots),
    }  # fmt: skip
    tables["model"].pop("loss", None)  # the agents' data say it
    over_agents = partial(own_study, tables, folder=folder, method=method, seed=seed, where=study or "")
    first = over_agents(settings={})
    alike = needs_one_architecture(chosen)
    own = read_own(
        first.family, first.model, seed=seed, needs_validation=chosen.needs_validation,  # type: ignore[arg-type]
        one_architecture=alike,
    )  # fmt: skip
    if method == "lean":  # its rule asks for the model and the link, which are known only now
        known: dict[str, Any] = {
            "link": first.energy.link,
            "training_steps": first.local.max_steps,
            "learning_rate": first.local.learning_rate,
        }
        if questions is not None:  # a classifier answers for the classes that an agent has
            known["outputs"] = _numbers_in_an_answer(own)
        changes = {"weights": own.model.size, **known, **options.given(device=device), **changes}
    if tasks is not None:
        read_tasks(tasks, own.files.format, shots=shots)  # says which file lacks x_test where shots are not given
    prepared = prepare(over_agents(settings=changes, one_architecture=alike), own)
    built = prepared.study.methods[0].build()
    shapes(built, prepared.model, data_of(prepared.agents))  # questions that do not fit
    files.use_compile_cache()
    _show_agents(own)
    if method == "lean" and questions is not None:
        said = dict(built.settings)
        asked = ("weights", "link", "budget_joules", "device", "questions", "outputs")
        sent = medium(**{name: said[name] for name in asked})
        say(f"lean sends {'answers' if sent.answers else 'weights'}: {sent.reason}")

    with tempfile.TemporaryDirectory() as temporary:
        place = run_folder or Path(temporary) / "run"
        new_folder(prepared.study, str(place))
        finished, ledger = run_shown(prepared, place, kept=run_folder is not None)
    part = finished.methods[method]
    start, final = float(part.arrays["start_loss"][0]), float(part.arrays["final_loss"][0])
    if part.arrays["diverged"][0]:
        raise InputError(
            f"{folder}: {method} diverged, the agents' loss went from {start:.3g} to {final:.3g}; lower its "
            "learning rate, as in --set learning_rate=0.001, or its rounds."
        )
    say(f"mean loss on the agents' samples: {start:.4g} at the start, {final:.4g} now")
    ledger = ledger.select(method=method, phase=("pretraining", *WITH_SERVER))
    card = model_card(prepared, prepared.study.methods[0], 0, finished) | {"energy": energy_table(ledger)}
    for remark in card["remarks"]:
        say(f"WARNING: this meta-model is {remark}; {SEE_CHOOSING}")
    rates = part.arrays.get("rates", [None])[0]
    write_model(output, prepared.model, part.arrays["meta"][0], card, rates=rates, force=force)
    show_energy(card["energy"], card["link"])
    if energy is not None:
        ledger.to_csv(energy, force=force)
        say(f"ledger: {energy}")
    say(f"meta-model: {output}")
    if run_folder is not None:
        show_answers(run_folder)


def _questions(method: str, given: str | None, divide_by: float) -> dict[str, Any]:
    """The setting that --questions stands for."""
    if given is None:
        if method == "answers":
            raise InputError(
                "answers needs --questions that all agents can answer: range:LOW:HIGH of the inputs, noise:28x28 for "
                "images, or a file of inputs."
            )
        return {}
    return {"questions": options.questions_of(given, divide_by)}


def _numbers_in_an_answer(own: OwnAgents) -> int:
    """The model's outputs, or for a classifier the most classes that an agent has."""
    train = own.files.agents.data.train
    if own.files.format.task != "classification":
        return int(np.prod(train.y.shape[2:]))
    return max(len(np.unique(y[mask > 0])) for y, mask in zip(np.asarray(train.y), np.asarray(train.mask), strict=True))


def _show_agents(own: OwnAgents) -> None:
    found, form, model, data = own.files, own.files.format, own.model, own.files.agents.data
    say(f"{form.task} ({found.why}); model {model.spec} ({own.source}), {model.size} weights")
    for i, kind in own.layouts.items():
        if kind != "fewjoule":
            say(f"{found.models[i]}: {kind} layout, taken as a ReLU net (the file does not name its activation)")
    rows = []
    for i, (path, mine) in enumerate(list(zip(found.files, found.models, strict=True))[:MOST_ROWS]):
        samples, held = jax.tree.map(lambda a, i=i: a[i], data.train), int(data.validation.mask[i].sum())
        count = int(samples.mask.sum())
        y = np.asarray(samples.y[:count])
        what = f"{y.min():.3g} to {y.max():.3g}"
        if form.task == "classification":
            seen = [form.classes[c] if form.classes else str(c) for c in np.unique(y)]
            what = ", ".join(seen[:8]) + (", …" if len(seen) > 8 else "")
        loss = float(own.nets[i].loss(own.vectors[i], samples)) if i in own.vectors else None
        net = f"{mine.name} ({own.nets[i].spec})" if mine and own.nets[i].spec != model.spec else mine and mine.name
        rows.append((path.name, count, held, what, net or "to be trained", loss))
    target = "classes" if form.task == "classification" else "targets"
    table(("agent", "samples", "held out", target, "model", "local loss"), rows)
    if (more := len(found.files) - len(rows)) > 0:
        say(f"  ... and {more} more agents, {sum(found.agents.sizes)} samples in all")
