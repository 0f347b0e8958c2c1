"""Where a study's agents and new tasks come from: sinusoids, MNIST digits, or a user's own files."""

import itertools
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from fewjoule.tasks import mnist, sinusoid
from fewjoule.tasks.samples import Agents, Samples, Tasks

TASK_SEED = 1_000_003  # new tasks are the same for every seed and method of a study

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]
Range = tuple[float, float]


class Table(BaseModel):
    """A table of a study file: frozen, and a key that it does not know is a mistake."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class Built(NamedTuple):
    """What a family gives a study. Agents without seeds are the same for every seed."""

    agents: Agents
    tasks: Tasks
    data: str  # where they come from, for people
    tests: Samples | None = None  # [agents, n, ...] held out of each agent's samples, where the family does it itself


class SinusoidFamily(Table):
    """Sinusoid regression."""

    LOSS: ClassVar[str] = "mse"
    kind: Literal["sinusoid"]
    amplitudes: list[float] = Field(min_length=1)
    phases: float | list[float] = 0.0
    x_range: Range = (-5.0, 5.0)
    samples: Count = 400
    validation: Annotated[int, Field(ge=0)] = 100
    noise: Annotated[float, Field(ge=0)] = 0.0
    new_amplitude: Range = (0.1, 10.0)
    new_phase: Range = (0.0, 0.0)

    def build(self, seeds: list[int], evaluation: "Evaluation") -> Built:
        agents = sinusoid.agents(**self.model_dump(exclude={"kind", "new_amplitude", "new_phase"}), seed=seeds)
        tasks = sinusoid.new_tasks(
            **evaluation.drawing(), amplitude=self.new_amplitude, phase=self.new_phase, x_range=self.x_range
        )
        return Built(agents, tasks, "sinusoids drawn from the seeds")

    def true_agents(self, count: int, seeds: list[int]) -> Agents:
        """Agents that are new tasks: amplitudes and phases evenly from their ranges, in an order of chance."""
        shares = (np.arange(count) + 0.5) / count
        amplitudes, phases = (np.interp(shares, (0, 1), bounds) for bounds in (self.new_amplitude, self.new_phase))
        phases = np.random.default_rng(TASK_SEED + 1).permutation(phases)
        drawn: dict[str, Any] = {
            "samples": self.samples,
            "validation": self.validation,
            "x_range": self.x_range,
            "seed": seeds,
        }
        return sinusoid.agents(amplitudes.tolist(), phases=phases.tolist(), **drawn)


class MnistFamily(Table):
    """MNIST digits; `folder` holds the four original files, where given."""

    LOSS: ClassVar[str] = "cross_entropy"
    kind: Literal["mnist"]
    digits: list[list[int]] = Field(min_length=1)
    samples: Count = 400
    validation: Annotated[int, Field(ge=0)] = 100
    ways: Annotated[int, Field(ge=1, le=10)] = 5
    only_own_digits: bool = False
    source: Literal["embedded", "download"] = "embedded"
    folder: str | None = None

    def build(self, seeds: list[int], evaluation: "Evaluation") -> Built:
        images = mnist.load(self.folder, download=self.source == "download")
        agents = mnist.agents(images, **self.model_dump(exclude={"kind", "ways", "source", "folder"}), seed=seeds)
        tasks = mnist.new_tasks(
            **evaluation.drawing(), images=images, ways=self.ways, only_own_digits=self.only_own_digits
        )
        return Built(agents, tasks, images.source)

    def true_agents(self, count: int, seeds: list[int]) -> Agents:
        """Agents that are new tasks: different groups of `ways` digits, of images that no new task uses."""
        images, rng = mnist.load(self.folder, download=self.source == "download"), np.random.default_rng(TASK_SEED + 1)
        groups = list(itertools.combinations(range(10), self.ways))
        chosen = [groups[i] for i in rng.permutation(len(groups))[:count]]
        drawn: dict[str, Any] = {
            "samples": self.samples,
            "validation": self.validation,
            "only_own_digits": self.only_own_digits,
        }
        return mnist.agents(images, chosen, **drawn, seed=seeds)


class FilesFamily(Table):
    """A user's own agents and new tasks, one file each; models that lie beside the agents' files are used.

    Without `new_tasks` nothing is judged. `validation` is the share of samples held out where a file has no x_test; by
    default a fifth where a method asks for held-out samples, else none.
    """

    kind: Literal["files"]
    folder: str
    new_tasks: str | None = None
    target: str = "y"
    task: Literal["regression", "classification"] | None = None
    divide_by: Positive = 1.0
    standardise: bool = False
    validation: Share | None = None
    align: Literal["auto", "always", "never"] = "auto"
    layout: Literal["fewjoule", "pytorch", "flax"] | None = None


class Evaluation(Table):
    """How new tasks, and agents themselves, are adapted to and tested; `statistic` is the headline over tasks."""

    tasks: Count = 500
    shots: Count = 40
    queries: Count = 100
    steps: list[Annotated[int, Field(ge=0)]] = Field(default=[0, 1, 5, 10, 50], min_length=1)
    headline: Annotated[int, Field(ge=0)] = 10
    learning_rate: Positive = 0.01
    optimiser: str = "sgd"
    statistic: Literal["median", "mean"] = "median"
    worth_samples: Count = 1000  # at most so many of an agent's samples say what fine-tuning on them gives
    own_test: Share = 0.0  # share of every agent's samples that is held out to judge what the agent gets itself

    def drawing(self) -> dict[str, Any]:
        """The arguments of `new_tasks`."""
        return {"count": self.tasks, "shots": self.shots, "queries": self.queries, "seed": TASK_SEED}

    def adapting(self) -> dict[str, Any]:
        """The arguments of `adapt`."""
        return {"steps": self.steps, "learning_rate": self.learning_rate, "optimiser": self.optimiser}
