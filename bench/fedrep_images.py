"""FedRep on Fashion-MNIST with Dirichlet shares, with fewer of the images: docs/fedrep_images.json.

    python bench/fedrep_images.py --data-dir DATA [--samples 3000 6000 9000]

The table of docs/benchmarks.md has all images of an agent (up to about 8000), as PFLlib has, the shipped study at most
3000. Everything else is the study's: seeds, rounds, steps, net. The accuracy is over images, before fine-tuning, as
PFLlib counts it.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from fewjoule.files import use_compile_cache, write_atomically
from fewjoule.studies.prepare import prepare
from fewjoule.studies.settings import load_study
from fewjoule.training.mesh import use_all_cores

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a script, this file's folder is there instead
from bench.answers import put
from bench.benchmark_tables import table_row
from bench.benchmarks import PAGE, finished_run, messages, over_images, read_numbers
from bench.federations import ALL, FEDERATIONS, PFLLIB

NUMBERS = Path("docs/fedrep_images.json")
MARKS = ("<!-- made by bench/fedrep_images.py -->", "<!-- end of fedrep_images -->")
TABLE = ALL  # images of an agent in docs/benchmarks.md
SHOWN = {"evaluation.steps": [0], "evaluation.headline": 0, "evaluation.tasks": 1}


def reached(samples: int, data_dir: str) -> dict[str, Any]:
    """FedRep's accuracy over images, and the bits of an agent, with at most so many images each."""
    settings = {**FEDERATIONS["fashion-dirichlet"].settings, **SHOWN, "family.samples": samples}
    study = load_study("fashion", settings=settings, data_dir=data_dir)
    entry = next(entry for entry in study.methods if entry.name == "fedrep")
    row = read_numbers().get("fashion-dirichlet", {}).get("methods", {}).get("fedrep")
    if samples == TABLE and row is not None:
        return {"over_images": row["over_images"], "uplink_bits": row["uplink_bits"]}
    prepared = prepare(study.model_copy(update={"methods": [entry]}))
    with tempfile.TemporaryDirectory() as place:
        run = finished_run(prepared, Path(place) / "fedrep", lambda line: print(line[:100], flush=True))
        share = over_images(prepared, run, "fedrep")
        return {"over_images": share, "uplink_bits": messages(run, "fedrep")["uplink_bits"]}


def table(numbers: dict[str, Any]) -> str:
    published = PFLLIB[("FedRep", "fedrep")][1]
    lines = [
        table_row(["images of an agent, at most", "FedRep, over images", "ours - theirs", "bits sent by an agent"])
    ]
    lines.append(table_row(["---"] * 4))
    for samples, of in sorted(numbers.items(), key=lambda one: int(one[0])):
        percent = 100 * of["over_images"]
        lines.append(table_row([samples, f"{percent:.2f}", f"{percent - published:+.2f}", f"{of['uplink_bits']:,.0f}"]))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", required=True, help="folder of the data sets")
    parser.add_argument("--samples", nargs="+", type=int, default=[3000, 6000, TABLE])
    asked = parser.parse_args()
    use_all_cores()
    use_compile_cache()
    numbers = json.loads(NUMBERS.read_text("utf-8")) if NUMBERS.exists() else {}
    for samples in asked.samples:
        numbers[str(samples)] = reached(samples, asked.data_dir)
        write_atomically(NUMBERS, (json.dumps(numbers, indent=1) + "\n").encode(), force=True)
        put(table(numbers), MARKS, PAGE)
