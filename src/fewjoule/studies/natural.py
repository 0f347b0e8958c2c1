"""Federations that nature made: people's handwriting, phones and alphabets, and PFLlib's splits of Fashion-MNIST.

Their data are the same for every seed; a seed decides what is held out, the start and every draw of the training.
`folder` holds the original files (--data-dir); without it they are downloaded, where that can be checked.
"""

from typing import Any, ClassVar, Literal

from fewjoule.studies.families import Built, Count, Evaluation, Positive, Share, Table
from fewjoule.tasks import fashion, hapt, omniglot, writers


class _Classes(Table):
    LOSS: ClassVar[str] = "cross_entropy"
    folder: str | None = None
    validation: Share = 0.0  # of an agent's samples, for the methods that need them


class FashionFamily(_Classes):
    """Fashion-MNIST between agents with two classes each, or with Dirichlet shares of all classes."""

    kind: Literal["fashion"]
    split: Literal["classes", "dirichlet"] = "classes"
    agents: Count = 20
    classes_each: Count = 2
    concentration: Positive = 0.1
    samples: Count | None = None  # at most so many of an agent's images
    reserved: Positive = 0.1  # share of the images that is kept for new devices
    partition_seed: int = 1
    ways: Count = 5

    def build(self, seeds: list[int], evaluation: Evaluation) -> Built:
        images = fashion.load(self.folder)
        reserving: dict[str, Any] = {"reserved": self.reserved, "partition_seed": self.partition_seed}
        shared = self.model_dump(include={"split", "classes_each", "concentration", "samples", "validation"})
        agents = fashion.agents(images, count=self.agents, **shared, **reserving)
        tasks = fashion.new_tasks(**evaluation.drawing(), images=images, ways=self.ways, **reserving)
        return Built(agents, tasks, images.source)


class WritersFamily(_Classes):
    """MNIST by its writers; new devices are other writers."""

    kind: Literal["writers"]
    agents: Count | None = None  # the first so many writers; None takes all
    least: Count = 10  # images of a writer

    def build(self, seeds: list[int], evaluation: Evaluation) -> Built:
        written = writers.load(self.folder)
        agents = writers.agents(written, count=self.agents, least=self.least, validation=self.validation)
        drawn = evaluation.drawing()
        drawn.pop("queries")  # a writer is tested on all that is left
        tasks = writers.new_tasks(**drawn, written=written)
        return Built(agents, tasks, f"{written.source}; {len(agents)} agents, {len(tasks.query.mask)} new devices")


class HaptFamily(_Classes):
    """Thirty people's phones and six activities; new devices are those of other people."""

    kind: Literal["hapt"]
    inputs: Literal["spectrum", "raw"] = "spectrum"
    bins: Count = 16  # frequencies of a spectrum
    sensors: Literal["accelerometer", "both"] = "accelerometer"

    def build(self, seeds: list[int], evaluation: Evaluation) -> Built:
        data = hapt.load(self.folder, gyroscope=self.sensors == "both")
        if self.inputs == "spectrum":
            data = hapt.spectrum(data, self.bins)
        agents, tests = hapt.agents(data, held_out=evaluation.own_test, validation=self.validation)
        drawn = evaluation.drawing()
        drawn.pop("queries")  # a person is tested on all that is left
        return Built(agents, hapt.new_tasks(**drawn, data=data), data.source, tests)


class OmniglotFamily(_Classes):
    """Alphabets as agents; new tasks are characters that no agent has."""

    kind: Literal["omniglot"]
    split: Literal["alphabets", "vinyals"] = "alphabets"
    rotations: bool = False
    drawers: Count = 20  # of an agent's characters
    outputs: Count = 55  # of the model: at least the characters of the largest alphabet, times four with rotations
    ways: Count = 5
    one_alphabet: bool = False  # all characters of a new task

    def build(self, seeds: list[int], evaluation: Evaluation) -> Built:
        data = omniglot.load(self.folder)
        kept = omniglot.kept_characters(data, self.split, self.folder)
        turning: dict[str, Any] = {"rotations": self.rotations, "classes": self.outputs}
        agents = omniglot.agents(data, kept, drawers=self.drawers, validation=self.validation, **turning)
        drawn = {**evaluation.drawing(), "ways": self.ways, "one_alphabet": self.one_alphabet}
        tasks = omniglot.new_tasks(data=data, kept=kept, **drawn, **turning)
        characters = f"{(~kept).sum()} characters of {len(agents)} alphabets, {kept.sum()} for new tasks"
        return Built(agents, tasks, f"{data.source}; {characters}" + (", and turned" if self.rotations else ""))
