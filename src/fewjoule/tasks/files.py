"""A user's own agents and tasks: a folder with one file each, and beside it the model that an agent already has.

FOLDER/
  kitchen.npz                  samples of the agent "kitchen" (or kitchen.csv, kitchen.parquet)
  kitchen.safetensors          the model it trained itself, if any
  ...
"""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fewjoule.errors import InputError, unknown
from fewjoule.randomness import agent_id
from fewjoule.tasks.readers import PICKLES, SUFFIXES, Table, read_table
from fewjoule.tasks.samples import Agents, Samples, Tasks, make_agents, stack

TASKS = ("regression", "classification")
MOST_CLASSES = 1000
"""Whole numbers beyond this are taken for classes only when the user says so."""


class Reading(NamedTuple):
    """How files are read. The same for training, adapting and predicting, so it is kept in the model card."""

    target: str = "y"
    task: str | None = None  # "regression" or "classification"; None tells it by the targets' type
    divide_by: float = 1.0  # every input is divided by this: 255 for 8-bit images
    classes: tuple[str, ...] | None = None  # names of the classes where the targets are text
    columns: tuple[str, ...] = ()  # names of the inputs where the files have them


class Folder(NamedTuple):
    """A folder of agents."""

    agents: Agents
    files: tuple[Path, ...]
    models: tuple[Path | None, ...]  # the file of the model that an agent already has
    reading: Reading  # with task, classes and columns filled in
    why: str  # how regression and classification were told apart


def read_agents(
    folder: str | Path, reading: Reading | None = None, *, validation: float = 0.0, seed: int = 0
) -> Folder:
    """One agent per file. Held-out samples are the file's x_test, else a random share `validation` of its samples."""
    if not 0 <= validation < 1:
        raise InputError(f"validation must be a share of at least 0 and below 1, got {validation}.")
    files, models = _list_folder(Path(folder), "agents")
    tables, reading, why = read_tables(files, reading or Reading())
    train, held = [], []
    for table, path in zip(tables, files, strict=True):
        x, y = table.x, _known(table.y)
        if table.x_test is not None:
            held.append((table.x_test, _known(table.y_test)))
        elif validation:
            order = np.random.default_rng([seed, agent_id(path.stem)]).permutation(len(x))
            count = max(1, round(validation * len(x)))
            if count >= len(x):
                raise InputError(f"{path} has {len(x)} samples, too few to hold out {validation:g} of them.")
            held.append((x[order[:count]], y[order[:count]]))
            x, y = x[order[count:]], y[order[count:]]
        else:
            held.append((x[:0], y[:0]))
        train.append((x, y))
    agents = make_agents(train, held, names=[path.stem for path in files])
    return Folder(agents, tuple(files), tuple(models.get(path.stem) for path in files), reading, why)


def read_tasks(
    source: str | Path, reading: Reading, *, shots: int | None = None, seed: int = 0
) -> tuple[Tasks, tuple[str, ...]]:
    """New tasks, one per file of a folder (or one file): a device adapts on x, y and is judged on x_test, y_test.

    A file without x_test is split: `shots` random samples (of each class, for classification) to adapt on, the rest to
    judge.
    """
    source = Path(source)
    files = [source] if source.is_file() else _list_folder(source, "tasks")[0]
    tables, reading, _ = read_tables(files, reading)
    support, query = [], []
    for table, path in zip(tables, files, strict=True):
        x, y = table.x, _known(table.y)
        if table.x_test is not None:
            support.append((x, y))
            query.append((table.x_test, _known(table.y_test)))
            continue
        if shots is None:
            raise InputError(f"{path} has no held-out samples (x_test, y_test); say how many to adapt on by --shots.")
        if shots < 1:
            raise InputError(f"shots must be at least 1, got {shots}.")
        chosen = _choose(y, shots, np.random.default_rng([seed, agent_id(path.stem)]))
        if len(chosen) == len(y):
            raise InputError(f"{path}: {shots} shots are all of its {len(y)} samples; lower --shots.")
        rest = np.setdiff1d(np.arange(len(y)), chosen)
        support.append((x[chosen], y[chosen]))
        query.append((x[rest], y[rest]))
    names = tuple(path.stem for path in files)
    return Tasks(stack(support, names=names, what="task"), stack(query, names=names, what="task")), names


def read_task(path: str | Path, reading: Reading) -> tuple[Samples, Samples | None]:
    """One new task: samples to adapt on, and held-out samples where the file has them. Arrays are [n, ...]."""
    tables, _, _ = read_tables([Path(path)], reading)
    table = tables[0]

    def samples(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> Samples:
        stacked = stack([(x, y)], names=[Path(path).stem], what="task")
        return Samples(stacked.x[0], stacked.y[0], stacked.mask[0])

    test = None if table.x_test is None else samples(table.x_test, _known(table.y_test))
    return samples(table.x, _known(table.y)), test


def read_inputs(path: str | Path, reading: Reading) -> np.ndarray[Any, Any]:
    """Inputs alone, for predictions; a target in the file is left aside."""
    table = read_table(path, target=reading.target, needs_target=False)
    if reading.columns:
        table = _reorder(table, reading.columns, "the files that the model was trained on")
    return table.x / np.float32(reading.divide_by)


def read_tables(files: Sequence[Path], reading: Reading) -> tuple[list[Table], Reading, str]:
    """Read files that belong together: same inputs, same kind of target, class names turned into numbers."""
    if reading.task is not None and reading.task not in TASKS:
        raise unknown("task", reading.task, TASKS)
    if not reading.divide_by > 0:
        raise InputError(f"divide-by must be above 0, got {reading.divide_by}.")
    tables = [read_table(path, target=reading.target) for path in files]
    columns = reading.columns or next((t.columns for t in tables if t.columns), ())
    if columns:
        where = "the files that the model was trained on" if reading.columns else str(tables[0].path)
        tables = [_reorder(t, columns, where) for t in tables]
    for table in tables[1:]:
        if table.x.shape[1:] != tables[0].x.shape[1:]:
            raise InputError(
                f"{table.path} has inputs of shape {list(table.x.shape[1:])}, {tables[0].path} of "
                f"{list(tables[0].x.shape[1:])}; give all the same width."
            )
        if _width(table) != _width(tables[0]):
            raise InputError(
                f"{table.path} has {_width(table)} targets per sample, {tables[0].path} {_width(tables[0])}; give all "
                "the same."
            )
    task, why = _tell_task(tables, reading.task)
    classes = reading.classes
    if task == "classification" and classes is None and _kind(_known(tables[0].y)) == "text":
        classes = tuple(sorted({str(v) for t in tables for y in (t.y, t.y_test) if y is not None for v in y}))
    scale = np.float32(reading.divide_by)
    done = [
        t._replace(
            x=t.x / scale,
            y=_convert(t.path, t.y, task, classes),
            x_test=None if t.x_test is None else t.x_test / scale,
            y_test=None if t.y_test is None else _convert(t.path, t.y_test, task, classes),
        )
        for t in tables
    ]
    return done, reading._replace(task=task, classes=classes, columns=columns), why


def _list_folder(folder: Path, what: str) -> tuple[list[Path], dict[str, Path]]:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder that holds one file of samples per agent or task.")
    visible = sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    files = [p for p in visible if p.suffix in SUFFIXES]
    if pickled := [p for p in visible if p.suffix in PICKLES]:
        raise InputError(
            f"{pickled[0]} is a pickle, which is never loaded because it can run code; write samples as npz and "
            "weights as safetensors, or move it away."
        )
    if not files:
        raise InputError(f"{folder} holds no {what}: no file ends in {', '.join(SUFFIXES)}; add one file for each.")
    for one, two in pairwise(files):
        if one.stem == two.stem:
            raise InputError(f"{one} and {two.name} have the same name, so they would be one agent; rename one.")
    models = {p.stem: p for p in visible if p.suffix == ".safetensors"}
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
    return table._replace(x=table.x[:, [table.columns.index(name) for name in columns]], columns=columns)


def _width(table: Table) -> int:
    y = _known(table.y)
    return y.reshape(len(y), -1).shape[1]


def _kind(y: np.ndarray[Any, Any]) -> str:
    return {"f": "real numbers", "i": "whole numbers", "U": "text"}[y.dtype.kind]


def _tell_task(tables: Sequence[Table], asked: str | None) -> tuple[str, str]:
    kinds = [_kind(_known(table.y)) for table in tables]
    if asked is not None:
        return asked, "as asked"
    for table, kind in zip(tables, kinds, strict=True):
        if kind != kinds[0]:
            raise InputError(
                f"{table.path} has targets that are {kind}, {tables[0].path} {kinds[0]}; make them alike or give "
                "--task regression or --task classification."
            )
    task = "regression" if kinds[0] == "real numbers" else "classification"
    return task, f"the targets are {kinds[0]}"


def _convert(
    path: Path, y: np.ndarray[Any, Any] | None, task: str, classes: tuple[str, ...] | None
) -> np.ndarray[Any, Any]:
    y = _known(y)
    kind = _kind(y)
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
        if strange := [str(v) for v in y if str(v) not in numbers]:
            raise InputError(f"{path}: unknown class {strange[0]!r}; the classes are {', '.join(classes)}.")
        return np.asarray([numbers[str(v)] for v in y], np.int32)
    if kind == "text":
        raise InputError(f"{path}: the model's classes are numbers, got {str(y[0])!r}; give the classes as numbers.")
    if kind == "real numbers" and not (y == np.round(y)).all():
        raise InputError(
            f"{path}: classes must be whole numbers, got {y[y != np.round(y)][0]:g}; use --task regression."
        )
    if y.min() < 0:
        raise InputError(f"{path}: classes must be 0 or more, got {int(y.min())}; number them from 0.")
    if y.max() >= MOST_CLASSES:
        raise InputError(
            f"{path}: whole-number targets are classes, and {int(y.max())} is above the largest, {MOST_CLASSES - 1}; "
            "number them from 0, or give --task regression."
        )
    return y.astype(np.int32)


def _choose(y: np.ndarray[Any, Any], shots: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    order = rng.permutation(len(y))
    if y.dtype.kind == "f":
        return np.sort(order[:shots])
    return np.sort(np.concatenate([order[y[order] == label][:shots] for label in np.unique(y)]))


def _known(y: np.ndarray[Any, Any] | None) -> np.ndarray[Any, Any]:
    assert y is not None  # read_table was asked for targets
    return y
