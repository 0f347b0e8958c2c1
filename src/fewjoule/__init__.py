"""Federated meta-learning that counts its energy."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fewjoule._version import __version__
from fewjoule.errors import DivergedWarning, InputError

if TYPE_CHECKING:
    from fewjoule.codecs import CODECS, Codec, codec
    from fewjoule.energy import Ledger
    from fewjoule.methods import METHODS, Method, Schedule, fisher, imaml, lean, meta_backward, method, with_codec
    from fewjoule.methods.anil import anil
    from fewjoule.methods.answers import answers, invented
    from fewjoule.methods.average import average, local_model, random_start
    from fewjoule.methods.ditto import ditto
    from fewjoule.methods.fedavg import fedavg, fedsgd, reptile
    from fewjoule.methods.fedavgm import fedavgm
    from fewjoule.methods.fedexp import fedexp
    from fewjoule.methods.fedprox import fedprox
    from fewjoule.methods.fedrep import fedrep
    from fewjoule.methods.maml import fomaml, maml
    from fewjoule.methods.meta_sgd import meta_sgd
    from fewjoule.methods.protonet import protonet
    from fewjoule.models.jax_modules import from_equinox, from_flax
    from fewjoule.models.model import Model, OwnModel
    from fewjoule.models.nets import conv4, logistic, mlp, model_from_spec
    from fewjoule.models.torch_modules import from_torch, to_torch
    from fewjoule.models.weights import ModelFile, export, read_model, write_model
    from fewjoule.reporting import write_report as report
    from fewjoule.reporting.run_folder import RunFolder
    from fewjoule.simulation.plan import Plan, plan
    from fewjoule.simulation.population import simulate_population
    from fewjoule.simulation.population_run import PopulationRun
    from fewjoule.simulation.run import Run, Trace
    from fewjoule.simulation.simulate import simulate
    from fewjoule.studies.settings import Study
    from fewjoule.studies.settings import load_study as study
    from fewjoule.tasks import mnist, sinusoid
    from fewjoule.tasks.files import AgentFiles, TaskFiles, read_agents, read_tasks
    from fewjoule.tasks.format import DataFormat
    from fewjoule.tasks.population import Population, population
    from fewjoule.tasks.samples import AgentData, Agents, Samples, Tasks, make_agents, make_tasks
    from fewjoule.training.adapt import Adaptation, adapt
    from fewjoule.training.align import Alignment, align
    from fewjoule.training.local import LocalModels, train_locally

__all__ = [
    "CODECS", "METHODS", "Adaptation", "AgentData", "AgentFiles", "Agents", "Alignment", "Codec", "DataFormat",
    "DivergedWarning", "InputError", "Ledger", "LocalModels", "Method", "Model", "ModelFile", "OwnModel", "Plan",
    "Population", "PopulationRun", "Run", "RunFolder", "Samples", "Schedule", "Study", "TaskFiles", "Tasks", "Trace",
    "__version__", "adapt", "align", "anil", "answers", "average", "codec", "conv4", "ditto", "export", "fedavg",
    "fedavgm", "fedexp", "fedprox", "fedrep", "fedsgd", "fisher", "fomaml", "from_equinox", "from_flax", "from_torch",
    "imaml", "invented", "lean", "local_model", "logistic", "make_agents", "make_tasks", "maml", "meta_backward",
    "meta_sgd", "method", "mlp", "mnist", "model_from_spec", "plan", "population", "protonet", "random_start",
    "read_agents", "read_model", "read_tasks", "report", "reptile", "simulate", "simulate_population", "sinusoid",
    "study", "to_torch", "train_locally", "with_codec", "write_model",
]  # fmt: skip
HOMES = {  # where each public name lives; the block above says the same to type checkers, and a test compares the two
    "Adaptation": "training.adapt.Adaptation",
    "AgentData": "tasks.samples.AgentData",
    "AgentFiles": "tasks.files.AgentFiles",
    "Agents": "tasks.samples.Agents",
    "Alignment": "training.align.Alignment",
    "CODECS": "codecs.CODECS",
    "Codec": "codecs.Codec",
    "DataFormat": "tasks.format.DataFormat",
    "Ledger": "energy.Ledger",
    "LocalModels": "training.local.LocalModels",
    "METHODS": "methods.METHODS",
    "Method": "methods.Method",
    "Model": "models.model.Model",
    "ModelFile": "models.weights.ModelFile",
    "OwnModel": "models.model.OwnModel",
    "Plan": "simulation.plan.Plan",
    "Population": "tasks.population.Population",
    "PopulationRun": "simulation.population_run.PopulationRun",
    "Run": "simulation.run.Run",
    "RunFolder": "reporting.run_folder.RunFolder",
    "Samples": "tasks.samples.Samples",
    "Schedule": "methods.Schedule",
    "Study": "studies.settings.Study",
    "TaskFiles": "tasks.files.TaskFiles",
    "Tasks": "tasks.samples.Tasks",
    "Trace": "simulation.run.Trace",
    "adapt": "training.adapt.adapt",
    "align": "training.align.align",
    "anil": "methods.anil.anil",
    "answers": "methods.answers.answers",
    "average": "methods.average.average",
    "codec": "codecs.codec",
    "conv4": "models.nets.conv4",
    "ditto": "methods.ditto.ditto",
    "export": "models.weights.export",
    "fedavg": "methods.fedavg.fedavg",
    "fedavgm": "methods.fedavgm.fedavgm",
    "fedexp": "methods.fedexp.fedexp",
    "fedprox": "methods.fedprox.fedprox",
    "fedrep": "methods.fedrep.fedrep",
    "fedsgd": "methods.fedavg.fedsgd",
    "fisher": "methods.fisher",
    "fomaml": "methods.maml.fomaml",
    "from_equinox": "models.jax_modules.from_equinox",
    "from_flax": "models.jax_modules.from_flax",
    "from_torch": "models.torch_modules.from_torch",
    "imaml": "methods.imaml",
    "invented": "methods.answers.invented",
    "lean": "methods.lean",
    "local_model": "methods.average.local_model",
    "logistic": "models.nets.logistic",
    "make_agents": "tasks.samples.make_agents",
    "make_tasks": "tasks.samples.make_tasks",
    "maml": "methods.maml.maml",
    "meta_backward": "methods.meta_backward",
    "meta_sgd": "methods.meta_sgd.meta_sgd",
    "method": "methods.method",
    "mlp": "models.nets.mlp",
    "mnist": "tasks.mnist",
    "model_from_spec": "models.nets.model_from_spec",
    "plan": "simulation.plan.plan",
    "population": "tasks.population.population",
    "protonet": "methods.protonet.protonet",
    "random_start": "methods.average.random_start",
    "read_agents": "tasks.files.read_agents",
    "read_model": "models.weights.read_model",
    "read_tasks": "tasks.files.read_tasks",
    "report": "reporting.write_report",
    "reptile": "methods.fedavg.reptile",
    "simulate": "simulation.simulate.simulate",
    "simulate_population": "simulation.population.simulate_population",
    "sinusoid": "tasks.sinusoid",
    "study": "studies.settings.load_study",
    "to_torch": "models.torch_modules.to_torch",
    "train_locally": "training.local.train_locally",
    "with_codec": "methods.with_codec",
    "write_model": "models.weights.write_model",
}
ROOMS = (
    "codecs",
    "energy",
    "federation",
    "methods",
    "models",
    "reporting",
    "simulation",
    "studies",
    "tasks",
    "training",
)


def __getattr__(name: str) -> Any:
    """A public name, imported when it is first asked for: JAX takes a second, and `fewjoule --help` needs none."""
    if name in ROOMS:
        return import_module(f"fewjoule.{name}")
    if name not in HOMES:
        raise AttributeError(f"module 'fewjoule' has no attribute {name!r}")
    room, _, called = HOMES[name].rpartition(".")
    home = import_module(f"fewjoule.{room}")
    if "jax" in sys.modules:
        import_module("fewjoule.training.mesh").use_all_cores()  # before JAX first computes
    found = getattr(home, called) if hasattr(home, called) else import_module(f"fewjoule.{room}.{called}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
