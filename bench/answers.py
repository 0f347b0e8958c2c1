"""The claims of answers on the paper's two studies, on seeds that took no part in making it.

    python bench/answers.py [sinusoid] [mnist] [--seeds 10] [--first 4000] [--out docs/answers.json]

Every row is a method on the same agents, local models and new tasks. Intervals are at 95 % over seeds (Student, of the
logarithm for a loss); comparisons are paired, seed by seed. The numbers go to one JSON file; the tables of
docs/answers.md and its picture are made from it, alone with `--draw`. The ceiling is meta-trained on tasks of
the new tasks' own family, which nobody can have.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fewjoule import OwnModel, adapt, method, mlp, simulate, train_locally
from fewjoule.files import use_compile_cache, write_atomically
from fewjoule.simulation.work import server_flops
from fewjoule.studies.settings import Study, load_study
from fewjoule.studies.summary import interval

FIRST_SEED = 4000  # tuning used 100 to 109, the studies 0 to 4, earlier versions 2000 to 3009
RATES = (0.003, 0.01, 0.03)  # of Adam, of which every agent with an architecture of its own takes the best
ARCHITECTURES = ([1, 40, 40, 1], [1, 64, 1], [1, 20, 20, 20, 1])
LOCAL = ("meta_backward", "average", "fedsgd")
MARKS = ("<!-- made by bench/answers.py -->", "<!-- end -->")
NAMED = {
    "sinusoid": ("ceiling", "invented", "answers 10 x 4", "answers 20 x 6", "average", "meta_backward"),
    "mnist": (
        "ceiling",
        "invented",
        "answers 300 x 3 x 4",
        "answers 100 x 10 x 4",
        "average",
        "meta_backward",
        "fedsgd",
    ),
}
"""The points of the picture that have room for their names."""
ROWS: dict[str, dict[str, dict[str, Any]]] = {
    "sinusoid": {
        "answers 20 x 6": {"method": "answers", "questions": "range:-5:5"},
        "answers 20 x 6, at the questions alone": {"method": "answers", "questions": "range:-5:5", "between": None},
        "answers 40 x 6": {"method": "answers", "questions": "range:-5:5", "number": 40},
        "answers 20 x 4": {"method": "answers", "questions": "range:-5:5", "bits": 4},
        "answers 10 x 4": {"method": "answers", "questions": "range:-5:5", "number": 10, "bits": 4},
        "invented": {"method": "invented", "questions": "range:-5:5", "scale": 10.0},
    },
    "mnist": {
        "answers 100 x 10 x 4": {"method": "answers", "number": 100, "bits": 4},
        "answers 300 x 3 x 4": {"method": "answers", "number": 300, "bits": 4, "classes": 3},
        "answers 100 x 3 x 4": {"method": "answers", "number": 100, "bits": 4, "classes": 3},
        "answers 50 x 3 x 4": {"method": "answers", "number": 50, "bits": 4, "classes": 3},
        "invented": {"method": "invented", "number": 100},
    },
}


class Results:
    """Rows of one study: quality of every seed, bits per agent, what the server computed."""

    def __init__(self, study: Study) -> None:
        self.study, self.model = study, study.build_model()
        self.agents, self.tasks, self.data, _ = study.family.build(study.seeds, study.evaluation)  # type: ignore[union-attr]
        self.is_loss = self.model.loss_name == "mse"
        self.rows: dict[str, dict[str, Any]] = {}

    def add(self, label: str, chosen: Any, agents: Any, local: Any, ceiling: bool = False) -> None:
        e = self.study.evaluation
        run = simulate(chosen, self.model, agents, local, seed=self.study.seeds)
        result = adapt(self.model, run.meta, self.tasks, steps=[e.headline], learning_rate=e.learning_rate)
        values = np.asarray(result.loss if self.is_loss else result.accuracy, float)[..., 0]
        each = np.median(values, 1) if self.is_loss else values.mean(1)
        low, high = interval(each, ratio=self.is_loss)
        self.rows[label] = {
            "quality": float(np.median(values) if self.is_loss else values.mean()),
            "low": low,
            "high": high,
            "seeds": each.tolist(),
            "uplink_bits_per_agent": 0 if ceiling else int(run.uplink_bits.sum(1).max()),
            "server_flops": server_flops(chosen, self.model, len(agents)),
            "ceiling": ceiling,
        }
        print(f"{self.study.name}: {label:28} {self.rows[label]['quality']:.4f} [{low:.4f}, {high:.4f}]", flush=True)

    def against(self, label: str, rival: str) -> dict[str, Any]:
        """The paired ratio (loss) or difference (accuracy) to a rival, with its interval, and the worst seed's."""
        mine, other = (np.asarray(self.rows[name]["seeds"]) for name in (label, rival))
        paired = mine / other if self.is_loss else mine - other
        if self.is_loss:
            low, high = interval(paired, ratio=True)
            middle = float(np.exp(np.log(paired).mean()))
        else:
            half = interval((paired + 1) / 2)  # an interval of shares ends at 0 and 1
            low, high = (None if h is None else 2 * h - 1 for h in half)
            middle = float(paired.mean())
        worst = float(paired.max() if self.is_loss else paired.min())
        return {"of": label, "to": rival, "mean": middle, "low": low, "high": high, "worst_seed": worst}


def sinusoid(seeds: list[int]) -> dict[str, Any]:
    study = load_study("sinusoid", seeds=seeds, full=True)
    r = Results(study)
    local = train_locally(r.model, r.agents, seed=seeds, **study.local.model_dump())
    _shared_rows(r, local)
    chosen = _built(ROWS["sinusoid"]["answers 20 x 6"])
    for label, nets in (("equal", [ARCHITECTURES[0]] * 3), ("three", ARCHITECTURES)):
        r.add(f"answers 20 x 6, {label} architectures, own starts", chosen, r.agents, well_trained(r, nets))
    compared = [
        ("answers 20 x 6", "meta_backward"),
        ("answers 20 x 6", "ceiling"),
        ("answers 20 x 6", "invented"),
        ("answers 20 x 6", "answers 20 x 6, at the questions alone"),
        ("answers 20 x 6, three architectures, own starts", "answers 20 x 6, equal architectures, own starts"),
    ]
    return _table(r, compared)


def well_trained(r: Results, nets: Any) -> list[OwnModel]:
    """Agents that never met: each its own architecture and start, and of three learning rates of Adam the one with the
    lowest loss on its own held-out samples."""
    own = []
    for i, sizes in enumerate(nets):
        net, apart = mlp(sizes), [seed + 10_000 * (i + 1) for seed in r.study.seeds]
        agent = replace(r.agents.select([i]), seeds=tuple(apart))
        held = jax.tree.map(lambda a: a[:, 0], agent.data.validation)
        tries = jnp.stack([
            train_locally(net, agent, seed=apart, optimiser="adam", learning_rate=rate).models[:, 0] for rate in RATES
        ])  # fmt: skip
        losses = jax.vmap(jax.vmap(net.loss), (0, None))(tries, held)  # [rates, seeds]
        print(f"  {sizes}: held-out loss {np.asarray(losses.min(0)).round(4).tolist()}", flush=True)
        own.append(OwnModel(net, tries[losses.argmin(0), jnp.arange(len(apart))]))
    return own


def mnist(seeds: list[int]) -> dict[str, Any]:
    r = Results(load_study("mnist", seeds=seeds, full=True))
    local = train_locally(r.model, r.agents, seed=seeds, **r.study.local.model_dump())
    _shared_rows(r, local)
    compared = [
        (label, rival)
        for label in ("answers 300 x 3 x 4", "answers 100 x 3 x 4", "answers 50 x 3 x 4", "answers 100 x 10 x 4")
        for rival in ("meta_backward", "fedsgd", "invented")
    ]
    return _table(r, compared)


def _shared_rows(r: Results, local: Any) -> None:
    entries = {entry.name: entry for entry in r.study.methods}
    for name in LOCAL:
        r.add(name, entries[name].build(), r.agents, local)
    study_settings = entries["answers"].settings | {"method": "answers"}
    known = {k: v for k, v in study_settings.items() if k not in ("method", "number", "bits", "classes")}
    for label, row in ROWS[r.study.name].items():
        same = known if row["method"] == "answers" else entries["invented"].settings
        r.add(label, _built({**same, **row}), r.agents, local)
    ceiling = entries["ceiling"]
    longer = {"rounds": 2 * ceiling.settings["rounds"]}  # than the study has time for
    built = method(ceiling.method, **{**ceiling.settings, **longer})
    r.add("ceiling", built, r.study.true_agents(ceiling.ceiling), None, ceiling=True)


def _built(row: dict[str, Any]) -> Any:
    return method(row["method"], **{key: value for key, value in row.items() if key != "method"})


def _table(r: Results, compared: list[tuple[str, str]]) -> dict[str, Any]:
    against = [r.against(*pair) for pair in compared]
    for row in against:
        print(f"  {row['of']} to {row['to']}: {row['mean']:.4f} [{row['low']:.4f}, {row['high']:.4f}]", flush=True)
    e = r.study.evaluation
    return {
        "seeds": r.study.seeds,
        "tasks": e.tasks,
        "steps": e.headline,
        "metric": f"{e.statistic} {'loss' if r.is_loss else 'accuracy'}",
        "rows": r.rows,
        "against": against,
    }


def tables(done: dict[str, Any]) -> str:
    """The tables of docs/answers.md, in Markdown."""
    lines = []
    for name, table in done.items():
        most = table["rows"]["meta_backward"]["uplink_bits_per_agent"]
        lines += [
            f"**{name}**: {table['metric']} after {table['steps']} steps, {table['tasks']} new tasks, "
            f"{len(table['seeds'])} seeds ({table['seeds'][0]} to {table['seeds'][-1]}).",
            "",
            "| method | bits sent by one agent | times less | quality [95 %] | server GFLOP |",
            "|---|---|---|---|---|",
        ]
        better = 1 if "loss" in table["metric"] else -1
        for label, row in sorted(table["rows"].items(), key=lambda item: better * item[1]["quality"]):
            bits = row["uplink_bits_per_agent"]
            sent = ("nobody has it" if row["ceiling"] else f"{bits:,}", f"{most / bits:,.0f}" if bits else "–")
            quality = f"{row['quality']:.4f} [{row['low']:.4f}, {row['high']:.4f}]"
            lines.append(f"| {label} | {' | '.join(sent)} | {quality} | {row['server_flops'] / 1e9:.1f} |")
        lines += ["", "| paired, seed by seed | mean | 95 % | worst seed |", "|---|---|---|---|"]
        sign = "/" if "loss" in table["metric"] else "−"
        for row in table["against"]:
            numbers = f"{row['mean']:.3f} | {row['low']:.3f} to {row['high']:.3f} | {row['worst_seed']:.3f}"
            lines.append(f"| {row['of']} {sign} {row['to']} | {numbers} |")
        lines.append("")
    return "\n".join(lines)


def draw(done: dict[str, Any], docs: Path) -> None:
    """docs/answers.svg, and the tables of docs/answers.md between their two markers."""
    import altair as alt
    import vl_convert

    charts = []
    for name, table in done.items():
        points = [
            {
                "name": label if label in NAMED[name] else "",
                "bits": max(row["uplink_bits_per_agent"], 30),
                "family": _family(label),
            }
            | {key: row[key] for key in ("quality", "low", "high")}
            for label, row in table["rows"].items()
        ]
        scale = alt.Scale(type="log" if "loss" in table["metric"] else "linear", zero=False, nice=False, padding=10)
        base = alt.Chart(alt.InlineData(values=points)).encode(
            x=alt.X("bits:Q", scale=alt.Scale(type="log"), title="bits that one agent sends (left edge: none)"),
            y=alt.Y("quality:Q", scale=scale, title=f"{table['metric']} after {table['steps']} steps"),
            color=alt.Color("family:N", title=None),
        )
        bars = base.mark_rule().encode(y=alt.Y("low:Q", scale=scale), y2="high:Q")
        text = base.mark_text(align="left", dx=7, fontSize=10).encode(text="name:N")
        charts.append(
            (bars + base.mark_point(filled=True, size=60) + text).properties(width=520, height=300, title=name)
        )
    svg = vl_convert.vegalite_to_svg(alt.hconcat(*charts).to_dict())
    write_atomically(docs / "answers.svg", svg.encode(), force=True)
    put(tables(done), MARKS, docs / "answers.md")


def put(text: str, marks: tuple[str, str], page: Path) -> None:
    """Put a text between two markers of a page."""
    before, rest = page.read_text("utf-8").split(marks[0])
    whole = f"{before}{marks[0]}\n{text}{marks[1]}{rest.split(marks[1])[1]}"
    write_atomically(page, whole.encode(), force=True)


def _family(label: str) -> str:
    return "answers" if label.startswith("answers") else "control" if label in ("invented", "ceiling") else "weights"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="*", default=["sinusoid", "mnist"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=FIRST_SEED, help="seed; others than the page's are for tuning")
    parser.add_argument("--out", type=Path, default=Path("docs/answers.json"))
    parser.add_argument("--draw", action="store_true", help="only draw from the numbers that are there")
    given = parser.parse_args()
    use_compile_cache()
    done = json.loads(given.out.read_text("utf-8")) if given.out.exists() else {}
    for name in () if given.draw else given.studies:
        done[name] = {"sinusoid": sinusoid, "mnist": mnist}[name](list(range(given.first, given.first + given.seeds)))
        write_atomically(given.out, (json.dumps(done, indent=1) + "\n").encode(), force=True)
    if given.first == FIRST_SEED:
        draw(done, given.out.parent)
