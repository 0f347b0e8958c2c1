"""A study's settings: one TOML file, checked whole before any work begins.

From a built-in name or a user's file, with overrides, to a frozen `Study` that knows how to build its model, agents,
new tasks and methods.
"""

import tomllib
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from fewjoule.energy.metering import Metering, check_meter
from fewjoule.energy.presets import device, link
from fewjoule.errors import InputError, unknown
from fewjoule.methods import Method, method
from fewjoule.models.code import is_code, trust
from fewjoule.models.model import Model
from fewjoule.models.nets import model_from_spec
from fewjoule.reporting.run_folder import RunFolder
from fewjoule.studies.families import Count, Evaluation, FilesFamily, MnistFamily, Positive, SinusoidFamily, Table
from fewjoule.studies.natural import FashionFamily, HaptFamily, OmniglotFamily, WritersFamily
from fewjoule.tasks.samples import Agents
from fewjoule.training.descent import optimiser

Family = SinusoidFamily | MnistFamily | OmniglotFamily | WritersFamily | HaptFamily | FashionFamily | FilesFamily
FAMILIES: dict[str, type[Table]] = {get_args(f.model_fields["kind"].annotation)[0]: f for f in get_args(Family)}
BUILT_IN = tuple(kind for kind in FAMILIES if kind != "files")
LONGEST_FILE_BYTES = 2**20

Seed = Annotated[int, Field(ge=0, lt=2**32)]


class ModelSettings(Table):
    """The architecture; own agents with models need no `spec`, and without `loss` the data say which."""

    spec: str | None = None
    init: str = "glorot"
    loss: str | None = None

    def build(self, spec: str, loss: str) -> Model:
        """The model of this spec. Code is run, as whoever runs a study file has named it."""
        return model_from_spec(trust(spec) if is_code(spec) else spec, init=self.init, loss=loss)


class LocalSettings(Table):
    """The arguments of `train_locally`."""

    optimiser: str = "sgd"
    learning_rate: Positive = 0.01
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # how the learning rate falls over max_steps
    batch: Count | None = 100
    max_steps: Count = 20_000
    gradient_tolerance: Annotated[float, Field(ge=0)] = 1e-3
    plateau_tolerance: Annotated[float, Field(ge=0)] = 0.0
    early_stopping: bool = False  # by the loss on the agent's validation samples, whose best model is kept
    patience: Count = 5


class EnergySettings(Table):
    """Which link is charged, and what meters the arithmetic."""

    link: str = "paper"
    meter: Literal["auto", "powercap", "cpu-time", "operations"] = "auto"
    device: str = "laptop-core"
    require_measured: bool = False

    def metering(self) -> Metering:
        return Metering(meter=self.meter, device=self.device, require_measured=self.require_measured)


class FederationSettings(Table):
    """Between real machines: what happens when an agent is absent, late or sends what cannot be used."""

    policy: Literal["wait", "skip", "stop"] = "wait"
    deadline_seconds: Positive = 60.0  # for an agent's answer
    quorum: Count = 1  # for skip: at least this many agents in every round
    largest_rms: Positive = 1e4
    largest_ratio: Positive = 100.0  # of an agent's message to the agents' median, by size
    classes: list[str] = Field(default=[])  # of text targets, in the order of their numbers


class MethodEntry(BaseModel):
    """One method of a study: its name in files, its label for people, and the method's own settings."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=60)]
    label: str = ""
    method: str
    runs: Literal["always", "normal", "full"] = "always"
    paper: bool = False
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of the agents, drawn afresh in every round
    ceiling: Annotated[int, Field(ge=0)] = 0  # trained on so many tasks of the new tasks' own family, which nobody has

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})

    def build(self) -> Method:
        return method(self.method, **self.settings)


class Study(Table):
    """Everything that decides a run's numbers.

    Agents of a federation have their data at home: there `family` is only the source of the new tasks that the operator
    judges by, and without it nothing is judged.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=60)]
    title: str = ""
    seeds: list[Seed] = Field(min_length=1)
    family: Family | None = Field(default=None, discriminator="kind")
    model: ModelSettings
    local: LocalSettings = LocalSettings()
    evaluation: Evaluation = Evaluation()
    energy: EnergySettings = EnergySettings()
    methods: list[MethodEntry] = Field(min_length=1)
    federation: FederationSettings | None = None

    def build_model(self) -> Model:
        """The model that the settings name; a study without data of its own is of regression."""
        if self.model.spec is None:
            raise InputError("model.spec is missing; add it.")
        loss = self.model.loss or str(getattr(self.family, "LOSS", "mse"))
        return self.model.build(self.model.spec, loss)

    def run(self, out: str | Path | None = None, *, show: Callable[[str], None] = lambda line: None) -> RunFolder:
        """Run the study as `fewjoule run` does, into the folder `out` (by default the first free of runs/NAME).

        `show` is handed a line of text when there is news. The run folder holds results, energy and the page.
        """
        from fewjoule.studies.run import run_into  # it knows this module

        return RunFolder.read(run_into(self, out, show))

    def true_agents(self, count: int) -> Agents:
        """Agents of the new tasks' own family: what a ceiling is trained on, and nobody has."""
        assert isinstance(self.family, SinusoidFamily | MnistFamily)
        return self.family.true_agents(count, list(self.seeds))

    def check(self) -> None:
        """Refuse what types alone cannot see."""
        if self.family is None and self.federation is None:
            raise InputError("family is missing; add it.")
        if isinstance(self.family, FilesFamily) and self.federation is not None:
            raise InputError(f"family.kind must be one of {', '.join(BUILT_IN)} in a federation, got 'files'.")
        names = [entry.name for entry in self.methods]
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"method names must differ, got {name!r} twice.")
        if len(set(self.seeds)) != len(self.seeds):
            raise InputError(f"seeds must differ, got {self.seeds}.")
        if sorted(set(self.evaluation.steps)) != self.evaluation.steps:
            raise InputError(f"evaluation.steps must rise without repetition, got {self.evaluation.steps}.")
        if self.evaluation.headline not in self.evaluation.steps:
            raise InputError(
                f"evaluation.headline must be one of evaluation.steps {self.evaluation.steps}, "
                f"got {self.evaluation.headline}."
            )
        optimiser(self.local.optimiser, self.local.learning_rate)
        optimiser(self.evaluation.optimiser, self.evaluation.learning_rate)
        link(self.energy.link)
        device(self.energy.device)
        check_meter(self.energy.meter, require_measured=self.energy.require_measured)
        if self.model.spec is not None or not isinstance(self.family, FilesFamily):
            self.build_model()
        for entry in self.methods:
            if self.federation is not None and entry.participation != 1:
                raise InputError(
                    f"method {entry.name!r}: participation is for simulated studies, got {entry.participation:g}; in a "
                    "federation all agents are asked in every round, so leave it out."
                )
            if entry.ceiling and (not hasattr(self.family, "true_agents") or entry.build().start != "random"):
                raise InputError(
                    f"method {entry.name!r}: a ceiling needs the family sinusoid or mnist and start = 'random'."
                )
            try:
                entry.build()
            except (InputError, TypeError) as error:
                raise InputError(f"method {entry.name!r}: {error}") from error


def load_study(
    source: str,
    *,
    settings: Mapping[str, Any] | None = None,
    seeds: list[int] | None = None,
    quick: bool = False,
    full: bool = False,
    data_dir: str | None = None,
) -> Study:
    """A study by built-in name (one of `BUILT_IN`) or TOML file, checked whole; its `run` runs it.

    `settings` change single ones, by names such as "evaluation.tasks" or "methods.meta_backward.rounds".
    """
    if quick and full:
        raise InputError("give --quick or --full, not both.")
    table, where = read_source(source)
    for name, asked in (("quick", quick), ("full", full)):
        changes = table.pop(name, {})
        if not isinstance(changes, dict):
            raise InputError(f"{where}: {name} must be a table of settings, got {changes!r}.")
        for key, value in changes.items() if asked else ():
            _put(table, key, value, where)
    left_out = ("full", "normal") if quick else () if full else ("full",)
    methods = table.get("methods")
    if isinstance(methods, list):
        table["methods"] = [m for m in methods if not isinstance(m, dict) or m.get("runs", "always") not in left_out]
    if seeds is not None:
        table["seeds"] = seeds
    if data_dir is not None:
        family = table.get("family")
        if not isinstance(family, dict) or family.get("kind") in ("sinusoid", "files"):
            raise InputError(f"--data-dir is for studies with data files, and {where} has none; leave it out.")
        family["folder"] = data_dir
    for key, value in (settings or {}).items():
        _put(table, key, value, "--set")
    return make_study(table, where)


def make_study(table: dict[str, Any], where: str) -> Study:
    """A checked study from a table as TOML gives it; `where` names it in errors, unless it is empty."""
    place = f"{where}: " if where else ""
    try:
        study = Study.model_validate(table)
        study.check()
    except pydantic.ValidationError as error:
        raise InputError(f"{place}{_explain(error, table)}") from None
    except InputError as error:
        raise InputError(f"{place}{error}") from error
    return study


def read_source(source: str) -> tuple[dict[str, Any], str]:
    """The table of a built-in study or a file, and how to name it."""
    if source in BUILT_IN:
        text = resources.files("fewjoule.studies").joinpath(f"{source}.toml").read_text("utf-8")
        return tomllib.loads(text), f"study {source!r}"
    path = Path(source)
    if path.suffix != ".toml" and path.exists():
        raise InputError(f"{source} is not a study file; its name must end in .toml.")
    if path.suffix != ".toml":
        raise unknown("study", source, BUILT_IN)
    return read_toml(path), str(path)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a table."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; give a study file, or one of {', '.join(BUILT_IN)}.")
    if path.stat().st_size > LONGEST_FILE_BYTES:
        raise InputError(f"{path} has {path.stat().st_size} bytes; a study file has at most {LONGEST_FILE_BYTES}.")
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:  # not TOML or UTF-8, an endless number, deep nesting
        raise InputError(f"{path} is not valid TOML: {error}.") from error


def _put(table: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Set `a.b.c` in nested tables; `methods.NAME.key` reaches the method of that name."""
    *parents, last = key.split(".")
    at: Any = table
    for i, part in enumerate(parents):
        if i == 0 and part == "methods":
            methods = table.get("methods")
            at = {str(m.get("name")): m for m in methods if isinstance(m, dict)} if isinstance(methods, list) else {}
        elif isinstance(at.get(part), dict):
            at = at[part]
        elif part not in at and i == 0 and part in ("local", "evaluation", "energy"):
            at = at.setdefault(part, {})
        else:
            raise InputError(f"{where}: {unknown('key', part, [str(k) for k in at])}")
    if parents == ["methods"]:
        raise InputError(f"{where}: {key} is a method; name one of its settings, as in {key}.rounds=10.")
    at[last] = value


def _explain(error: pydantic.ValidationError, table: dict[str, Any]) -> str:
    """One problem of a study file as one line with the cure; a misspelt key before the key that it makes missing."""
    first = min(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
    place = [str(p) for p in first["loc"]]
    if place[:2] in [["family", kind] for kind in FAMILIES]:
        place.pop(1)
    if place[:1] == ["methods"] and len(place) > 1 and place[1].isdecimal():
        entry = table["methods"][int(place[1])]
        place[1] = str(entry.get("name", place[1])) if isinstance(entry, dict) else place[1]
    inside, key = ".".join(place[:-1]), place[-1] if place else ""
    if first["type"] == "extra_forbidden":
        where = f" in [{inside}]" if inside else ""
        return str(unknown("key", key, _fields(place[:-1], table))).replace(";", f"{where};", 1)
    if first["type"] == "missing":
        return f"{'.'.join(place)} is missing; add it."
    message, value = first["msg"][0].lower() + first["msg"][1:], first.get("input")
    return f"{'.'.join(place)}: {message}{'' if isinstance(value, dict) else f', got {value!r}'}."


def _fields(place: list[str], table: dict[str, Any]) -> list[str]:
    """The keys of the table at this place."""
    if not place:
        return [*Study.model_fields, "quick", "full"]  # which `load_study` takes out of the table
    if place[0] == "family":
        return list(FAMILIES[table["family"]["kind"]].model_fields)
    annotation = Study.model_fields[place[0]].annotation
    return next(list(t.model_fields) for t in (annotation, *get_args(annotation)) if hasattr(t, "model_fields"))
