"""A study's settings: one TOML file, checked whole before any work begins.

From a built-in name or a user's file, with overrides, to a frozen `Study` that knows how to build its model, agents,
new tasks and methods.
"""

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from fewjoule.energy.metering import Metering
from fewjoule.energy.presets import device, link
from fewjoule.errors import InputError, unknown
from fewjoule.methods import Method, method
from fewjoule.models.model import Model
from fewjoule.models.nets import model_from_spec
from fewjoule.tasks import files, mnist, sinusoid
from fewjoule.tasks.samples import Agents, Tasks, for_seeds
from fewjoule.training.descent import optimiser

BUILT_IN = ("sinusoid", "mnist")
TASK_SEED = 1_000_003  # new tasks are the same for every seed and method of a study
LONGEST_FILE_BYTES = 2**20

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Range = tuple[float, float]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class SinusoidFamily(_Table):
    """Sinusoid regression."""

    kind: Literal["sinusoid"]
    amplitudes: list[float] = Field(min_length=1)
    phases: float | list[float] = 0.0
    x_range: Range = (-5.0, 5.0)
    samples: Count = 400
    validation: Annotated[int, Field(ge=0)] = 100
    noise: Annotated[float, Field(ge=0)] = 0.0
    new_amplitude: Range = (0.1, 10.0)
    new_phase: Range = (0.0, 0.0)

    def build(self, seeds: list[int], evaluation: "Evaluation") -> tuple[Agents, Tasks, str]:
        agents = sinusoid.agents(
            self.amplitudes, phases=self.phases, samples=self.samples, validation=self.validation,
            x_range=self.x_range, noise=self.noise, seed=seeds,
        )  # fmt: skip
        tasks = sinusoid.new_tasks(
            evaluation.tasks, amplitude=self.new_amplitude, phase=self.new_phase, shots=evaluation.shots,
            queries=evaluation.queries, x_range=self.x_range, seed=TASK_SEED,
        )  # fmt: skip
        return agents, tasks, "sinusoids drawn from the seeds"


class MnistFamily(_Table):
    """MNIST digits; `folder` holds the four original files, where given."""

    kind: Literal["mnist"]
    digits: list[list[int]] = Field(min_length=1)
    samples: Count = 400
    validation: Annotated[int, Field(ge=0)] = 100
    ways: Annotated[int, Field(ge=1, le=10)] = 5
    only_own_digits: bool = False
    source: Literal["embedded", "download"] = "embedded"
    folder: str | None = None

    def build(self, seeds: list[int], evaluation: "Evaluation") -> tuple[Agents, Tasks, str]:
        images = mnist.load(self.folder, download=self.source == "download")
        agents = mnist.agents(
            images, self.digits, samples=self.samples, validation=self.validation,
            only_own_digits=self.only_own_digits, seed=seeds,
        )  # fmt: skip
        tasks = mnist.new_tasks(
            evaluation.tasks, images, ways=self.ways, shots=evaluation.shots, queries=evaluation.queries,
            only_own_digits=self.only_own_digits, seed=TASK_SEED,
        )  # fmt: skip
        return agents, tasks, images.source


class FilesFamily(_Table):
    """A user's own agents and new tasks, one file each; models that lie beside the agents' files are used."""

    kind: Literal["files"]
    folder: str
    new_tasks: str
    target: str = "y"
    task: Literal["regression", "classification"] | None = None
    divide_by: Positive = 1.0
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    align: Literal["auto", "always", "never"] = "auto"
    layout: Literal["fewjoule", "pytorch", "flax"] | None = None

    def read(self, seed: int) -> files.AgentFiles:
        format = files.DataFormat(self.target, self.task, self.divide_by)
        return files.read_agents(self.folder, format, validation=self.validation, seed=seed)

    def build(self, seeds: list[int], evaluation: "Evaluation") -> tuple[Agents, Tasks, str]:
        found = self.read(seeds[0])
        new = files.read_tasks(self.new_tasks, found.format, shots=evaluation.shots, seed=TASK_SEED)
        agents = for_seeds(lambda seed: found.agents, seeds)
        data = f"{len(found.files)} agents of {self.folder}, {len(new.names)} new tasks of {self.new_tasks}"
        return agents, new.tasks, data


class ModelSettings(_Table):
    spec: str
    init: str = "glorot"
    loss: str = "mse"

    def build(self) -> Model:
        return model_from_spec(self.spec, init=self.init, loss=self.loss)


class LocalSettings(_Table):
    """The arguments of `train_locally`."""

    optimiser: str = "sgd"
    step: Positive = 0.01
    batch: Count | None = 100
    max_steps: Count = 20_000
    gradient_tolerance: Annotated[float, Field(ge=0)] = 1e-3
    plateau_tolerance: Annotated[float, Field(ge=0)] = 0.0
    patience: Count = 5

    def work(self) -> dict[str, Any]:
        """What a step's operations depend on, for `training_flops`."""
        return {"name": self.optimiser, "step": self.step, "batch": self.batch}


class Evaluation(_Table):
    """How new tasks are adapted to and judged; `statistic` is the headline over tasks."""

    tasks: Count = 500
    shots: Count = 40
    queries: Count = 100
    steps: list[Annotated[int, Field(ge=0)]] = Field(default=[0, 1, 5, 10, 50], min_length=1)
    headline: Annotated[int, Field(ge=0)] = 10
    step: Positive = 0.01
    optimiser: str = "sgd"
    statistic: Literal["median", "mean"] = "median"


class EnergySettings(_Table):
    """Which link is charged, and what meters the arithmetic."""

    link: str = "paper"
    meter: Literal["auto", "powercap", "cpu-time", "operations"] = "auto"
    device: str = "laptop-core"
    require_measured: bool = False

    def metering(self) -> Metering:
        return Metering(meter=self.meter, device=self.device, require_measured=self.require_measured)


class MethodEntry(BaseModel):
    """One method of a study: its name in files, its label for people, and the method's own settings."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=60)]
    label: str = ""
    method: str
    runs: Literal["always", "normal", "full"] = "always"
    paper: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.__pydantic_extra__ or {})

    def build(self) -> Method:
        return method(self.method, **self.settings)


class Study(_Table):
    """Everything that decides a run's numbers."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=60)]
    title: str = ""
    seeds: list[Seed] = Field(min_length=1)
    family: SinusoidFamily | MnistFamily | FilesFamily = Field(discriminator="kind")
    model: ModelSettings
    local: LocalSettings = LocalSettings()
    evaluation: Evaluation = Evaluation()
    energy: EnergySettings = EnergySettings()
    methods: list[MethodEntry] = Field(min_length=1)

    def check(self) -> None:
        """Refuse what types alone cannot see."""
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
        optimiser(self.local.optimiser, self.local.step)
        optimiser(self.evaluation.optimiser, self.evaluation.step)
        link(self.energy.link)
        device(self.energy.device)
        self.model.build()
        for entry in self.methods:
            try:
                entry.build()
            except (InputError, TypeError) as error:
                raise InputError(f"method {entry.name!r}: {error}") from error


AnyStudy = TypeVar("AnyStudy", bound=Study)


def load_study(
    source: str,
    *,
    overrides: list[str] | None = None,
    seeds: list[int] | None = None,
    quick: bool = False,
    full: bool = False,
    data_dir: str | None = None,
) -> Study:
    """A study by built-in name or file, with `key=value` overrides; everything is checked."""
    if quick and full:
        raise InputError("give --quick or --full, not both.")
    table, where = read_source(source)
    quick_table = table.pop("quick", {})
    if quick:
        for key, value in quick_table.items():
            _put(table, key, value, where)
    level = {"always"} | (set() if quick else {"normal"}) | ({"full"} if full else set())
    methods = table.get("methods")
    if isinstance(methods, list):
        table["methods"] = [m for m in methods if not isinstance(m, dict) or m.get("runs", "always") in level]
    if seeds is not None:
        table["seeds"] = seeds
    if data_dir is not None:
        if table.get("family", {}).get("kind") != "mnist":
            raise InputError(f"--data-dir is for studies with data files, and {where} has none; leave it out.")
        table["family"]["folder"] = data_dir
    for override in overrides or []:
        key, sign, text = override.partition("=")
        if not sign or not key:
            raise InputError(f"--set takes key=value, got {override!r}.")
        _put(table, key.strip(), _value(text.strip()), "--set")
    return make_study(table, where)


def make_study(table: dict[str, Any], where: str) -> Study:
    """A checked study from a table as TOML gives it; `where` names it in errors."""
    return make_study_of(Study, table, where)


def make_study_of(kind: type[AnyStudy], table: dict[str, Any], where: str) -> AnyStudy:
    """As `make_study`, for a study with more settings."""
    try:
        study = kind.model_validate(table)
    except pydantic.ValidationError as error:
        raise InputError(f"{where}: {_explain(error, table, kind)}") from None
    try:
        study.check()
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return study


def read_source(source: str) -> tuple[dict[str, Any], str]:
    """The table of a built-in study or a file, and how to name it."""
    if source in BUILT_IN:
        text = resources.files("fewjoule.study").joinpath(f"{source}.toml").read_text("utf-8")
        return tomllib.loads(text), f"study {source!r}"
    path = Path(source)
    if path.suffix != ".toml":
        raise (
            unknown("study", source, BUILT_IN)
            if not path.exists()
            else InputError(f"{source} is not a study file; its name must end in .toml.")
        )
    return read_toml(path), str(path)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a table."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; give a study file, or one of {', '.join(BUILT_IN)}.")
    if path.stat().st_size > LONGEST_FILE_BYTES:
        raise InputError(f"{path} has {path.stat().st_size} bytes; a study file has at most {LONGEST_FILE_BYTES}.")
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}.") from error


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _put(table: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Set `a.b.c` in nested tables; `methods.NAME.key` reaches the method of that name."""
    *parents, last = key.split(".")
    at: Any = table
    for i, part in enumerate(parents):
        if isinstance(at, dict) and isinstance(at.get(part), dict):
            at = at[part]
        elif i == 0 and part == "methods":
            at = {m.get("name"): m for m in table.get("methods", []) if isinstance(m, dict)}
        elif isinstance(at, dict) and part not in at and i == 0 and part in ("local", "evaluation", "energy"):
            at = at.setdefault(part, {})
        else:
            raise InputError(f"{where}: {unknown('key', part, [str(k) for k in at])}")
    at[last] = value


def _explain(error: pydantic.ValidationError, table: dict[str, Any], kind: type[Study]) -> str:
    """One problem of a study file as one line with the cure; a misspelt key before the key that it makes missing."""
    first = min(error.errors(include_url=False), key=lambda e: e["type"] != "extra_forbidden")
    place = [str(p) for p in first["loc"]]
    if place[:2] in (["family", "sinusoid"], ["family", "mnist"], ["family", "files"]):
        place.pop(1)
    if place[0] == "methods" and len(place) > 1 and place[1].isdecimal():
        place[1] = str(table["methods"][int(place[1])].get("name", place[1]))
    inside, key = ".".join(place[:-1]), place[-1] if place else ""
    if first["type"] == "extra_forbidden":
        known = _fields(place[:-1], table, kind)
        where = f" in [{inside}]" if inside else ""
        return str(unknown("key", key, known)).replace(";", f"{where};", 1)
    if first["type"] == "missing":
        return f"{'.'.join(place)} is missing; add it."
    message = first["msg"][0].lower() + first["msg"][1:]
    value = first.get("input")
    shown = "" if isinstance(value, dict) else f", got {value!r}"
    return f"{'.'.join(place)}: {message}{shown}."


def _fields(place: list[str], table: dict[str, Any], kind: type[Study]) -> list[str]:
    if not place:
        return list(kind.model_fields)
    if place[0] == "family":
        kinds = {get_args(c.model_fields["kind"].annotation)[0]: c for c in (SinusoidFamily, MnistFamily, FilesFamily)}
        return list(kinds[table["family"]["kind"]].model_fields)
    annotation = kind.model_fields[place[0]].annotation
    return list(annotation.model_fields) if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []
