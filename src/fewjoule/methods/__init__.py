"""The methods, one file per paper, and the registry of their names."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fewjoule.errors import InputError, unknown
from fewjoule.methods.anil import anil
from fewjoule.methods.answers import answers, invented
from fewjoule.methods.average import average, local_model, random_start
from fewjoule.methods.coded import CODED_SETTINGS, with_codec
from fewjoule.methods.ditto import ditto
from fewjoule.methods.fedavg import fedavg, fedsgd, reptile
from fewjoule.methods.fedavgm import fedavgm
from fewjoule.methods.fedexp import fedexp
from fewjoule.methods.fedprox import fedprox
from fewjoule.methods.fedrep import fedrep
from fewjoule.methods.fisher import fisher
from fewjoule.methods.imaml import imaml
from fewjoule.methods.lean import lean
from fewjoule.methods.maml import fomaml, maml
from fewjoule.methods.meta_backward import Schedule, meta_backward
from fewjoule.methods.meta_sgd import meta_sgd
from fewjoule.methods.method import Method
from fewjoule.methods.protonet import protonet
from fewjoule.tasks.questions import questions_from_file
from fewjoule.tasks.readers import SUFFIXES

METHODS: dict[str, Callable[..., Method]] = {
    "average": average,
    "local": local_model,
    "random": random_start,
    "fedsgd": fedsgd,
    "fedavg": fedavg,
    "reptile": reptile,
    "fedavgm": fedavgm,
    "fedexp": fedexp,
    "fedprox": fedprox,
    "fedrep": fedrep,
    "ditto": ditto,
    "fisher": fisher,
    "lean": lean,
    "maml": maml,
    "fomaml": fomaml,
    "meta_sgd": meta_sgd,
    "anil": anil,
    "protonet": protonet,
    "imaml": imaml,
    "meta_backward": meta_backward,
    "answers": answers,
    "invented": invented,
}
CODE_THEMSELVES = {
    "lean": 'lean chooses its codecs itself; leave the codec out, or use method = "fedavg".',
    "answers": "answers sends its answers with 'bits' each; leave the codec out, and set bits.",
    "invented": "invented sends nothing; leave the codec out.",
}


def method(name: str, **settings: Any) -> Method:
    """The method of this name with these settings, as study files and the command line name them.

    Every method also takes `codec`, `first_codec`, `down_codec` (as "quantise:3") and `feedback`: see `with_codec`.
    """
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    coding = {argument: settings.pop(key) for key, argument in CODED_SETTINGS.items() if key in settings}
    if coding.keys() == {"feedback"}:
        raise InputError("feedback is about what a codec loses; give codec as well, such as codec='top-k:0.1:2'.")
    if coding and name in CODE_THEMSELVES:
        raise InputError(CODE_THEMSELVES[name])
    known = inspect.signature(METHODS[name]).parameters
    for key in settings:
        if key not in known:
            if not known:
                raise InputError(f"method {name!r} has no settings, got {key!r}; leave it out.")
            raise unknown(f"setting of method {name!r}:", key, [*known, *CODED_SETTINGS])
    if isinstance(settings.get("radius"), dict):
        settings["radius"] = Schedule.from_table(settings["radius"])
    if Path(str(settings.get("questions", ""))[:1000]).suffix in SUFFIXES:
        settings["questions"] = questions_from_file(settings["questions"])
    return with_codec(METHODS[name](**settings), **coding)


__all__ = [
    "METHODS", "Method", "Schedule", "anil", "answers", "average", "ditto", "fedavg", "fedavgm", "fedexp", "fedprox",
    "fedrep", "fedsgd", "fisher", "fomaml", "imaml", "invented", "lean", "local_model", "maml", "meta_backward",
    "meta_sgd", "method", "protonet", "random_start", "reptile", "with_codec",
]  # fmt: skip
