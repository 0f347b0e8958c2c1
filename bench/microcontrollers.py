"""The exported C of both studies' models on Cortex-M4 and M7: results beside JAX's, flash, RAM, instructions, joules.

    python bench/microcontrollers.py [--out docs/microcontrollers.json]

Needs arm-none-eabi-gcc with newlib and qemu-system-arm (`bench/boards.py`). The numbers go to one JSON file; the tables
of docs/microcontrollers.md are made from it, alone with `--draw`. The model is the plain average of the study's agents
(seed 0), fine-tuned to the study's first new task with the study's settings. Instructions are counted, cycles on the
M4 are estimated from Arm's timings (`bench/cortex_m4_cycles.py`), and the M7 is taken to need one for an instruction.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from bench.boards import CHIPS, Samples, memory, run_on_chip, trace_of, write_samples
from bench.cortex_m4_cycles import mix_of
from fewjoule import adapt, method, train_locally
from fewjoule.energy import device
from fewjoule.files import use_compile_cache, write_atomically
from fewjoule.methods.answers import asked_of
from fewjoule.models.c_source import WEIGHTS, quantise_weights, write_c
from fewjoule.simulation.work import adaptation_flops
from fewjoule.studies.settings import Study, load_study

MARKS = ("<!-- made by bench/microcontrollers.py -->", "<!-- end -->")
QUERIES = 10
PROGRAMS = {"predict": (), "and fine_tune": ("FINE_TUNE",), "and answer": ("FINE_TUNE", "ANSWER")}


class Bench:
    """One study's model, task and settings."""

    def __init__(self, study: Study) -> None:
        self.study, self.model = study, study.build_model()
        agents, self.tasks, *_ = study.family.build(study.seeds, study.evaluation)  # type: ignore[union-attr]
        local = train_locally(self.model, agents, seed=study.seeds, **study.local.model_dump())
        self.vector = np.asarray(local.models[0].mean(0))
        (answers,) = (entry for entry in study.methods if entry.name == "answers")
        self.asked = asked_of(self.model, method("answers", **answers.settings), study.seeds[0])

    def samples(self, **changes: Any) -> Samples:
        support, e = self.tasks.support, self.study.evaluation
        allowed = None if support.allowed is None else support.allowed[0]
        count = int(support.mask[0].sum())
        query = self.tasks.query.x[0][:QUERIES]
        made = Samples(support.x[0][:count], support.y[0][:count], query, e.headline, e.learning_rate, allowed)
        return made._replace(**changes)

    def used(self, weights: str) -> Any:
        return jnp.asarray(quantise_weights(self.model, self.vector).vector if weights == "int8" else self.vector)

    def row(self, weights: str, folder: Path) -> dict[str, Any]:
        """Everything about the model with weights of this kind; `folder` is new."""
        e, samples = self.study.evaluation, self.samples()
        settings: Any = {"steps": [e.headline], "learning_rate": e.learning_rate, "keep_models": True}
        tuned = adapt(self.model, self.used(weights), self.tasks, **settings)
        metric = "loss" if self.model.loss_name == "mse" else "accuracy"
        statistic = {"median": np.median, "mean": np.mean}[e.statistic]
        after = tuned.models[0]  # type: ignore[index]
        wanted = {"weights": after, "after": self.model.apply(after, samples.query)}
        write_c(folder, self.model, self.vector, weights=weights, asked=self.asked)
        row: dict[str, Any] = {
            "quality": float(statistic(getattr(tuned, metric)[..., 0])),
            "metric": metric,
            "chips": {},
        }
        for chip in CHIPS:
            got, costs = self.on_chip(folder, chip, samples)
            apart = max(float(np.abs(got[name] - np.ravel(wanted[name])).max()) for name in wanted)
            row["chips"][chip] = {"apart": apart, **costs}
        row["programs"] = {name: memory(folder, "cortex-m7", *uses)._asdict() for name, uses in PROGRAMS.items()}
        return row

    def on_chip(self, folder: Path, chip: str, samples: Samples) -> tuple[dict[str, Any], dict[str, Any]]:
        """What measure.c gave, and the cost of it beside the ledger's model of the same fine-tuning."""
        write_samples(folder, samples)
        got, processor = run_on_chip(folder, chip), device(chip)
        flops = adaptation_flops(self.model, self.tasks, samples.steps, samples.learning_rate)
        cycles = got["instructions_fine_tune"] * self.cycles_per_instruction(folder, chip, samples)
        assert processor.clock_hz is not None
        costs = {
            "predict": got["instructions_predict"] / QUERIES,
            "fine_tune": got["instructions_fine_tune"],
            "answer": got.get("instructions_answer"),
            "cycles": cycles,
            "seconds": cycles / processor.clock_hz,
            "joules": cycles / processor.clock_hz * processor.watts,
            "flops": flops,
            "ledger_joules": processor.energy_joules(flops),
        }
        print(f"{self.model.spec} {folder.name} {chip}: {costs}", flush=True)
        return got, costs

    def cycles_per_instruction(self, folder: Path, chip: str, samples: Samples) -> float:
        """On the M4, of one step on five samples and their predictions; 1 on the M7, for want of published timings."""
        if chip != "cortex-m4":
            return 1.0
        short = folder.with_name(f"{folder.name}-short")
        write_c(short, self.model, self.vector)
        write_samples(short, samples._replace(x=samples.x[:5], y=samples.y[:5], query=samples.query[:1], steps=1))
        mix = mix_of(trace_of(short, chip))
        return mix.cycles / mix.instructions

    def control(self, folder: Path) -> dict[str, Any]:
        """The same fine-tuning on inputs of which none is 0, so that the C can leave nothing out there."""
        samples = self.samples()
        noise = np.random.default_rng(0).uniform(0.1, 1, np.shape(samples.x)).astype(np.float32)
        write_c(folder, self.model, self.vector)
        return {chip: self.on_chip(folder, chip, samples._replace(x=noise))[1] for chip in CHIPS}


def measured(name: str, folder: Path) -> dict[str, Any]:
    """The rows of one study."""
    bench = Bench(load_study(name, seeds=[0], full=True))
    zeros = float((np.asarray(bench.samples().x) == 0).mean())
    return {
        "model": bench.model.spec,
        "samples": len(bench.samples().x),
        "zeros": zeros,
        "rows": {weights: bench.row(weights, folder / f"{name}-{weights}") for weights in WEIGHTS},
        "control": bench.control(folder / f"{name}-control") if zeros else {},
    }


def tables(numbers: dict[str, Any]) -> str:
    """The tables of docs/microcontrollers.md."""
    fits = _header("model", "weights", *(f"{kind}: {name}" for kind in ("flash", "RAM") for name in PROGRAMS), "stack")
    runs = _header("model", "weights", "after 10 steps", "chip", "apart from JAX", "predict", "fine_tune", "answer")
    costs = _header(
        "model", "inputs", "chip", "FLOPs", "instructions", "cycles", "seconds", "joules", "ledger's joules", "ratio"
    )
    for study in numbers.values():
        for weights, row in study["rows"].items():
            used = row["programs"].values()
            sizes = [f"{program[kind]:,}" for kind in ("flash", "ram") for program in used]
            fits.append(_line(study["model"], weights, *sizes, max(program["stack"] for program in used)))
            for chip, c in row["chips"].items():
                counts = (f"{c[call]:,.0f}" for call in ("predict", "fine_tune", "answer"))
                quality = f"{row['metric']} {row['quality']:.3f}"
                runs.append(_line(study["model"], weights, quality, chip, f"{c['apart']:.0e}", *counts))
        for what, chips in (
            (f"{study['zeros']:.0%} are 0" if study["zeros"] else "none is 0", study["rows"]["float32"]["chips"]),
            ("none is 0", study["control"]),
        ):
            for chip, c in chips.items():
                counts = (f"{c[name]:,.0f}" for name in ("flops", "fine_tune", "cycles"))
                joules = (f"{c['seconds']:.3f}", f"{c['joules']:.4f}", f"{c['ledger_joules']:.4f}")
                ratio = f"{c['ledger_joules'] / c['joules']:.2f}"
                costs.append(_line(study["model"], what, chip, *counts, *joules, ratio))
    return "\n\n".join(
        "\n".join([title, "", *lines])
        for title, lines in (
            ("**Bytes of the least program** on a Cortex-M7, start-up code and all:", fits),
            ("**Instructions of one call**, and the largest difference of any weight or output from JAX's:", runs),
            ("**Fine-tuning compared with the model in the ledger:**", costs),
        )
    )


def _header(*names: str) -> list[str]:
    return [_line(*names), "|" + "---|" * len(names)]


def _line(*cells: Any) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def draw(numbers: dict[str, Any], page: Path) -> None:
    before, rest = page.read_text("utf-8").split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    page.write_text(f"{before}{MARKS[0]}\n{tables(numbers)}\n{MARKS[1]}{after}", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "microcontrollers.json")
    parser.add_argument("--draw", action="store_true", help="make the tables from the file alone")
    arguments = parser.parse_args()
    if not arguments.draw:
        use_compile_cache()
        with tempfile.TemporaryDirectory() as folder:
            numbers = {name: measured(name, Path(folder)) for name in ("sinusoid", "mnist")}
        write_atomically(arguments.out, (json.dumps(numbers, indent=1) + "\n").encode(), force=True)
    draw(json.loads(arguments.out.read_text("utf-8")), arguments.out.with_suffix(".md"))


if __name__ == "__main__":
    main()
