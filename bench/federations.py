"""The federations of docs/benchmarks.md, and what others published on their data. `bench/benchmarks.py` runs them."""

from typing import Any, NamedTuple


class Judged(NamedTuple):
    """New devices with so many samples of each class, and so many classes (None: as many as the study says)."""

    shots: int
    ways: int | None = None

    @property
    def key(self) -> str:
        return str(self.shots) if self.ways is None else f"{self.ways}-way {self.shots}"


class Federation(NamedTuple):
    """A study with settings, and what its new devices are judged with."""

    study: str
    settings: dict[str, Any]
    judged: tuple[Judged, ...]
    title: str
    alone_steps: int = 500  # of a new device that trains from scratch, the control that needs nobody
    more_steps: int | None = None  # after which the methods are judged too, where they are many for the headline's few


FEW = tuple(Judged(shots) for shots in (1, 5, 10))
CHARACTERS = tuple(Judged(shots, ways) for ways in (5, 20) for shots in (1, 5))
TURNED = {
    "family.split": "vinyals",
    "family.rotations": True,
    "family.outputs": 220,
    "model.spec": "conv4:28x28x1-220-32",
}
SHOWN = {"evaluation.steps": [0, 10]}  # 50 steps on all of an agent's samples, not shown, take longer than the methods
ALL = 9000  # of the images of an agent: the largest shares of Dirichlet 0.1 have about 8000
FEDERATIONS = {
    "omniglot-964": Federation("omniglot", {}, CHARACTERS, "Omniglot, 964/659 (30 alphabets)", 30),
    "omniglot-1200": Federation(
        "omniglot", TURNED, CHARACTERS, "Omniglot, 1200/423 (Vinyals), turned characters too", 30
    ),
    "writers": Federation("writers", SHOWN, FEW, "MNIST by its writers", more_steps=100),
    "hapt": Federation("hapt", {}, FEW, "Activities from phones (HAPT)", more_steps=500),
    "fashion-classes": Federation("fashion", {}, FEW, "Fashion-MNIST, two classes each"),
    "fashion-dirichlet": Federation(
        "fashion", {"family.split": "dirichlet", "family.samples": ALL, **SHOWN}, FEW, "Fashion-MNIST, Dirichlet 0.1"
    ),
}


def named(asked: list[str]) -> list[str]:
    """The federations of these names; a study's name stands for all of its federations, nothing for all."""
    return [name for name, one in FEDERATIONS.items() if not asked or {name, one.study} & set(asked)]


class Published(NamedTuple):
    """A published accuracy in per cent: of new tasks, or (None) of agents with the model that they end with."""

    federation: str
    method: str
    ours: str  # the method's name in the study
    judged: Judged | None
    percent: float
    source: str
    differs: str


CENTRAL = "one data set, 64 filters, batch normalisation, tens of thousands of episodes of characters of any alphabets"
ROUNDS = "2000 rounds, a convolution net, all images, no image set aside"
OMNIGLOT = {
    ("MAML", "maml", "Finn et al. 2017"): (98.7, 99.9, 95.8, 98.9),
    ("ProtoNet", "protonet", "Snell et al. 2017"): (98.8, 99.7, 96.0, 98.9),
    ("Reptile", "reptile", "re-implementations of Nichol et al. 2018"): (98.6, 99.5),
}
PFLLIB = {
    ("FedAvg", "fedavg"): (80.4, 85.9),
    ("FedRep", "fedrep"): (99.56, 97.56),
    ("Ditto", "ditto"): (99.44, 97.47),
}
PUBLISHED = tuple(
    Published("omniglot-1200", method, ours, judged, percent, source, CENTRAL)
    for (method, ours, source), values in OMNIGLOT.items()
    for judged, percent in zip(CHARACTERS, values, strict=False)
) + tuple(
    Published(federation, method, ours, None, percent, "PFLlib", ROUNDS)
    for (method, ours), values in PFLLIB.items()
    for federation, percent in zip(("fashion-classes", "fashion-dirichlet"), values, strict=True)
)
