"""From a folder of a user's agents to a meta-model: their own models, those still to train, alignment, the method.

Each stage is one function, so that the command line can say what it found before the next one begins.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewjoule.energy import ALL_ROUNDS, BEFORE_FIRST_ROUND, Ledger, Row, charge_downlink, charge_uplink
from fewjoule.energy import link as named_link
from fewjoule.energy.metering import Around, Metering
from fewjoule.errors import DivergedWarning, InputError
from fewjoule.methods import Method
from fewjoule.models.model import Model, check_fit
from fewjoule.models.nets import model_from_spec
from fewjoule.models.weights import read_model
from fewjoule.simulate.simulate import Run, Simulation
from fewjoule.simulate.work import method_flops, training_flops
from fewjoule.study.settings import LocalSettings
from fewjoule.tasks.files import AgentFiles
from fewjoule.training.align import Alignment
from fewjoule.training.local import Local, train_locally


class Given(NamedTuple):
    """The architecture, and the models that agents already have."""

    model: Model
    source: str  # where the architecture comes from
    vectors: dict[int, Array]  # by the agent's position
    layouts: dict[int, str]  # whose order of axes the agent's file had


class LocalModels(NamedTuple):
    """One model per agent, given or trained here."""

    models: Array  # [agents, d]
    loss: np.ndarray[Any, Any]  # [agents], on all training samples
    trained: tuple[bool, ...]


def loss_of(folder: AgentFiles) -> str:
    return "mse" if folder.format.task == "regression" else "cross_entropy"


def given_models(
    folder: AgentFiles, spec: str | None = None, *, init: str = "glorot", layout: str | None = None
) -> Given:
    """The architecture from a spec or from the first agent's weights, and every agent's weights checked against it."""
    paths = {i: path for i, path in enumerate(folder.models) if path is not None}
    where = folder.files[0].parent
    if spec is not None:
        model, source = model_from_spec(spec, init=init, loss=loss_of(folder)), "as given"
    elif paths:
        first = next(iter(paths.values()))
        model, source = read_model(first, loss=loss_of(folder), layout=layout).model, f"from {first.name}"
    else:
        width = int(np.prod(folder.agents.data.train.x.shape[2:]))
        raise InputError(
            f"{where}: no agent has a model, so the architecture is not known; give it, as in --model "
            f"mlp:{width}-40-40-{_outputs(folder)}."
        )
    with_name(where, check_fit, model, folder.agents)
    loaded = {i: read_model(path, model=model, layout=layout) for i, path in paths.items()}
    return Given(model, source, {i: m.vector for i, m in loaded.items()}, {i: m.layout for i, m in loaded.items()})


def local_models(
    folder: AgentFiles, given: Given, settings: LocalSettings, ledger: Ledger, meter: Metering, *, name: str, seed: int
) -> LocalModels:
    """Train the agents without a model, all from one random start; put what that costs on the ledger."""
    agents, model = folder.agents, given.model
    missing = [i for i in range(len(agents)) if i not in given.vectors]
    vectors = dict(given.vectors)
    if missing:
        rest = agents.select(missing)

        def train(around: Around) -> Local:
            return train_locally(model, rest, seed=seed, **settings.model_dump(), around=around)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergedWarning)  # said below, with the file and the cure
            local, reading = meter.read(train, None)
        for i, vector, stopped in zip(missing, local.models, local.stopped_by, strict=True):
            if stopped == "diverged" or not bool(jnp.isfinite(vector).all()):
                raise InputError(
                    f"{folder.files[i]}: local training diverged at step {settings.step:g}; lower --local-step."
                )
            vectors[i] = vector
        flops = training_flops(model, rest, np.asarray(local.steps)[None], **settings.work())[0]
        charge_reading(ledger, name, seed, "pretraining", meter.of_flops(reading, flops), flops)
    models = jnp.stack([vectors[i] for i in range(len(agents))])
    losses = np.asarray(jax.jit(jax.vmap(model.loss))(models, agents.data.train))
    return LocalModels(models, losses, tuple(i in missing for i in range(len(agents))))


def run_method(
    method: Method, folder: AgentFiles, model: Model, models: Array | None, ledger: Ledger, meter: Metering, *,
    link: str, name: str, seed: int,
) -> Run:  # fmt: skip
    """Run the method over the agents; its arithmetic and its radio go on the ledger. A diverged run is an error."""
    agents = folder.agents
    ready = Simulation(method, model, agents, models, seed=seed)
    flops = method_flops(method, model, agents)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergedWarning)  # said below, with the cure
        run, reading = meter.read(ready.run, flops)
    if bool(run.diverged):
        raise InputError(
            f"{folder.files[0].parent}: {method.name} diverged, the agents' loss went from {float(run.start_loss):.3g} "
            f"to {float(run.final_loss):.3g}; lower its step, as in --set step=0.001, or its rounds."
        )
    if method.rounds:
        charge_reading(ledger, name, seed, "computation", reading, flops)
    chosen = named_link(link)
    same: dict[str, Any] = {"method": name, "seed": seed, "agents": agents.names, "rounds": method.rounds}
    up, down = run.uplink_bits, run.downlink_bits
    charge_uplink(ledger, chosen, **same, bits_per_message=up[1:], first_bits=up[0])
    if receiving_is_known(link):
        charge_downlink(ledger, chosen, **same, bits_per_message=down[1:], first_bits=down[0])
    return run


def receiving_is_known(link: str) -> bool:
    """Whether the link knows what receiving costs; where it does not, the downlink is not on the ledger."""
    try:
        named_link(link).receive_joules(1)
    except InputError:
        return False
    return True


def model_card(
    folder: AgentFiles, given: Given, local: LocalModels | None, alignment: Alignment | None, run: Run,
    ledger: Ledger, *, link: str, seed: int, settings: LocalSettings,
) -> dict[str, Any]:  # fmt: skip
    """What the meta-model's file says about itself, beside its architecture and loss."""
    agents: list[dict[str, Any]] = [
        {"name": name, "samples": size} for name, size in zip(folder.agents.names, folder.agents.sizes, strict=True)
    ]
    if local is not None:
        for agent, loss, trained in zip(agents, local.loss, local.trained, strict=True):
            agent |= {"loss": float(loss), "model": "trained here" if trained else "given"}
    return {
        "task": folder.format.task,
        "classes": list(folder.format.classes) if folder.format.classes else None,
        "reading": folder.format._asdict(),
        "method": run.method.describe(),
        "seed": seed,
        "agents": agents,
        "local_training": settings.model_dump() if local is not None and any(local.trained) else None,
        "alignment": None if alignment is None else {k: v for k, v in alignment._asdict().items() if k != "models"},
        "loss_on_agents": {"start": float(run.start_loss), "final": float(run.final_loss)},
        "energy": energy_table(ledger),
        "link": link,
    }


def energy_table(ledger: Ledger) -> list[dict[str, Any]]:
    """Joules, seconds, bits and FLOPs by phase and kind; kinds are never added up.

    Agents send at the same time, so the seconds of a phase are those of the agent that takes longest.
    """
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in ledger:
        groups.setdefault((row.phase, row.kind), []).append(row)
    table = []
    for (phase, kind), rows in groups.items():
        cell: dict[str, Any] = {"phase": phase, "kind": kind, "source": rows[0].source}
        for key in ("joules", "bits", "flops"):
            known = [getattr(row, key) for row in rows if getattr(row, key) is not None]
            cell |= {key: sum(known)} if known else {}
        by_agent: dict[str, float] = {}
        for row in rows:
            if row.seconds is not None:
                by_agent[row.agent] = by_agent.get(row.agent, 0.0) + row.seconds
        cell |= {"seconds": max(by_agent.values())} if by_agent else {}
        table.append(cell)
    return table


def with_name(path: Path, check: Any, *arguments: Any) -> None:
    """Run a check; its complaint begins with the file or folder that caused it."""
    try:
        check(*arguments)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def charge_reading(
    ledger: Ledger, name: str, seed: int, phase: str, reading: Mapping[str, Any], flops: int | None
) -> None:
    """Put one reading of a meter, over all agents and rounds, on the ledger."""
    ledger.add(
        method=name,
        seed=seed,
        phase=phase,
        round=BEFORE_FIRST_ROUND if phase == "pretraining" else ALL_ROUNDS,
        kind=reading["kind"],
        source=reading["source"],
        joules=reading["joules"],
        seconds=reading["seconds"],
        flops=flops,
    )


def _outputs(folder: AgentFiles) -> int:
    y = folder.agents.data.train.y
    if folder.format.task == "regression":
        return int(y.shape[-1])
    return len(folder.format.classes) if folder.format.classes else int(y.max()) + 1
