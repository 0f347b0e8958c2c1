"""What every agent gets: tested on test samples of its own, beside what it has alone.

Three things per agent: the model that the method gives it, that model after fine-tuning on the agent's own training
samples (the steps of the new tasks), and the agent's local model, which needed nobody.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fewjoule.simulation.run import Run
from fewjoule.studies.prepare import Prepared
from fewjoule.tasks.samples import Tasks
from fewjoule.training.adapt import adapt_each
from fewjoule.training.tuning import ALL_WEIGHTS, Tuning

Array = np.ndarray[Any, Any]


def models_to_judge(run: Run) -> Any:
    """The model that each agent has in the end: [seeds, d] where it is one for all, else [seeds, agents, d]."""
    return run.meta if run.personal is None else run.personal


def judge_agents(prepared: Prepared, models: Any, tuning: Tuning = ALL_WEIGHTS) -> dict[str, Array]:
    """Loss and accuracy [seeds, agents, steps] of models [seeds, d] or [seeds, agents, d] on the agents' own tests."""
    if prepared.tests is None:
        return {}
    losses, accuracies = [], []
    for i, own in enumerate(jnp.asarray(models)):
        starts = jnp.broadcast_to(own, (len(prepared.agents), prepared.model.size))
        tasks = Tasks(*(jax.tree.map(lambda a, i=i: a[i], s) for s in (prepared.agents.data.train, prepared.tests)))
        judged = adapt_each(prepared.model, starts, tasks, **prepared.study.evaluation.adapting(), tuning=tuning)
        losses.append(judged.loss)
        accuracies.append(judged.accuracy)
    return {"own_loss": np.stack(losses), "own_accuracy": np.stack(accuracies)}


def judge_alone(prepared: Prepared, models: Array) -> dict[str, Array]:
    """Loss and accuracy [seeds, agents] of the agents' local models [seeds, agents, d] on their own tests."""
    tests, own = prepared.tests, prepared.own
    if tests is None:
        return {}
    found = {}
    for measure in ("loss", "accuracy"):
        values = np.array(jax.jit(jax.vmap(jax.vmap(getattr(prepared.model, measure))))(models, tests))
        for i, net in ({} if own is None else own.nets).items():
            if own is not None and net.spec != prepared.model.spec:  # the agent brought another architecture
                values[:, i] = getattr(net, measure)(own.vectors[i], jax.tree.map(lambda a, i=i: a[0, i], tests))
        found[f"alone_{measure}"] = values
    return found
