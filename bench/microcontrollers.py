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
        agents, self.tasks, _ = study.family.build(study.seeds, study.evaluation)  # type: ignore[union-attr]
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
        e = self.study.evaluation
        tuned = adapt(
            self.model, self.used(weights), self.tasks, steps=[e.headline], learning_rate=e.learning_rate,
            keep_models=True,
        )  # fmt: skip
        metric = "loss" if self.model.loss_name == "mse" else "accuracy"
        statistic = {"median": np.median, "mean": np.mean}[e.statistic]
        samples = self.samples()
        wanted = {"weights": tuned.models[0], "after": self.model.apply(tuned.models[0], samples.query)}  # type: ignore[index]
        write_c(folder, self.model, self.vector, weights=weights, asked=self.asked)
        write_samples(folder, samples)
        row: dict[str, Any] = {
            "quality": float(statistic(getattr(tuned, metric)[..., 0])), "metric": metric,
            "programs": {name: memory(folder, "cortex-m7", *uses)._asdict() for name, uses in PROGRAMS.items()},
            "chips": {chip: self.on_chip(folder, chip, wanted) for chip in CHIPS},
        }  # fmt: skip
        print(f"{self.study.name} {weights}: {row['chips']}", flush=True)
        return row

    def on_chip(self, folder: Path, chip: str, wanted: dict[str, Any]) -> dict[str, Any]:
        got, processor = run_on_chip(folder, chip), device(chip)
        apart = {f"{name} apart": float(np.abs(got[name] - np.ravel(wanted[name])).max()) for name in wanted}
        flops = adaptation_flops(self.model, self.tasks, self.samples().steps, self.samples().learning_rate)
        cycles = got["instructions_fine_tune"] * self.cycles_per_instruction(folder, chip)
        assert processor.clock_hz is not None
        return apart | {
            "predict": got["instructions_predict"] / QUERIES,
            "fine_tune": got["instructions_fine_tune"],
            "answer": got["instructions_answer"],
            "cycles_fine_tune": cycles,
            "seconds_fine_tune": cycles / processor.clock_hz,
            "joules_fine_tune": cycles / processor.clock_hz * processor.watts,
            "flops": flops,
            "ledger_joules": processor.energy_joules(flops),
        }

    def cycles_per_instruction(self, folder: Path, chip: str) -> float:
        """On the M4, of one step on five samples and their predictions; 1 on the M7, for want of published timings."""
        if chip != "cortex-m4":
            return 1.0
        samples, short = self.samples(), folder.with_name(f"{folder.name}-short")
        write_c(short, self.model, self.vector)
        write_samples(short, samples._replace(x=samples.x[:5], y=samples.y[:5], query=samples.query[:1], steps=1))
        mix = mix_of(trace_of(short, chip))
        return mix.cycles / mix.instructions


def measured(name: str, folder: Path) -> dict[str, Any]:
    """The rows of one study, and how the rate of the ledger compares where no input is 0."""
    bench = Bench(load_study(name, seeds=[0], full=True))
    rows = {weights: bench.row(weights, folder / f"{name}-{weights}") for weights in WEIGHTS}
    return {"model": bench.model.spec, "weights": bench.model.size, "samples": len(bench.samples().x), "rows": rows}


def tables(numbers: dict[str, Any]) -> str:
    """The tables of docs/microcontrollers.md."""
    lines = [
        "| model | weights | flash: predict | and fine_tune | and answer | RAM: predict | and fine_tune | and answer | stack, at most |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for study in numbers.values():
        for weights, row in study["rows"].items():
            each = row["programs"].values()
            cells = [f"{p[kind]:,}" for kind in ("flash", "ram") for p in each]
            lines.append(
                f"| {study['model']} | {weights} | {' | '.join(cells)} | {row['programs']['and fine_tune']['stack']} |"
            )
    lines += [
        "",
        "| model | weights | quality after 10 steps | chip | apart from JAX | instructions: predict | fine_tune | answer | fine_tune: seconds | joules | ledger's joules | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for study in numbers.values():
        for weights, row in study["rows"].items():
            for chip, c in row["chips"].items():
                apart = max(value for key, value in c.items() if key.endswith("apart"))
                lines.append(
                    f"| {study['model']} | {weights} | {row['metric']} {row['quality']:.4f} | {chip} | {apart:.1e} | "
                    f"{c['predict']:,.0f} | {c['fine_tune']:,} | {c['answer']:,} | {c['seconds_fine_tune']:.3f} | "
                    f"{c['joules_fine_tune']:.2g} | {c['ledger_joules']:.2g} | "
                    f"{c['ledger_joules'] / c['joules_fine_tune']:.2f} |"
                )
    return "\n".join(lines)


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
