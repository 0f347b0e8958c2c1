"""A user's own agents and tasks: a folder with one file each, and beside it the model that an agent already has.

FOLDER/
  kitchen.npz                  samples of the agent "kitchen" (or kitchen.csv, kitchen.parquet)
  kitchen.safetensors          the model it trained itself, if any
  ...
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fewjoule.errors import InputError
from fewjoule.randomness import agent_id, seeds_of
from fewjoule.tasks.format import TASKS, DataFormat, Values, check_format, scaled, standardised, standardising
from fewjoule.tasks.readers import PICKLES, SUFFIXES, Table, ending, read_table
from fewjoule.tasks.samples import Agents, Pair, Samples, Tasks, make_agents, make_tasks, stack

KINDS = {"f": "real numbers", "i": "whole numbers", "O": "text"}  # of targets, by their type
MOST_CLASSES = 1000
"""Whole numbers beyond this are taken for classes only when the user says so."""
SAY_REGRESSION, SAY_CLASSES = (f"task={task!r} (--task {task})" for task in TASKS)
Rows = Values | slice
TRAINED_ON = "the files that the model was trained on"


class AgentFiles(NamedTuple):
    """The agents of a folder."""

    agents: Agents
    files: tuple[Path, ...]
    models: tuple[Path | None, ...]  # the file of the model that an agent already has
    format: DataFormat  # with task, classes and columns filled in
    why: str  # how regression and classification were told apart


class TaskFiles(NamedTuple):
    """The new tasks of a folder."""

    tasks: Tasks
    names: tuple[str, ...]
    files: tuple[Path, ...]
    format: DataFormat


def read_agents(
    folder: str | Path, format: DataFormat | None = None, *, validation: float = 0.0, seed: int = 0,
    standardise: bool = False,
) -> AgentFiles:  # fmt: skip
    """One agent per file. Held-out samples are the file's x_test, else a random share `validation` of its samples.

    `standardise` gives every input mean 0 and standard deviation 1 over all agents' samples (the held-out ones apart);
    the format says by which numbers, so that new tasks are read alike.
    """
    if not 0 <= validation < 1:
        raise InputError(f"validation must be a share of at least 0 and below 1, got {validation}.")
    files, models = _list_folder(Path(folder), "agents")
    tables, format, why = read_tables(files, format or DataFormat())

    def choose(table: Table) -> tuple[Rows, Rows]:
        samples = len(table.train[0])
        count = max(1, round(validation * samples)) if validation else 0
        if count >= samples:
            raise InputError(f"{table.path} has {samples} samples, too few to hold out {validation:g} of them.")
        if count == 0:
            return slice(None), slice(0)
        order = _generator(seed, table.path).permutation(samples)
        return order[count:], order[:count]

    train, held = _split(tables, choose)
    if standardise:
        format = standardising(format, train)
        train, held = ([(standardised(x, format), y) for x, y in pairs] for pairs in (train, held))
    agents = make_agents(train, held, names=[path.stem for path in files])
    return AgentFiles(agents, tuple(files), tuple(models.get(path.stem) for path in files), format, why)


def read_tasks(source: str | Path, format: DataFormat, *, shots: int | None = None, seed: int = 0) -> TaskFiles:
    """New tasks, one per file of a folder (or one file): a device adapts on x, y and is tested on x_test, y_test.

    A file without x_test is split: `shots` random samples (of each class, for classification) to adapt on, the rest to
    judge.
    """
    source = Path(source)
    files = [source] if source.is_file() else _list_folder(source, "tasks")[0]
    tables, format, _ = read_tables(files, format)

    def choose(table: Table) -> tuple[Rows, Rows]:
        path, y = table.path, table.train[1]
        if shots is None:
            raise InputError(
                f"{path} has no held-out samples (x_test, y_test); say how many to adapt on by shots (--shots)."
            )
        if shots < 1:
            raise InputError(f"shots must be at least 1, got {shots}.")
        order = _generator(seed, path).permutation(len(y))
        groups = [order] if y.dtype.kind == "f" else [order[y[order] == label] for label in np.unique(y)]
        chosen = np.sort(np.concatenate([group[:shots] for group in groups]))
        if len(chosen) == len(y):
            raise InputError(f"{path}: {shots} shots are all of its {len(y)} samples; lower shots (--shots).")
        return chosen, np.setdiff1d(np.arange(len(y)), chosen)

    names = tuple(path.stem for path in files)
    return TaskFiles(make_tasks(*_split(tables, choose), names=names), names, tuple(files), format)


def read_task(path: str | Path, format: DataFormat) -> tuple[Samples, Samples | None]:
    """One new task: samples to adapt on, and held-out samples where the file has them. Arrays are [n, ...]."""
    (table,), _, _ = read_tables([Path(path)], format)
    stacked = [stack([pair], names=[table.path.stem], what="task") for pair in table.pairs]
    train, *test = [Samples(s.x[0], s.y[0], s.mask[0]) for s in stacked]
    return train, test[0] if test else None


def read_folder(folder: Path, format: DataFormat) -> tuple[list[str], Samples, Samples]:
    """New tasks to adapt to, one per file: their names, samples, and held-out samples, of which a task may have none.

    Arrays are [tasks, n, ...].
    """
    tables, _, _ = read_tables(_list_folder(folder, "tasks")[0], format)
    names = [table.path.stem for table in tables]
    held = [table.test or (table.train[0][:0], table.train[1][:0]) for table in tables]
    support = stack([table.train for table in tables], names=names, what="task")
    return names, support, stack(held, names=names, what="task", may_be_empty=True)


def read_inputs(path: str | Path, format: DataFormat) -> Values:
    """Inputs alone, for predictions; a target in the file is left aside."""
    check_format(format)
    table = read_table(path, target=format.target, needs_target=False)
    if format.columns:
        table = _reorder(table, format.columns, TRAINED_ON)
    return scaled(str(path), table.train[0], format)


def read_tables(files: Sequence[Path], format: DataFormat) -> tuple[list[Table], DataFormat, str]:
    """Read files that belong together: same inputs, same kind of target, class names turned into numbers."""
    check_format(format)
    tables = [read_table(path, target=format.target) for path in files]
    columns = format.columns or next((t.columns for t in tables if t.columns), ())
    if columns:
        where = TRAINED_ON if format.columns else str(tables[0].path)
        tables = [_reorder(t, columns, where) for t in tables]
    first = tables[0].path
    widths = [(list(x.shape[1:]), math.prod(y.shape[1:])) for x, y in (t.train for t in tables)]
    for table, (inputs, targets) in zip(tables, widths, strict=True):
        if inputs != widths[0][0]:
            raise InputError(
                f"{table.path} has inputs of shape {inputs}, {first} of {widths[0][0]}; give all the same width."
            )
        if targets != widths[0][1]:
            raise InputError(
                f"{table.path} has {targets} targets per sample, {first} {widths[0][1]}; give all the same."
            )
    task, why = _tell_task(tables, format.task)
    classes = format.classes
    if task == "classification" and classes is None and _kind(tables[0]) == "text":
        classes = tuple(sorted({str(v) for t in tables for _, y in t.pairs for v in y.ravel()}))

    def ready(path: Path, pair: tuple[Values, Values]) -> tuple[Values, Values]:
        return scaled(str(path), pair[0], format), _convert(path, pair[1], task, classes)

    done = [t._replace(train=ready(t.path, t.train), test=t.test and ready(t.path, t.test)) for t in tables]
    return done, format._replace(task=task, classes=classes, columns=columns), why


def _list_folder(folder: Path, what: str) -> tuple[list[Path], dict[str, Path]]:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder that holds one file of samples per agent or task.")
    inside = sorted(p for p in folder.iterdir() if not p.name.startswith("."))
    visible = [p for p in inside if p.is_file()]
    files = [p for p in visible if ending(p) in SUFFIXES]
    for deeper in (path for sub in inside if sub.is_dir() for path in sub.iterdir() if ending(path) in SUFFIXES):
        raise InputError(
            f"{deeper} lies in a subfolder, which is not read; move it up to {folder}, or away from there."
        )
    if pickled := [p for p in visible if ending(p) in PICKLES]:
        raise InputError(
            f"{pickled[0]} is a pickle, which is never loaded because it can run code; write samples as npz and "
            "weights as safetensors, or move it away."
        )
    if not files:
        raise InputError(f"{folder} holds no {what}: no file ends in {', '.join(SUFFIXES)}; add one file for each.")
    for one, two in pairwise(files):
        if one.stem == two.stem:
            raise InputError(f"{one} and {two.name} have the same name, so they would be one agent; rename one.")
    models = {p.stem: p for p in visible if ending(p) == ".safetensors"}
    # adapted models lie beside tasks; beside agents a model without samples is a wrong name
    if what == "agents" and (lonely := sorted(set(models) - {p.stem for p in files})):
        raise InputError(f"{models[lonely[0]]} has no samples beside it; add {lonely[0]}.npz or move the model away.")
    return files, models


def _reorder(table: Table, columns: tuple[str, ...], where: str) -> Table:
    """The inputs in the order of these names; a file without names must have as many."""
    if not table.columns:
        return table
    if missing := [name for name in columns if name not in table.columns]:
        raise InputError(f"{table.path} has no column {missing[0]!r}, which {where} has; add it.")
    if extra := [name for name in table.columns if name not in columns]:
        raise InputError(f"{table.path} has a column {extra[0]!r}, which {where} does not have; drop it.")
    x, y = table.train  # files with names of columns have no held-out samples
    return Table(table.path, (x[:, [table.columns.index(name) for name in columns]], y), columns=columns)


def _kind(table: Table) -> str:
    return KINDS[table.train[1].dtype.kind]


def _tell_task(tables: Sequence[Table], asked: str | None) -> tuple[str, str]:
    if asked is not None:
        return asked, "as asked"
    kinds = [_kind(table) for table in tables]
    for table, kind in zip(tables, kinds, strict=True):
        if kind != kinds[0]:
            raise InputError(
                f"{table.path} has targets that are {kind}, {tables[0].path} {kinds[0]}; make them alike or give "
                f"{SAY_REGRESSION} or {SAY_CLASSES}."
            )
    task = "regression" if kinds[0] == "real numbers" else "classification"
    whole = task == "regression" and all((y == np.round(y)).all() for t in tables for _, y in t.pairs)
    return task, f"the targets are {kinds[0]}" + (f"; if they are classes, give {SAY_CLASSES}" if whole else "")


def _convert(path: Path, y: Values, task: str, classes: tuple[str, ...] | None) -> Values:
    kind = KINDS[y.dtype.kind]
    if task == "regression":
        if kind == "text":
            raise InputError(
                f"{path}: regression needs targets that are numbers, got {str(y.ravel()[0])!r}; use classes."
            )
        return y.astype(np.float32).reshape(len(y), -1)
    if y.ndim != 1:
        if y.shape[1:] != (1,):
            raise InputError(f"{path}: classes are one target per sample, got shape {list(y.shape)}.")
        y = y[:, 0]
    if classes is not None:
        numbers = {name: i for i, name in enumerate(classes)}
        try:
            return np.fromiter((numbers[str(v)] for v in y), np.int32, len(y))
        except KeyError as error:
            raise InputError(f"{path}: unknown class {error}; the classes are {', '.join(classes)}.") from None
    if kind == "text":
        raise InputError(f"{path}: the model's classes are numbers, got {str(y[0])!r}; give the classes as numbers.")
    if kind == "real numbers" and not (y == np.round(y)).all():
        raise InputError(
            f"{path}: classes must be whole numbers, got {y[y != np.round(y)][0]:g}; use {SAY_REGRESSION}."
        )
    if y.min() < 0:
        raise InputError(
            f"{path}: classes must be 0 or more, got {int(y.min())}; number them from 0, or give {SAY_REGRESSION}."
        )
    if y.max() >= MOST_CLASSES:
        raise InputError(
            f"{path}: whole-number targets are classes, and {int(y.max())} is above the largest, {MOST_CLASSES - 1}; "
            f"number them from 0, or give {SAY_REGRESSION}."
        )
    return y.astype(np.int32)


def _generator(seed: int, path: Path) -> np.random.Generator:
    """Of one file, by its name, so that the other files do not matter."""
    return np.random.default_rng([*seeds_of(seed), agent_id(path.stem)])


def _split(tables: Sequence[Table], choose: Callable[[Table], tuple[Rows, Rows]]) -> tuple[list[Pair], list[Pair]]:
    """Each file's samples and its held-out ones: its x_test, else the two sets of rows that `choose` gives."""
    first: list[Pair] = []
    held: list[Pair] = []
    for table in tables:
        x, y = table.train
        parts = (table.train, table.test) if table.test else [(x[rows], y[rows]) for rows in choose(table)]
        first.append(parts[0])
        held.append(parts[1])
    return first, held
