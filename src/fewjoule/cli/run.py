"""`fewjoule run`: a study from its file to its report."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fewjoule import files
from fewjoule.cli.options import named_values
from fewjoule.cli.processes import end_with_parent, start_processes
from fewjoule.cli.progress import Progress
from fewjoule.cli.screen import show_answers, show_summary
from fewjoule.energy import Ledger
from fewjoule.errors import InputError
from fewjoule.studies.outputs import Finished
from fewjoule.studies.parts import new_folder, stopped_study
from fewjoule.studies.prepare import Prepared, prepare
from fewjoule.studies.run import run_study, take_part
from fewjoule.studies.settings import BUILT_IN, load_study
from fewjoule.studies.shares import check_processes
from fewjoule.training.mesh import use_all_cores
from fewjoule.training.processes import ALONE, Team, meet


def run(
    study: Annotated[
        str | None,
        typer.Argument(metavar="NAME|FILE.toml", help=f"{', '.join(BUILT_IN)}, or your own study file."),
    ] = None,
    out: Annotated[str | None, typer.Option(help="Run folder; by default the first free runs/NAME.")] = None,
    seeds: Annotated[str | None, typer.Option(help="How many seeds (5), or which (0,3,7; only seed 3: 3,).")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. evaluation.tasks=50.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer seeds, tasks and methods: about a minute.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Include the slowest methods.")] = False,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder of the original data files, if the study has any.")
    ] = None,
    resume: Annotated[str | None, typer.Option(metavar="FOLDER", help="Continue a stopped run.")] = None,
    processes: Annotated[int | None, typer.Option(help="Processes on this machine that share the seeds.")] = None,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where process 0 listens; see docs/scale.md.")
    ] = None,
    process: Annotated[int | None, typer.Option(help="Which process this is, from 0.")] = None,
    of: Annotated[int | None, typer.Option(help="How many processes there are in total.")] = None,
) -> None:
    """Run a study: local training, every method, adaptation to new tasks, energy, figures and a page."""
    end_with_parent()
    use_all_cores()
    files.use_compile_cache()
    placed = _placed(processes, coordinator, process, of)
    team = ALONE if placed is None else meet(*placed)  # before JAX computes, which building a study may do
    if resume is not None:
        if out or seeds or settings or quick or full or data_dir:
            raise InputError("--resume continues the study in its folder; leave the other options out.")
        chosen = stopped_study(Path(resume), study)
    elif study is None:
        raise InputError("name a study: fewjoule run sinusoid, fewjoule run mnist, or fewjoule run FILE.toml.")
    else:
        chosen = load_study(
            study,
            settings=named_values(settings or []),
            seeds=read_seeds(seeds),
            quick=quick,
            full=full,
            data_dir=data_dir,
        )
    check_processes(chosen, team.count if processes is None else processes)
    prepared = prepare(chosen)
    if team.index:
        take_part(prepared, team)
        return
    folder = Path(resume) if resume is not None else new_folder(prepared.study, out)
    if processes is not None and processes > 1:
        start_processes(folder, processes)
        return
    run_shown(prepared, folder, team=team)
    show_summary(folder)
    if prepared.tasks is None:
        print(f"run folder: {folder}; no page, since the study names no new tasks (family.new_tasks)")
    else:
        show_answers(folder)


def _placed(
    processes: int | None, coordinator: str | None, process: int | None, of: int | None
) -> tuple[str, int, int] | None:
    """Where this process stands among others that somebody started; None where nobody did."""
    given = {"--coordinator": coordinator, "--process": process, "--of": of}
    missing = [name for name, value in given.items() if value is None]
    if processes is not None and len(missing) < len(given):
        raise InputError("--processes starts its processes itself; leave --coordinator, --process and --of out.")
    if coordinator is None or process is None or of is None:
        if len(missing) < len(given):
            raise InputError(f"--coordinator, --process and --of go together; {' and '.join(missing)} is missing.")
        return None
    return coordinator, process, of


def run_shown(prepared: Prepared, folder: Path, *, kept: bool = True, team: Team = ALONE) -> tuple[Finished, Ledger]:
    """Run a study with its progress on the screen; after Ctrl-C say how to go on, where the folder is kept."""
    shown = Progress()
    try:
        return run_study(prepared, folder, shown, team)
    except KeyboardInterrupt:
        shown.stop()
        if kept:
            print(f"stopped; continue with: fewjoule run --resume {folder}", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        shown.stop()


def read_seeds(text: str | None) -> list[int] | None:
    """`5` is five seeds from 0 on, `0,3,7` is those, `3,` is the seed 3 alone."""
    if text is None:
        return None
    parts = text.removesuffix(",").split(",")
    try:
        numbers = [int(part) for part in parts]
    except ValueError:
        raise InputError(f"--seeds takes a number of seeds (5) or a list of them (0,3,7), got {text!r}.") from None
    if "," in text:
        return numbers
    if numbers[0] < 1:
        raise InputError(f"--seeds must be at least 1, got {numbers[0]}.")
    return list(range(numbers[0]))
