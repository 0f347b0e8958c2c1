"""What stands between our accuracy on Omniglot 1200/423 and the published one: docs/omniglot_distance.json.

    python bench/omniglot_distance.py --data-dir DATA [--methods protonet maml]

Two experiments with the study's settings, one seed. Both judge the tasks of the table in docs/benchmarks.md.

    fewer rounds    an eighth of the study's, with a learning rate that falls to 0 at its end:
                    the error against the number of episodes, and the episodes that this slope asks for
    mixed           half of the rounds, with the training characters dealt out at random between the agents: an agent's
                    episode then has characters of any alphabets, as in published results
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import fewjoule as fj
from fewjoule.files import use_compile_cache, write_atomically
from fewjoule.simulation.simulate import present_of
from fewjoule.studies.settings import MethodEntry, Study, load_study
from fewjoule.tasks import omniglot
from fewjoule.tasks.samples import Agents
from fewjoule.training.adapt import adapt
from fewjoule.training.mesh import use_all_cores

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, this file's folder is there instead
from bench.answers import put
from bench.benchmarks import PAGE, new_tasks, read_numbers
from bench.federations import CHARACTERS, FEDERATIONS, OMNIGLOT

NUMBERS = Path("docs/omniglot_distance.json")
MARKS = ("<!-- made by bench/omniglot_distance.py -->", "<!-- end of omniglot_distance -->")
PARTS = (8,)
JUDGED = CHARACTERS[:2]  # five ways
PAPERS = {key: (source, values[:2]) for (_, key, source), values in OMNIGLOT.items()}


def reached(study: Study, entry: MethodEntry, agents: Agents, part: int) -> dict[str, Any]:
    """Episodes and accuracy in per cent with this part of the study's rounds."""
    table = entry.model_dump(exclude_unset=True)
    settings = dict(entry.settings)
    settings["rounds"] = settings["rounds"] // part
    method = MethodEntry.model_validate({**table, **settings}).build()
    model, e = study.build_model(), study.evaluation
    run = fj.simulate(method, model, agents, seed=0, participation=entry.participation)
    found = {}
    for judged in JUDGED:
        by: dict[str, Any] = {"learning_rate": e.learning_rate, "optimiser": e.optimiser, "tuning": method.tuning}
        tasks = new_tasks(study, judged)
        found[judged.key] = 100 * float(
            adapt(model, jnp.asarray(run.meta), tasks, steps=[e.headline], **by).accuracy.mean()
        )
    episodes = settings["rounds"] * present_of(len(agents), entry.participation)
    print(f"{entry.name}: {episodes} episodes, {found}", flush=True)
    return {"episodes": episodes, "per_cent": found}


def mixed(study: Study) -> Agents:
    """The agents with the training characters dealt out between them, everybody as many as before."""
    family: Any = study.family
    data = omniglot.load(family.folder)
    kept = omniglot.kept_characters(data, family.split, family.folder)
    rows, drawings = np.flatnonzero(~kept), data.drawings.copy()
    drawings[rows] = data.drawings[np.random.default_rng(0).permutation(rows)]
    return omniglot.agents(
        data._replace(drawings=drawings), kept, family.outputs, rotations=family.rotations, drawers=family.drawers
    )


def needed(points: list[dict[str, Any]], key: str, per_cent: float) -> tuple[float, float]:
    """What a doubling of the episodes leaves of the error, and the episodes after which it would be the published."""
    episodes = np.log([point["episodes"] for point in points])
    errors = np.log([100 - point["per_cent"][key] for point in points])
    slope, at_one = np.polyfit(episodes, errors, 1)
    return float(2**slope), float(np.exp((np.log(100 - per_cent) - at_one) / slope)) if slope < 0 else float("inf")


def table(numbers: dict[str, Any]) -> str:
    """What stands on the page."""
    lines = [
        "| method | characters of an episode | episodes | 5-way 1 shot | 5-way 5 shots |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, of in numbers.items():
        rows = [("one alphabet", p) for p in of["points"]]
        rows += [("any alphabets", of["mixed"])] if "mixed" in of else []
        for which, p in rows:
            shown = " | ".join(f"{p['per_cent'][j.key]:.1f}" for j in JUDGED)
            lines.append(f"| {name} | {which} | {p['episodes']:,} | {shown} |")
    lines.append("")
    for name, of in numbers.items():
        source, published = PAPERS[name]
        for judged, per_cent in zip(JUDGED, published, strict=True):
            left, episodes = needed(of["points"], judged.key, per_cent)
            what = f"{name}, {judged.key} shot{'s' * (judged.shots > 1)}"
            lines.append(
                f"- {what}: twice the episodes leave {100 * left:.0f} % of the error. At this slope {per_cent:g} % "
                f"({source}) takes about {float(f'{episodes:.1e}'):,.0f} episodes; we have "
                f"{of['points'][-1]['episodes']:,}."
            )
    return "\n".join(lines) + "\n"


def whole(name: str, study: Study, entry: MethodEntry, agents: Agents) -> dict[str, Any]:
    """The table's row, with all rounds; run here where the table has none."""
    row = read_numbers().get("omniglot-1200", {}).get("methods", {}).get(name)
    if row is None or row["rounds"] != entry.settings["rounds"]:
        return reached(study, entry, agents, 1)
    per_cent = {judged.key: 100 * row["new_devices"][judged.key]["mean"] for judged in JUDGED}
    episodes = row["rounds"] * present_of(len(agents), entry.participation)
    return {"episodes": episodes, "per_cent": per_cent}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="folder of the data sets; without it only the table is drawn anew")
    parser.add_argument("--methods", nargs="+", default=list(PAPERS)[:2], choices=list(PAPERS))
    parser.add_argument("--no-mixed", action="store_true", help="without the second experiment")
    asked = parser.parse_args()
    numbers = json.loads(NUMBERS.read_text("utf-8")) if NUMBERS.exists() else {}
    if asked.data_dir is None:
        put(table(numbers), MARKS, PAGE)
        sys.exit()
    use_all_cores()
    use_compile_cache()
    federation = FEDERATIONS["omniglot-1200"]
    study = load_study("omniglot", settings=federation.settings, seeds=[0], data_dir=asked.data_dir)
    agents = study.family.build([0], study.evaluation).agents  # type: ignore[union-attr]
    entries = {entry.name: entry for entry in study.methods}
    for name in asked.methods:
        points = [reached(study, entries[name], agents, part) for part in PARTS]
        points += [whole(name, study, entries[name], agents)]
        by_episodes = {p["episodes"]: p for p in [*numbers.get(name, {}).get("points", []), *points]}  # older ones stay
        numbers[name] = {"points": [by_episodes[count] for count in sorted(by_episodes)]}
        if not asked.no_mixed:
            numbers[name]["mixed"] = reached(study, entries[name], mixed(study), 2)
        write_atomically(NUMBERS, (json.dumps(numbers, indent=1) + "\n").encode(), force=True)
        put(table(numbers), MARKS, PAGE)
