"""The package's files, for the fuzzer: valid ones that it wrote itself, hostile ones, and ways to damage them."""

import contextlib
import io
import json
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.fuzz_mutations import damage, damage_csv, damage_json, damage_toml
from fewjoule.cli.export import show
from fewjoule.energy.ledger import Ledger
from fewjoule.models.nets import mlp
from fewjoule.models.weights import export, read_header, read_model, write_model
from fewjoule.reporting import run_folder
from fewjoule.studies.parts import Part, Parts
from fewjoule.studies.settings import load_study
from fewjoule.tasks.files import read_tables
from fewjoule.tasks.format import DataFormat, format_of_card

Inputs = Sequence[bytes]


class FileReader(NamedTuple):
    """Reads bytes through a file of this name. A class, because it goes to other processes."""

    name: str
    read: Callable[[Path], Any]

    def __call__(self, data: bytes, folder: Path) -> Any:
        path = folder / self.name
        path.write_bytes(data)
        return self.read(path)


def written(name: str, *writes: Callable[[Path], Any]) -> list[bytes]:
    """The files that these functions write."""
    out = []
    for write in writes:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / name)
            out.append((Path(folder) / name).read_bytes())
    return out


# Samples --------------------------------------------------------------------------------------------------------------
def arrays_of_samples() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {"x": rng.normal(size=(20, 3)), "y": rng.normal(size=20).astype(np.float32)}


def npz_files() -> list[bytes]:
    samples = arrays_of_samples()
    test = {f"{name}_test": array[:4] for name, array in samples.items()}
    classes = {"x": np.zeros((4, 2, 2), np.uint8), "y": np.array(["cat", "dog", "cat", "dog"])}
    return written(
        "a.npz",
        lambda path: np.savez(path, **samples, **test),
        lambda path: np.savez_compressed(path, **samples),
        lambda path: np.savez(path, **classes),
    )


def npz_hostile() -> list[bytes]:
    """Little compressed data that unpacks to 300 MB, and a header that claims 8 TB."""
    packed, claims = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file, file.open("x.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": (75 * 10**6, 1)})
        for _ in range(300):
            member.write(bytes(10**6))
    with zipfile.ZipFile(claims, "w") as file:
        text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2000000000000, 1), }\n"
        file.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    return [packed.getvalue(), claims.getvalue()]


def npz_with_other_members(rng: Random, valid: Inputs) -> bytes:
    """One array's bytes damaged, most often its header, in an archive whose checksums are right."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(rng.choice(valid))) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        chosen = rng.choice(old.namelist())
        for name in old.namelist():
            member = old.read(name)
            if name == chosen:
                split = 128 if rng.random() < 0.8 else len(member)
                member = damage(rng, member[:split], [member]) + member[split:]
            new.writestr(name, member)
    return out.getvalue()


def samples_of(path: Path) -> Any:
    """One file of samples as the commands read it: its arrays, then targets as numbers or classes."""
    return read_tables([path], DataFormat())[0][0]


def table_numbers(table: Any) -> list[bytes]:
    return [repr(array.tolist()).encode() for pair in table.pairs for array in pair]


def csv_files() -> list[bytes]:
    samples = arrays_of_samples()
    lines = ["a,b,c,y", *(",".join(map(repr, map(float, [*x, y]))) for x, y in zip(*samples.values(), strict=True))]
    words = ["a,kind,y", "1,2.5,cat", '2,1e3,"dog, small"', "3,-4,cat", ""]
    return ["\n".join(lines).encode(), "\r\n".join(words).encode(), b"\xef\xbb\xbf" + "\n".join(words).encode()]


def csv_hostile() -> list[bytes]:
    """One long text among many short ones, a line of many columns, and a quote that never ends."""
    long_text = b"a,y\n" + b"1,c\n" * 40_000 + b"1," + b"x" * 60_000 + b"\n"
    return [long_text, b",".join(b"%d" % i for i in range(3000)) + b",y\n", b'a,y\n1,"' + b"x\n" * 50_000]


def other_csv(rng: Random, valid: Inputs) -> bytes:
    return damage_csv(rng, rng.choice(valid).decode("utf-8-sig"))


def parquet_files() -> list[bytes]:
    samples = arrays_of_samples()
    columns = {"a": samples["x"][:, 0], "b": samples["x"][:, 1], "y": samples["y"]}
    words = {"a": np.arange(6), "b": np.arange(6) > 2, "y": ["cat", "dog"] * 3}
    return written(
        "a.parquet",
        lambda path: pq.write_table(pa.table(columns), path),
        lambda path: pq.write_table(pa.table(words), path, compression="none", row_group_size=3),
    )


def parquet_hostile() -> list[bytes]:
    """40 million equal rows in a few kilobytes."""
    rows = np.zeros(4 * 10**7, bool)
    return written("a.parquet", lambda path: pq.write_table(pa.table({"a": rows, "y": rows}), path))


# Weights and parts of a run -------------------------------------------------------------------------------------------
def weight_files() -> list[bytes]:
    model = mlp([2, 3, 1])
    vector = np.arange(model.size, dtype=np.float32)
    return written(
        "a.safetensors",
        lambda path: write_model(path, model, vector, {"method": {"name": "fedavg", "rounds": 3}, "classes": ["a"]}),
        lambda path: export(path, model, vector, to="pytorch"),
        lambda path: export(path, model, vector, to="flax"),
    )


CARD = {
    "method": {"name": "fedavg", "rounds": 3}, "classes": ["a", "b"], "agents": [{"name": "north", "samples": 3}],
    "reading": {"target": "y", "divide_by": 255.0, "classes": ["a", "b"], "columns": ["p", "q"]}, "link": "paper",
    "energy": [{"phase": "uplink", "kind": "analytic", "source": "Shannon", "joules": 1.5, "bits": 64}],
}  # fmt: skip


def card_files() -> list[bytes]:
    model = mlp([2, 3, 1])
    return written("a.safetensors", lambda path: write_model(path, model, np.zeros(model.size), CARD))


def shown_card(path: Path) -> Any:
    """What `fewjoule show` says, and how the commands read files with this card."""
    with contextlib.redirect_stdout(io.StringIO()):
        show(path)
    return format_of_card(read_header(path).card or {}, "regression")


def weights_hostile() -> list[bytes]:
    """A card of 20 000 layers, one of a huge net, and one that is nested deeper than any reader goes."""
    head = {"__metadata__": {"fewjoule": "{}"}, "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}
    out = []
    for spec in ("mlp:" + "-".join(["1"] * 20_001), "mlp:99999-99999-99999", None):
        card = "[" * 100_000 if spec is None else json.dumps({"model": spec, "loss": "mse"})
        head["__metadata__"] = {"fewjoule": card}
        out.append(_safetensors(json.dumps(head).encode(), bytes(4)))
    return out


def _safetensors(head: bytes, body: bytes) -> bytes:
    return len(head).to_bytes(8, "little") + head + body


def safetensors_with_other_header(rng: Random, valid: Inputs) -> bytes:
    """Names, types, shapes, offsets and metadata with wrong values; the texts in the metadata are JSON themselves."""
    data = rng.choice(valid)
    end = 8 + int.from_bytes(data[:8], "little")
    head = json.loads(data[8:end])
    metadata = head.get("__metadata__", {})
    inside = [key for key in ("fewjoule", "facts") if key in metadata]
    if inside and rng.random() < 0.5:
        metadata[inside[0]] = damage_json(rng, metadata[inside[0]]).decode("utf-8", "replace")
        return _safetensors(json.dumps(head).encode(), data[end:])
    return _safetensors(damage_json(rng, json.dumps(head)), data[end:])


def weights_of(path: Path) -> Any:
    header = read_header(path)
    return read_model(path, loss=None if header.card is not None else "mse")


def part_files() -> list[bytes]:
    part = Part({"losses": np.zeros((2, 3)), "steps": np.arange(3)}, {"seconds": 1.5, "labels": ["a", "b"]})
    return written("stage.safetensors", lambda path: Parts(path.parent).save("stage", part))


def part_of(path: Path) -> Part:
    return Parts(path.parent).load("stage")


# Studies and federations ----------------------------------------------------------------------------------------------
STUDY = """name = "small"
seeds = [0, 1]
[family]
kind = "sinusoid"
amplitudes = [2, 6]
[model]
spec = "mlp:1-4-1"
[local]
max_steps = 10
[evaluation]
tasks = 3
steps = [0, 1]
headline = 1
[energy]
link = "paper"
[quick]
seeds = [0]
"evaluation.tasks" = 2
[[methods]]
name = "mb"
method = "meta_backward"
rounds = 2
[[methods]]
name = "sgd"
label = "FedSGD"
method = "fedsgd"
runs = "full"
"""
FEDERATION = 'name = "clinics"\nagents = ["north", "south"]\n[server]\nname = "fl.example.org"\nport = 8443\n'


def study_files() -> list[bytes]:
    return [STUDY.encode(), (STUDY + '[federation]\npolicy = "skip"\n').encode()]


def study_of(path: Path) -> Any:
    return load_study(str(path)), load_study(str(path), quick=True), load_study(str(path), full=True)


def other_toml(rng: Random, valid: Inputs) -> bytes:
    return damage_toml(rng, rng.choice(valid).decode(), tomllib.loads)


def federation_files() -> list[bytes]:
    return [FEDERATION.encode()]


# Run folders: an input is the name of one file, a line end, and what stands in it -------------------------------------
@cache
def run_folder_files() -> dict[str, bytes]:
    quantiles = dict.fromkeys(run_folder.Quantiles.model_fields, 0.5)
    energy = {"uplink": {"analytic": {"joules": 1.0, "seconds": 0.5, "bits": 64.0}}}
    entry = {"method": "fedsgd", "rounds": 2, "energy": energy, "quality": {"0": {"loss": quantiles}}}
    link = {"name": "paper", "bandwidth_hz": 5000.0, "power_watts": 2.0, "noise_watts_per_hz": 1e-4}
    facts = {"study": "small", "metric": "loss", "better": "lower", "model": "mlp:1-4-1", "weights": 13, "data": "none"}
    facts |= {"steps": [0], "headline_steps": 0, "agents": ["a", "b"], "seeds": [0], "tasks": 2, "link": link}
    methods = {name: {**entry, "label": name.upper()} for name in ("mb", "sgd")}
    summary = run_folder.Summary.model_validate({"format": run_folder.FORMAT, **facts, "methods": methods})
    ledger = Ledger()
    about = {"seed": 0, "phase": "uplink", "kind": "analytic", "source": "Shannon"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for method in methods:
            ledger.add(method=method, agent="a", round=1, joules=1.0, seconds=0.5, bits=64, **about)
        ledger.to_csv(folder / run_folder.ENERGY)
        run_folder.EVALUATION.write(folder, [(m, 0, task, 0, 0.5, None) for m in methods for task in (0, 1)])
        run_folder.TRACE.write(folder, [(m, 0, r, 0.5, 0.1, 0.1, None, None, 2) for m in methods for r in (1, 2)])
        run_folder.PATHS.write(
            folder, [(m, agent, r, 0.1, 0.2) for m in methods for agent in ("a", "") for r in (0, 1)]
        )
        (folder / run_folder.SUMMARY).write_text(summary.to_json())
        (folder / run_folder.STUDY).write_text(STUDY)
        return {path.name: path.read_bytes() for path in folder.iterdir()}


def run_folder_inputs() -> list[bytes]:
    return [name.encode() + b"\n" + content for name, content in sorted(run_folder_files().items())]


def other_run_folder(rng: Random, valid: Inputs) -> bytes:
    """One file with wrong values, in its own form."""
    name, content = rng.choice(valid).split(b"\n", 1)
    form = {b"json": damage_json, b"csv": damage_csv}.get(name.rsplit(b".", 1)[1])
    text = content.decode()
    return name + b"\n" + (form(rng, text) if form else damage_toml(rng, text, tomllib.loads))


def read_run_folder(data: bytes, folder: Path) -> Any:
    """The folder with one file replaced; plain damage may have hit the name, which then is the summary's."""
    files = run_folder_files()
    name, _, content = data.partition(b"\n")
    known = name.decode("latin-1") if name.decode("latin-1") in files else run_folder.SUMMARY
    place = folder / "run"
    if not place.exists():
        place.mkdir()
        for each, whole in files.items():
            (place / each).write_bytes(whole)
    (place / known).write_bytes(content)
    try:
        return run_folder.RunFolder.read(place)
    finally:
        (place / known).write_bytes(files[known])
