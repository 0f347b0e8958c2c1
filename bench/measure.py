"""The one file of numbers: docs/numbers.json, and what README and docs say and show of it.

    python bench/measure.py                    measure everything (hours on one core), write numbers, words and pictures
    python bench/measure.py studies lean       only these parts: studies, lean, lean_parts, ...
    python bench/measure.py --only sinusoid    only this study of each part
    python bench/measure.py --draw             measure nothing; words and pictures from the numbers that are there

A part is measured by its own script in bench/ and kept by study. Words and tables stand in the pages between
`<!-- numbers: NAME -->` and `<!-- end -->`; tests/bench/test_measure.py holds the pages to the file. The part `answers`
has a file and a page of its own, docs/answers.json, by `bench/answers.py`.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that it can be run from anywhere

from bench import best_case, frontier, hero, lean, lean_parts
from bench.frontier import Point
from fewjoule.files import use_compile_cache, write_atomically
from fewjoule.reporting.run_folder import Summary
from fewjoule.studies.run import run_into
from fewjoule.studies.settings import load_study

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs/numbers.json"
PAGES = ("README.md", "docs/index.md", "docs/lean.md", "docs/reproduction.md", "docs/choosing-a-method.md")
STUDIES = ("sinusoid", "mnist")
SEEDS = 10
Numbers = dict[str, Any]


def studies(name: str, *, data_dir: str | None = None) -> Numbers:
    """A shipped study over ten seeds: of every method what the tables of docs/reproduction.md show."""
    study = load_study(name, seeds=list(range(SEEDS)), full=name == "sinusoid", data_dir=data_dir)
    with tempfile.TemporaryDirectory() as folder:
        place = run_into(study, Path(folder) / "run", lambda line: print(line, flush=True))
        summary = Summary.model_validate_json((place / "summary.json").read_text("utf-8"))
    rows = {}
    for key, method in summary.methods.items():
        quality = {str(steps): summary.numbers(key, steps) for steps in summary.steps}
        joules = {phase: sum(kind.joules for kind in kinds.values()) for phase, kinds in method.energy.items()}
        rows[key] = {
            "label": method.label, "rounds": method.rounds, "ceiling": method.ceiling,
            "quality": {k: None if q is None else getattr(q, summary.statistic) for k, q in quality.items()},
            "bounds": {k: None if q is None else [q.low, q.high] for k, q in quality.items()},
            "share_best": method.share_best, "share_best_in_paper": method.share_best_in_paper, "joules": joules,
            "uplink_bits": 32 * method.uplink_values / len(summary.agents), "diverged": len(method.diverged),
        }  # fmt: skip
    return {
        "seeds": summary.seeds, "tasks": summary.tasks, "metric": f"{summary.statistic} {summary.metric}",
        "headline": summary.headline_steps, "data": summary.data, "rows": rows,
    }  # fmt: skip


PARTS: dict[str, Callable[..., Numbers]] = {
    "studies": studies,
    "lean": lean.measure,
    "lean_parts": lean_parts.measure,
    "frontier": frontier.measure,
    "best_case": best_case.measure,
}


def words(numbers: Numbers) -> dict[str, str]:
    """The text of every block, by name, from the numbers that are there; most show both studies side by side."""
    both = {part for part, found in numbers.items() if set(found) == set(STUDIES)}
    out = {}
    if "frontier" in both:
        found = numbers["frontier"]
        out |= {"readme": _readme(found), "settings": _settings_table(found), "controls": _controls_table(found)}
    if "lean" in both:
        out["lean"] = _lean_table(numbers["lean"])
    if "lean_parts" in both:
        out["lean parts"] = lean_parts.table(numbers["lean_parts"])
    for name, table in numbers.get("studies", {}).items():
        out[name] = _study_table(table)
    if "best_case" in numbers:
        out["best case"] = _best_case_table(numbers["best_case"])
    return out


def filled(page: str, blocks: dict[str, str]) -> str:
    """The page with its blocks anew."""

    def block(found: re.Match[str]) -> str:
        opening, name = found.group(1), found.group(2)
        return f"{opening}\n{blocks[name]}\n<!-- end -->" if name in blocks else found.group(0)

    return re.sub(r"(<!-- numbers: ([\w ]+) -->)\n.*?<!-- end -->", block, page, flags=re.DOTALL)


def draw(numbers: Numbers) -> None:
    """The pictures and the blocks of all pages."""
    if set(numbers.get("frontier", ())) == set(STUDIES):
        write_atomically(ROOT / "docs/quality.svg", picture(numbers["frontier"]), force=True)
        for theme in hero.THEMES:
            drawn = hero.picture(_points(numbers["frontier"]["sinusoid"]), theme)
            write_atomically(ROOT / f"docs/hero-{theme}.svg", drawn, force=True)
    blocks = words(numbers)
    for page in PAGES:
        text = (ROOT / page).read_text("utf-8")
        write_atomically(ROOT / page, filled(text, blocks).encode(), force=True)


def picture(found: Numbers) -> bytes:
    """docs/quality.svg"""
    points: list[Point] = []
    best: set[int] = set()
    for name in found:
        mine = _points(found[name])
        front = frontier.pareto(mine, name == "sinusoid")
        best |= {len(points) + i for i, p in enumerate(mine) if p in front}
        points += mine
    ceilings = {name: table["ceiling"]["reported"] for name, table in found.items()}
    return frontier.picture(points, best, {name: load_study(name) for name in found}, ceilings)[0]


def _points(table: Numbers) -> list[Point]:
    return [Point(**row) for row in table["points"]]


def _of(table: Numbers, method: str, setting: str = "") -> Point:
    return next(p for p in _points(table) if p.method == method and p.setting.startswith(setting))


def _readme(found: Numbers) -> str:
    """What was found, in four lines."""
    sinusoid, mnist = found["sinusoid"], found["mnist"]
    paper, average = next(p for p in _points(sinusoid) if p.paper), _of(sinusoid, "average")
    digits = next(p for p in _points(mnist) if p.paper)

    def loss(p: Point) -> str:
        return f"{p.reported / paper.reported:.2f} of"

    def accuracy(p: Point) -> str:
        gain = p.reported - digits.reported
        return f"{abs(gain):.3f} {'more' if gain >= 0 else 'less'}"

    def less(of: Point, p: Point) -> str:
        return f"{of.joules / p.joules:,.0f} times less"

    match, better, asked = (
        _of(sinusoid, "lean", "target match"),
        _of(sinusoid, "lean", "target better"),
        _of(sinusoid, "answers"),
    )
    close, closer, said = _of(mnist, "lean", "target match"), _of(mnist, "lean", "target better"), _of(mnist, "answers")
    lines = (
        "- **A plain average is as good as the paper's method.** On its sinusoids the average of the agents' own "
        f"models, which takes one upload, has a median loss of {average.reported:.2f}; Meta-Backward has "
        f"{paper.reported:.2f} and spends {paper.joules / average.joules:.0f} times the energy.",
        f"- **Few rounds and few bits do better.** `lean` has {loss(match)} Meta-Backward's loss at "
        f"{less(paper, match)} energy and {loss(better)} it at {less(paper, better)}.",
        "- **Answers beat weights.** Agents that send 20 answers of their models instead of the weights reach "
        f"{loss(asked)} Meta-Backward's loss at {less(paper, asked)} energy. The server does the rest on mains power, "
        f"which is counted separately. A control that hears from no agent, with tasks that the server makes up, has "
        f"{loss(_of(sinusoid, 'invented'))} Meta-Backward's loss.",
        f"- On MNIST `lean` has {accuracy(close)} accuracy at {less(digits, close)} energy and {accuracy(closer)} at "
        f"{less(digits, closer)}; `answers` has {accuracy(said)} at {less(digits, said)}.",
    )
    return "\n".join(textwrap.fill(line, 130, subsequent_indent="  ", break_on_hyphens=False) for line in lines)


SHOWN = {  # of the frontier, in the table of docs/choosing-a-method.md: method and how its settings begin
    "`answers`": ("answers", ""), "`invented` (control)": ("invented", ""), "`average`": ("average", ""),
    "`average`, `quantise:3`": ("average", "codec quantise:3"), "`fisher`": ("fisher", ""),
    "`lean`": ("lean", "target match"), "`lean`, `target=\"better\"`": ("lean", "target better"),
    "`lean`, `target=\"best\"`": ("lean", "target best"),
    "`fedavg`, 4 rounds": ("fedavg", "rounds 4"), "`fedavg`, 9 rounds": ("fedavg", "rounds 9"),
    "`fedavg`, 19 rounds": ("fedavg", "rounds 19"), "`fedavgm`, 9 rounds": ("fedavgm", "rounds 9"),
    "`fedexp`, 4 rounds": ("fedexp", "rounds 4"), "`fedsgd`, 50 rounds": ("fedsgd", ""),
    "`meta_backward`, 50 rounds": ("meta_backward", ""),
    "`meta_backward`, 5 rounds, `top-k:0.1:2`": ("meta_backward", "rounds 5, codec top-k:0.1:2"),
    "`imaml`, 50 rounds x 50": ("imaml", ""), "`maml`, 500 rounds": ("maml", ""),
}  # fmt: skip


def _settings_table(found: Numbers) -> str:
    lines = [
        "| method | sinusoid: loss | bits per weight | joules | MNIST: accuracy | bits per weight | joules |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, where in SHOWN.items():
        cells = []
        for name, form in (("sinusoid", ".3g"), ("mnist", ".3f")):
            p = _of(found[name], *where)
            cells += [f"{p.reported:{form}}", _short(p.uplink_bits_per_weight), _short(p.joules)]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines)


CONTROLS = {  # rows of docs/reproduction.md beside the paper's method: method and how its settings begin
    "Meta-Backward, the paper's": ("meta_backward", ""), "Average of the local models": ("average", ""),
    "FedSGD": ("fedsgd", ""), "lean, match": ("lean", "target match"), "lean, better": ("lean", "target better"),
    "lean, best": ("lean", "target best"), "answers": ("answers", ""),
    "invented tasks (sinusoid), random networks (MNIST): nothing is sent": ("invented", ""),
}  # fmt: skip


def _controls_table(found: Numbers) -> str:
    lines = [
        "| method | sinusoid: median loss [95 %] | agent's joules | MNIST: mean accuracy [95 %] | agent's joules |",
        "|---|---|---|---|---|",
    ]
    forms = {"sinusoid": ".3g", "mnist": ".3f"}
    for label, where in CONTROLS.items():
        cells = []
        for name, form in forms.items():
            p = _of(found[name], *where)
            cells += [_bounded({"quality": p.reported, "low": p.low, "high": p.high}, form), _short(p.joules)]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    top = [_bounded({**(c := found[n]["ceiling"]), "quality": c["reported"]}, form) for n, form in forms.items()]
    return "\n".join(
        [*lines, f"| ceiling: trained on true new tasks | {top[0]} | nobody has it | {top[1]} | nobody has it |"]
    )


def _short(value: float) -> str:
    """Three digits, or all before the point: 0.0345, 97.9, 14 591."""
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _bounded(row: Numbers, form: str) -> str:
    return f"{row['quality']:{form}} [{row['low']:{form}}, {row['high']:{form}}]"


def _lean_table(found: Numbers) -> str:
    sinusoid, mnist = (found[name]["rows"] for name in STUDIES)
    lines = [
        "| | sinusoid, median loss | uplink, times less | MNIST, mean accuracy | uplink, times less |",
        "|---|---|---|---|---|",
    ]
    labels = {"meta_backward": "Meta-Backward, 50 rounds", "fedsgd": "FedSGD, 50 rounds"}
    for key in sinusoid:
        cells = []
        for rows in (sinusoid, mnist):
            times = rows["meta_backward"]["uplink_joules"] / rows[key]["uplink_joules"]
            cells += [_bounded(rows[key], ".3f"), f"{times:.0f}"]
        lines.append(f"| {labels.get(key, key)} | {' | '.join(cells)} |")
    lines += [
        "",
        "| paired, seed by seed | sinusoid, ratio of losses | MNIST, difference of accuracies |",
        "|---|---|---|",
    ]
    for row, other in zip(*(found[name]["against"] for name in STUDIES), strict=True):
        both = " | ".join(f"{r['mean']:.3f} [{r['low']:.3f}, {r['high']:.3f}]" for r in (row, other))
        lines.append(f"| {row['of']} against {labels.get(row['to'], row['to'])} | {both} |")
    return "\n".join(lines).replace("-0.", "−0.")


def _study_table(table: Numbers) -> str:
    """A row per method, the best first; those that diverged on every seed last."""
    lower, head = "loss" in table["metric"], str(table["headline"])
    steps = [k for k in ("1", head, "50") if k in next(iter(table["rows"].values()))["quality"]]
    after = " | ".join("1 step" if k == "1" else f"{k} steps" for k in steps)
    lines = [
        f"| method | rounds | {after} | best of all | best of the "
        "paper's | bits sent by an agent | uplink J | arithmetic J | server's J | diverged |",
        "|---" * (len(steps) + 9) + "|",
    ]

    def rank(row: Numbers) -> float:
        value = row["quality"][head]
        return float("inf") if value is None else value if lower else -value

    digits = ".3g" if lower else ".3f"
    for row in sorted(table["rows"].values(), key=rank):
        quality = []
        for k in steps:
            value, bounds = row["quality"][k], row["bounds"][k] or [None, None]
            text = "–" if value is None else f"{value:{digits}}"
            quality.append(text + (f" [{bounds[0]:{digits}}, {bounds[1]:{digits}}]" if k == head and bounds[0] else ""))
        shares = [row["share_best"], row["share_best_in_paper"]]
        shares_said = ["" if s is None or row["ceiling"] else f"{100 * s:.1f} %" for s in shares]
        bits = "nobody has it" if row["ceiling"] else _short(row["uplink_bits"])
        spent = ["" if row["ceiling"] else _short(row["joules"].get(p, 0)) for p in ("uplink", "computation")]
        served = _short(row["joules"]["server"]) if row["joules"].get("server") else ""
        gone = f"{row['diverged']} of {len(table['seeds'])}" if row["diverged"] else "0"
        cells = [row["label"], str(row["rounds"]), *quality, *shares_said, bits, *spent, served, gone]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _best_case_table(found: Numbers) -> str:
    lines = [
        "| study | local models: steps, loss | method, its best setting | chosen on | reported [95 %] |",
        "|---|---|---|---|---|",
    ]
    for name, table in found.items():
        form = ".3g" if name == "sinusoid" else ".3f"
        for row in table["best"]:
            chosen = f"rounds {row['rounds']}, learning rate {row['learning_rate']}, radius {row['radius']}"
            setting = f"Meta-Backward: {chosen}" if row["method"] == "meta_backward" else row["method"]
            reported = f"{row['reported']:{form}} [{row['low']:{form}}, {row['high']:{form}}]"
            trained = f"{row['training_steps']}, {row['local_loss']:.2g}"
            lines.append(f"| {name} | {trained} | {setting} | {row['chosen']:{form}} | {reported} |")
    lines.append("")
    for name, table in found.items():
        for steps in dict.fromkeys(row["training_steps"] for row in table["best"]):
            best = {row["method"]: row["reported"] for row in table["best"] if row["training_steps"] == steps}
            tried = [r for r in table["rows"] if r["training_steps"] == steps and r["method"] == "meta_backward"]
            lost = sum(r["diverged"] > 0 for r in tried)
            if name == "sinusoid":
                mine, other = (f"{best[m] / best['average']:.2f}" for m in ("meta_backward", "fedavg"))
                what = f"Meta-Backward at its best has {mine} of the average's loss, FedAvg 5 x 100 {other}"
            else:
                mine, other = (
                    f"{best[m] - best['average']:+.3f}".replace("-", "−") for m in ("meta_backward", "fedavg")
                )
                what = f"Meta-Backward at its best is at {mine} from the average's accuracy, FedAvg 5 x 100 at {other}"
            lines.append(
                f"- {name}, local models of {steps} steps: {what}; {lost} of {len(tried)} settings diverged somewhere."
            )
    return "\n".join(lines)


def load() -> Numbers:
    return json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}


def _save(numbers: Numbers) -> None:
    """With six significant digits: more would change with every machine."""
    rounded = json.loads(json.dumps(numbers), parse_float=lambda text: float(f"{float(text):.6g}"))
    write_atomically(FILE, (json.dumps(rounded, indent=1) + "\n").encode(), force=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join([*PARTS, "answers"]))
    parser.add_argument("--only", choices=STUDIES)
    parser.add_argument("--draw", action="store_true", help="measure nothing")
    asked = parser.parse_args()
    for part in asked.parts:
        if part not in (*PARTS, "answers"):
            parser.error(f"unknown part {part!r}; choose from {', '.join([*PARTS, 'answers'])}")
    use_compile_cache()
    wanted = [] if asked.draw else asked.parts or [*PARTS, "answers"]
    for part in wanted:
        if part == "answers":
            subprocess.run([sys.executable, str(ROOT / "bench/answers.py")], cwd=ROOT, check=True)
            continue
        for name in [asked.only] if asked.only else STUDIES:
            found = PARTS[part](name)
            numbers = load()
            numbers[part] = {**numbers.get(part, {}), name: found}
            _save(numbers)
    draw(load())


if __name__ == "__main__":
    main()
