"""Federated meta-learning that counts its energy."""

from fewjoule._version import __version__
from fewjoule.codecs import CODECS, Codec, codec
from fewjoule.energy import Ledger
from fewjoule.errors import DivergedWarning, InputError
from fewjoule.methods import METHODS, Method, Schedule, fisher, imaml, lean, meta_backward, method, with_codec
from fewjoule.methods.answers import answers, invented
from fewjoule.methods.average import average, local_model, random_start
from fewjoule.methods.fedavg import fedavg, fedsgd, reptile
from fewjoule.methods.fedavgm import fedavgm
from fewjoule.methods.fedexp import fedexp
from fewjoule.methods.maml import fomaml, maml
from fewjoule.models.model import Model, OwnModel
from fewjoule.models.nets import conv4, logistic, mlp, model_from_spec
from fewjoule.models.weights import ModelFile, export, read_model, write_model
from fewjoule.report import write_report as report
from fewjoule.report.run_folder import RunFolder
from fewjoule.simulate.plan import Plan, plan
from fewjoule.simulate.run import Run, Trace
from fewjoule.simulate.simulate import simulate
from fewjoule.study.settings import Study
from fewjoule.study.settings import load_study as study
from fewjoule.tasks import mnist, sinusoid
from fewjoule.tasks.files import AgentFiles, TaskFiles, read_agents, read_tasks
from fewjoule.tasks.format import DataFormat
from fewjoule.tasks.samples import AgentData, Agents, Samples, Tasks, make_agents
from fewjoule.training.adapt import Adaptation, adapt
from fewjoule.training.align import Alignment, align
from fewjoule.training.local import LocalModels, train_locally

__all__ = [
    "CODECS", "METHODS", "Adaptation", "AgentData", "AgentFiles", "Agents", "Alignment", "Codec", "DataFormat",
    "DivergedWarning", "InputError", "Ledger", "LocalModels", "Method", "Model", "ModelFile", "OwnModel", "Plan",
    "Run", "RunFolder", "Samples", "Schedule", "Study", "TaskFiles", "Tasks", "Trace", "__version__", "adapt", "align",
    "answers", "average", "codec", "conv4", "export", "fedavg", "fedavgm", "fedexp", "fedsgd", "fisher", "fomaml",
    "imaml", "invented", "lean", "local_model", "logistic", "make_agents", "maml", "meta_backward", "method", "mlp",
    "mnist", "model_from_spec", "plan", "random_start", "read_agents", "read_model", "read_tasks", "report", "reptile",
    "simulate", "sinusoid", "study", "train_locally", "with_codec", "write_model",
]  # fmt: skip
