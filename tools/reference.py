"""Write the reference pages that come from the code: every command, every key of a study file, every public name.

    python tools/reference.py

Types, defaults and limits come from the commands and the study's models, the words on keys from
docs/reference/study-keys.toml. A test holds the pages to what this writes.
"""

import inspect
import re
import tomllib
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

import fewjoule
from fewjoule.cli import COMMANDS, load
from fewjoule.methods import METHODS
from fewjoule.studies.settings import FAMILIES, MethodEntry, Study

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
SECTIONS = {
    "Studies": ["Study", "study", "RunFolder", "report", "plan", "Plan"],
    "Tasks and data": [
        "sinusoid", "mnist", "make_agents", "make_tasks", "read_agents", "read_tasks", "population", "Agents",
        "AgentData", "Samples", "Tasks", "AgentFiles", "TaskFiles", "DataFormat", "Population",
    ],
    "Models": [
        "mlp", "conv4", "logistic", "model_from_spec", "from_torch", "to_torch", "from_flax", "from_equinox", "Model",
        "OwnModel", "read_model", "write_model", "export", "ModelFile",
    ],
    "Training": ["train_locally", "LocalModels", "align", "Alignment", "adapt", "Adaptation"],
    "Simulation and energy": ["simulate", "simulate_population", "Run", "PopulationRun", "Trace", "Ledger"],
    "Codecs": ["codec", "with_codec", "Codec", "CODECS"],
    "Errors": ["InputError", "DivergedWarning"],
}  # fmt: skip


def commands() -> str:
    """Every command with its arguments and options, as its help has them."""
    lines = [
        "# Commands",
        "",
        "A user's mistake is one line on stderr and exit code 2; `--help` works everywhere.",
    ]
    for name in COMMANDS:
        lines += _command(f"fewjoule {name}", load(name), 2)
    return "\n".join(lines) + "\n"


def _command(name: str, command: Any, level: int) -> list[str]:
    lines = ["", f"{'#' * level} {name}", "", _one_line(command.help or "")]
    if hasattr(command, "commands"):
        for sub, inner in command.commands.items():
            lines += _command(f"{name} {sub}", inner, level + 1)
        return lines
    rows = []
    for parameter in command.params:
        what = f"`{parameter.metavar or parameter.name.upper()}`"
        if parameter.param_type_name == "option":
            flag = ", ".join(f"`{o}`" for o in (*parameter.opts, *parameter.secondary_opts))
            what = flag if parameter.is_flag else f"{flag} {parameter.metavar or parameter.name.upper()}"
        default = parameter.default if not callable(parameter.default) else None
        shown = "" if default in (None, False, "", [], ()) or "Sentinel" in repr(default) else f"`{default}`"
        rows.append((what, shown, _one_line(getattr(parameter, "help", None) or "")))
    if rows:
        lines += ["", *_table(("argument or option", "default", "meaning"), rows)]
    return lines


def study_file() -> str:
    """Every table and key of a study file."""
    words: dict[str, dict[str, str]] = tomllib.loads((FOLDER / "study-keys.toml").read_text("utf-8"))
    lines = [
        "# Study files",
        "",
        "Every table and key; [studies](../studies.md) has an example.",
    ]
    for name, title, table in tables():
        rows = [
            (f"`{key}`", _type(table[key]), _default(table[key]), words.get(name, {}).get(key, "")) for key in table
        ]
        lines += ["", f"## {title}", "", *_table(("key", "type", "default", "meaning"), rows)]
    lines += [
        "",
        "## Settings of each method",
        "",
        "In addition to `name`, `label`, `method`, `runs`, `paper` and `ceiling`.",
    ]
    rows = []
    for name, build in METHODS.items():
        settings = inspect.signature(build).parameters.values()
        shown = ", ".join(f"`{p.name}`" if p.default is p.empty else f"`{p.name} = {p.default!r}`" for p in settings)
        rows.append((f"`{name}`", shown))
    return "\n".join([*lines, "", *_table(("method", "settings (with their defaults)"), rows)]) + "\n"


def tables() -> list[tuple[str, str, dict[str, FieldInfo]]]:
    """The tables of a study file: their name in study-keys.toml, their title, and their keys."""
    inner = ("model", "local", "evaluation", "energy", "federation")
    top = {key: field for key, field in Study.model_fields.items() if key not in (*inner, "family", "methods")}
    found = [("top", "The top of the file", top)]
    found += [(f"family.{kind}", f'[family], kind = "{kind}"', t.model_fields) for kind, t in FAMILIES.items()]
    for key in inner:
        annotation = Study.model_fields[key].annotation
        table = next(t for t in (annotation, *get_args(annotation)) if hasattr(t, "model_fields"))
        found.append((key, f"[{key}]", table.model_fields))
    return [*found, ("methods", "[[methods]]", MethodEntry.model_fields)]


def _type(field: FieldInfo) -> str:
    annotation: Any = field.annotation
    limits = [f"{LIMITS[k]} {getattr(m, k)}" for m in field.metadata for k in LIMITS if getattr(m, k, None) is not None]
    return ", ".join([_name(annotation), *limits])


def _name(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Literal:
        return " or ".join(f'`"{v}"`' for v in get_args(annotation))
    if origin in (Union, UnionType):
        return " or ".join(_name(a) for a in get_args(annotation) if a is not type(None))
    if origin is list:
        return f"list of {_name(get_args(annotation)[0])}"
    if origin is tuple:
        return "[from, to]"
    if hasattr(annotation, "__metadata__"):
        return _name(get_args(annotation)[0])
    return {str: "text", int: "whole number", float: "number", bool: "true or false"}[annotation]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "must be given"
    value = field.get_default()
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{list(value) if isinstance(value, tuple) else value!r}`"


def python() -> str:
    """Every public name, by what it is for."""
    methods = [name for name in fewjoule.__all__ if name in METHODS]
    methods += ["local_model", "random_start", "method", "invented", "Method", "Schedule", "METHODS"]
    sections = {"Methods": methods, **SECTIONS}
    missing = set(fewjoule.__all__) - {"__version__"} - {name for names in sections.values() for name in names}
    if missing:
        raise SystemExit(f"tools/reference.py: give {', '.join(sorted(missing))} a section in SECTIONS.")
    lines = ["# Python", "", "All public names; [one page of examples](../api.md) shows each at work."]
    for title, names in sections.items():
        lines += ["", f"## {title}"]
        for name in dict.fromkeys(names):
            lines += _entry(f"fj.{name}", getattr(fewjoule, name), 3)
    return "\n".join(lines) + "\n"


def _entry(name: str, thing: Any, level: int) -> list[str]:
    """A heading, the signature, the docstring; a class's and a module's own functions and properties below."""
    lines = ["", f"{'#' * level} {name}"]
    inside = inspect.isclass(thing) or inspect.ismodule(thing)
    if callable(thing) and not (inspect.isclass(thing) and issubclass(thing, Exception)):
        lines += ["", "```python", _signature(name, thing), "```"]
    if isinstance(thing, dict):
        return [
            *lines,
            "",
            f"The {name.removeprefix('fj.').lower()} by name: {', '.join(f'`{k}`' for k in sorted(thing))}.",
        ]
    lines += ["", inspect.getdoc(thing) or ""]
    for own, value in vars(thing).items() if inside else ():
        value = inspect.unwrap(getattr(value, "__func__", value))
        here = getattr(value, "__module__", None) == (thing.__name__ if inspect.ismodule(thing) else thing.__module__)
        if own.startswith("_") or not value.__doc__:
            continue
        if isinstance(value, property | cached_property):
            lines += ["", f"`{own}`", "", f":   {_one_line(value.__doc__)}"]
        elif inspect.isfunction(value) and here:
            lines += _entry(f"{name}.{own}", value, level + 1)
    return lines


def _signature(name: str, thing: Any) -> str:
    """The call on one line, or a line for each argument where that is too long."""
    parameters = [p for p in inspect.signature(thing).parameters.values() if p.name != "self"]
    starred = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    shown = []
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        default = "" if p.default is p.empty else f"={getattr(p.default, '__name__', None) or repr(p.default)}"
        shown.append(f"{ {p.VAR_POSITIONAL: '*', p.VAR_KEYWORD: '**'}.get(p.kind, '') }{p.name}{default}")
    call = f"{name}({', '.join(shown)})"
    return call if len(call) <= 100 else f"{name}(\n    " + ",\n    ".join(shown) + ",\n)"


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _one_line(text: str) -> str:
    text = re.sub(r"\[/?[a-z ]+\]", "", text.replace("\b", ""))  # Rich's marks
    return " ".join(text.split())


PAGES = {"commands.md": commands, "study-file.md": study_file, "python.md": python}

if __name__ == "__main__":
    for page, write in PAGES.items():
        (FOLDER / page).write_text(write(), "utf-8")
