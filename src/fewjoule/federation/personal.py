"""The model that an agent keeps for itself when a run closes: FedRep's shared body with the agent's own head, Ditto's
own model. It never travels, so only the agent can write it."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from fewjoule.federation.spec import Contract
from fewjoule.methods.method import Broadcast
from fewjoule.models.parts import parts_of
from fewjoule.models.weights import write_model
from fewjoule.training.tuning import card_of

PERSONAL_MODEL = "personal.safetensors"


def write_personal(folder: Path, agreed: Contract, agent: str, state: Any, meta: np.ndarray) -> None:
    """Write the agent's own model beside its state, from that state and the run's meta-model [d]; nothing where the
    method gives everybody the same."""
    method, model, spec = agreed.method, agreed.model, agreed.spec
    if method.personal is None:
        return
    split = parts_of(model, method.head)
    shared = split.body_first(jnp.asarray(meta))[: agreed.shared_size]
    own = split.as_model(method.personal(state, Broadcast(shared)))
    card = {"method": method.describe(), "seed": spec.seed, "agent": agent, **card_of(method.tuning)}
    write_model(folder / PERSONAL_MODEL, model, own, card, force=True)
