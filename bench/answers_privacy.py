"""What answers reveal about an agent's samples, and what weights reveal: two attacks on both, on the studies' agents.

    python bench/answers_privacy.py [--seeds 10] [--out docs/answers_privacy.json]

The attacker is the server. It knows the agent's architecture and classes, and sees either the weights or the coded
answers. From answers it first makes a stand-in model: a smooth function through them, or a network trained on them.

Membership (Yeom et al. 2018, "Privacy Risk in Machine Learning"): is a sample one of the agent's? Score: minus its
loss. A sharper score subtracts it from the mean loss under what the attacker has of the other seeds' agents, as
references (Watson et al. 2022, "On the Importance of Difficulty Calibration in Membership Inference Attacks"). AUC over
the agent's own and its held-out samples: 0.5 is guessing, 1 is certainty.

Inversion (Fredrikson et al. 2015, "Model Inversion Attacks"): for a sinusoid, how far the recovered function and
amplitude are from the agent's; for digits, how well the input that a class's score likes best correlates with the mean
image of the agent's own samples of that class.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fewjoule as fj
from fewjoule.codecs.uniform import Uniform
from fewjoule.files import use_compile_cache, write_atomically
from fewjoule.methods.answers import clipped, own_classes
from fewjoule.randomness import key_for
from fewjoule.studies.settings import load_study
from fewjoule.studies.summary import interval
from fewjoule.tasks import mnist
from fewjoule.tasks.questions import read_questions
from fewjoule.training.smoothing import smoothed

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, this file's folder is there instead
from bench.answers import put

FIRST_SEED = 6000
MARKS = ("<!-- made by bench/answers_privacy.py -->", "<!-- end of privacy -->")
SAMPLES = (400, 40)
"""Of an agent: the study's, and so few that a model learns them by heart."""
ASCENT_STEPS = 200
ASCENT_RATE = 0.1

Numbers = Any


def auc(members: Numbers, others: Numbers) -> float:
    """The chance that a member's score is above another's; ties count half."""
    below = np.searchsorted(np.sort(others), members, "left").mean()
    up_to = np.searchsorted(np.sort(others), members, "right").mean()
    return float(below + up_to) / 2 / len(others)


def membership(losses: Numbers) -> tuple[float, float]:
    """AUC of the two scores for a pair (members, others) of losses [seeds, n]: row 0 is the target's, others are
    references."""
    members, others = losses
    plain = auc(-members[0], -others[0])
    return plain, auc(members[1:].mean(0) - members[0], others[1:].mean(0) - others[0])


def table_row(study: str, attack: str, weights: list[float], answers: list[float], unit: str) -> dict[str, Any]:
    found = {}
    for name, each in (("weights", weights), ("answers", answers)):
        low, high = interval(np.asarray(each)) if unit == "AUC" else (min(each), max(each))
        found[name] = {"mean": float(np.mean(each)), "low": low, "high": high, "seeds": each}
    print(
        f"{study}: {attack}: weights {found['weights']['mean']:.4f}, answers {found['answers']['mean']:.4f}", flush=True
    )
    return {"study": study, "attack": attack, "unit": unit, **found}


def sinusoid(seeds: list[int]) -> list[dict[str, Any]]:
    """The agent of amplitude 6 of each seed."""
    study = load_study("sinusoid", seeds=seeds)
    model = study.build_model()
    agents = study.family.build(seeds, study.evaluation).agents  # type: ignore[union-attr]
    own = fj.train_locally(model, agents, seed=seeds, **study.local.model_dump()).models[:, 1]
    data = jax.tree.map(lambda a: a[:, 1], agents.data)
    questions, codec = jnp.linspace(-5, 5, 20)[:, None], Uniform(6)

    def through(vector: Any, at: Any) -> Any:
        told = codec.apply(model.apply(vector, questions).reshape(-1), jax.random.key(0))[0]
        return smoothed(questions, told[None, :, None], at, jnp.ones(1), 64)[0]

    rows, seen = [], {"weights": model.apply, "answers": through}
    at = jnp.linspace(-5, 5, 200)[:, None]
    scores: dict[str, list[tuple[float, float]]] = {}
    wrong: dict[str, list[float]] = {}
    off: dict[str, list[float]] = {}
    for name, function in seen.items():
        every = jax.jit(jax.vmap(function, (0, None)))
        scores[name], wrong[name], off[name] = [], [], []
        for i in range(len(seeds)):
            order = [i, *(j for j in range(len(seeds)) if j != i)]
            pair = [
                np.asarray((every(own[jnp.asarray(order)], s.x[i])[..., 0] - s.y[i, :, 0]) ** 2)
                for s in (data.train, data.validation)
            ]
            scores[name].append(membership(pair))
            f = np.asarray(every(own[i][None], at))[0, :, 0]
            wave = np.sin(np.asarray(at)[:, 0])
            wrong[name].append(float(np.sqrt(np.mean((f - np.asarray(model.apply(own[i], at))[:, 0]) ** 2))) / 6)
            off[name].append(abs(float(f @ wave / (wave @ wave)) - 6) / 6)
    for k, attack in enumerate(("membership, loss", "membership, against references")):
        rows.append(
            table_row("sinusoid", attack, *([s[k] for s in scores[name]] for name in ("weights", "answers")), "AUC")
        )
    rows.append(table_row("sinusoid", "function: rms error in amplitudes", wrong["weights"], wrong["answers"], "share"))
    rows.append(table_row("sinusoid", "amplitude: relative error", off["weights"], off["answers"], "share"))
    return rows


def digits(seeds: list[int], samples: int) -> list[dict[str, Any]]:
    """The agent of digits 0, 1, 2 of each seed."""
    study = load_study("mnist", seeds=seeds)
    model, group = study.build_model(), jnp.arange(3)
    agents = mnist.agents(mnist.load(), [(0, 1, 2)], samples=samples, validation=100, seed=seeds)
    own = fj.train_locally(model, agents, seed=seeds, **study.local.model_dump()).models[:, 0]
    data = jax.tree.map(lambda a: a[:, 0], agents.data)
    asked, codec = read_questions("strokes:28x28", 100), Uniform(4)
    stand_in = fj.mlp([784, 32, 3])
    pairs = []
    for i, seed in enumerate(seeds):
        x = asked.draw(key_for(seed, "questions"), (784,))
        train = jax.tree.map(lambda a, i=i: a[i], data.train)
        told = codec.apply(clipped(own_classes(model.apply(own[i], x), train, 3)).reshape(-1), jax.random.key(0))[0]
        pairs.append((np.asarray(x), np.asarray(told).reshape(100, 3)))
    learned = fj.train_locally(
        stand_in, fj.make_agents(pairs), seed=0, optimiser="adam", learning_rate=1e-3, batch=None, max_steps=1500
    ).models

    def by_weights(vector: Any, x: Any) -> Any:
        return model.apply(vector, x)[..., group]

    name = f"mnist, {samples} samples"
    seen = {"weights": (by_weights, own), "answers": (stand_in.apply, learned)}
    scores: dict[str, list[tuple[float, float]]] = {}
    alike: dict[str, list[float]] = {}
    for way, (function, vectors) in seen.items():

        def loss(vector: Any, x: Any, y: Any, function: Any = function) -> Any:
            logits = jax.nn.log_softmax(function(vector, x))
            return -jnp.take_along_axis(logits, y[:, None], 1)[:, 0]

        every = jax.jit(jax.vmap(loss, (0, None, None)))
        scores[way], alike[way] = [], []
        for i in range(len(seeds)):
            order = jnp.asarray([i, *(j for j in range(len(seeds)) if j != i)])
            pair = [np.asarray(every(vectors[order], s.x[i], s.y[i])) for s in (data.train, data.validation)]
            scores[way].append(membership(pair))
            alike[way].append(likeness(function, vectors[i], data.train.x[i], data.train.y[i]))
    rows = [
        table_row(name, attack, *([s[k] for s in scores[way]] for way in ("weights", "answers")), "AUC")
        for k, attack in enumerate(("membership, loss", "membership, against references"))
    ]
    rows.append(table_row(name, "mean image of a class: correlation", alike["weights"], alike["answers"], "share"))
    return rows


def likeness(function: Any, vector: Any, x: Any, y: Any) -> float:
    """The mean correlation of the three classes' favourite inputs with the mean images, each without what all share."""

    def score(image: Any, label: Any) -> Any:
        return jax.nn.log_softmax(function(vector, image[None]))[0, label] - 0.01 * (image**2).sum()

    def climb(label: Any) -> Any:
        def step(image: Any, _: None) -> tuple[Any, None]:
            return jnp.clip(image + ASCENT_RATE * jax.grad(score)(image, label), 0, 1), None

        return jax.lax.scan(step, jnp.full(784, 0.1), None, length=ASCENT_STEPS)[0]

    found = np.asarray(jax.jit(jax.vmap(climb))(jnp.arange(3)))
    true = np.stack([np.asarray(x)[np.asarray(y) == label].mean(0) for label in range(3)])
    found, true = found - found.mean(0), true - true.mean(0)
    return float(np.mean([np.corrcoef(f, t)[0, 1] for f, t in zip(found, true, strict=True)]))


def table(rows: list[dict[str, Any]]) -> str:
    """The table of docs/answers-limits.md, in Markdown."""
    lines = ["| agent | attack | from the weights | from the answers |", "|---|---|---|---|"]
    for r in rows:
        cells = [f"{r[way]['mean']:.3f} [{r[way]['low']:.3f}, {r[way]['high']:.3f}]" for way in ("weights", "answers")]
        unit = "AUC [95 %]" if r["unit"] == "AUC" else "mean [least, most]"
        lines.append(f"| {r['study']} | {r['attack']}, {unit} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("docs/answers_privacy.json"))
    parser.add_argument("--draw", action="store_true", help="only draw from the numbers that are there")
    given = parser.parse_args()
    use_compile_cache()
    if given.draw:
        rows = json.loads(given.out.read_text("utf-8"))
    else:
        seeds = list(range(FIRST_SEED, FIRST_SEED + given.seeds))
        rows = sinusoid(seeds)
        for samples in SAMPLES:
            rows += digits(seeds, samples)
        write_atomically(given.out, (json.dumps(rows, indent=1) + "\n").encode(), force=True)
    put(table(rows), MARKS, given.out.parent / "answers-limits.md")


if __name__ == "__main__":
    main()
