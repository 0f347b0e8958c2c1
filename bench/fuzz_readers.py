"""The readers of the package, for the fuzzer: valid inputs that the package wrote itself, and the ways to damage them."""

import hashlib
import io
import json
import math
import tempfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.fuzz_mutations import damage, damage_csv, damage_json, damage_toml
from fewjoule.codecs import codec, decode
from fewjoule.codecs.frame import frame
from fewjoule.energy.ledger import Ledger
from fewjoule.errors import InputError
from fewjoule.federation import blocks, state, wire
from fewjoule.federation.nvflare.provision import read_federation
from fewjoule.federation.records import Records
from fewjoule.federation.results import read_result
from fewjoule.federation.spec import Spec, contract, read_spec
from fewjoule.models.nets import mlp
from fewjoule.models.weights import export, read_header, read_model, write_model
from fewjoule.report import run_folder
from fewjoule.study.parts import Part, Parts
from fewjoule.study.settings import load_study
from fewjoule.tasks.readers import read_table

Inputs = Sequence[bytes]
Mutation = Callable[[Random, Inputs], bytes]


class Reader(NamedTuple):
    """One reader. `numbers` are what a checksum guards: an input that was damaged and not sealed again must not change
    them. `hostile` are inputs written by hand, tried first."""

    name: str
    share: float  # of all inputs: about what lets every reader take its part of 45 minutes on 2 cores
    valid: Callable[[], list[bytes]]
    read: Callable[[bytes, Path], Any]
    mutations: tuple[Mutation, ...] = ()  # which keep or renew every checksum; plain damage is always among them
    numbers: Callable[[Any], list[bytes]] | None = None
    hostile: Callable[[], list[bytes]] = list
    refusal: type[Exception] = InputError

    def input(self, rng: Random, valid: Inputs) -> tuple[bytes, bool]:
        """A damaged input, and whether its checksum is as the damage left it."""
        at = rng.randrange(1 + len(self.mutations))
        if at:
            return self.mutations[at - 1](rng, valid), False
        return damage(rng, rng.choice(valid), valid), True


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


# Coded messages -------------------------------------------------------------------------------------------------------
CODECS = ("float32", "float16", "quantise:1", "quantise:8", "lloyd-max:1", "lloyd-max:4", "top-k:0.1:1", "top-k:0.5:3")


def codec_messages() -> list[bytes]:
    rng, key = np.random.default_rng(0), jax.random.key(0)
    return [codec(spec).encode(rng.laplace(size=size), key) for spec in CODECS for size in (1, 300)]


def codec_hostile() -> list[bytes]:
    """No positions and few bytes, but 2**31 - 1 weights."""
    return [frame(4, 2**31 - 1, bytes([1, m, 0, 1, 60])) for m in (0, 23)]


def sealed_codec(rng: Random, valid: Inputs) -> bytes:
    body = damage(rng, rng.choice(valid)[:-4], valid)
    return body + zlib.crc32(body).to_bytes(4, "little")


def read_coded(data: bytes, folder: Path) -> Any:
    return decode(data)


def vector_bytes(vector: Any) -> list[bytes]:
    return [vector.tobytes()]


# Blocks: messages, state files, results -------------------------------------------------------------------------------
RUN = bytes(range(16))
FORMS = {
    blocks.ROUND: (blocks.Form("float32", (7,)), blocks.Form("bool", (3,))),
    blocks.UPLOAD: (blocks.Form("uint8", (-64,)),),
    blocks.CLOSE: (blocks.Form("float32", (2,)),),
}


def messages() -> list[bytes]:
    report = wire.AgentReport(0.5, 1.0, 1.0, 2.0, 0.1, 900.0, 800.0, 60.0, "measured", "powercap", True)
    arrays = {
        blocks.ROUND: (np.arange(7, dtype=np.float32), np.array([True, False, True])),
        blocks.UPLOAD: (np.arange(33, dtype=np.uint8),),
        blocks.CLOSE: (np.ones(2, np.float32),),
    }
    return [wire.encode(wire.Message(kind, RUN, 3, 77, arrays[kind], report)) for kind in arrays]


def read_message(data: bytes, folder: Path) -> wire.Message:
    kind = wire.kind_of(data)
    if kind not in FORMS:
        raise wire.MessageError(f"kind {kind} is not due.")
    message = wire.decode(data, kind=kind, run=RUN, forms=FORMS[kind], round=3, agent=77)
    wire.check_values(message.arrays, 1e4)
    return message


def message_numbers(message: wire.Message) -> list[bytes]:
    return [repr(message.report).encode(), *(array.tobytes() for array in message.arrays)]


def sealed_block(rng: Random, valid: Inputs) -> bytes:
    body = damage(rng, rng.choice(valid)[:-16], valid)
    return body + hashlib.blake2b(body, digest_size=16).digest()


def block_with_other_note(rng: Random, valid: Inputs) -> bytes:
    """The JSON of a state or a result with wrong values, in a block that is whole."""
    data = rng.choice(valid)
    block = blocks.unpack(data, data[6], None)
    return blocks.pack(data[6], block.run, damage_json(rng, block.note), block.arrays)


def states() -> list[bytes]:
    arrays = {"model": np.arange(5, dtype=np.float32), "seen": np.zeros((2, 3), bool)}
    return [state.pack(blocks.AGENT, RUN, state.State({"round": 3, "answered": "ab"}, arrays))]


def state_of(path: Path) -> state.State | None:
    forms = {"model": blocks.Form("float32", (5,))}
    return state.read_state(path, blocks.AGENT, RUN, {"round": int, "answered": str}, forms)


def state_numbers(read: state.State) -> list[bytes]:
    return [json.dumps(read.values).encode(), *(array.tobytes() for array in read.arrays.values())]


@cache
def specs() -> tuple[str, ...]:
    model = {"spec": "mlp:1-4-1", "init": "glorot", "loss": "mse"}
    methods: list[dict[str, Any]] = [
        {"method": "meta_backward", "rounds": 2, "radius": {"kind": "linear", "first": 1.0, "last": 0.1}},
        {"method": "fedavg", "rounds": 3, "codec": "top-k:0.25:2"},
    ]
    return tuple(Spec(m, model, ("north", "south"), local={"batch": 5, "step": 0.1}).text for m in methods)


def results() -> list[bytes]:
    out = []
    for text in specs():
        agreed = contract(read_spec(text))
        rounds, meta = agreed.method.rounds, np.zeros(agreed.model.size, np.float32)
        arrays = {"meta": meta, "losses": np.zeros((rounds, 2)), "trace": np.zeros((rounds, 6))}
        arrays |= Records.empty(len(agreed.plan), 2).arrays()
        values = {"spec": text, "sources": ["powercap"], "skipped": []}
        out.append(state.pack(blocks.RESULT, agreed.spec.run, state.State(values, arrays)))
    return out


def read_result_bytes(data: bytes, folder: Path) -> Any:
    return read_result(data)


def result_numbers(result: Any) -> list[bytes]:
    return [result.meta.tobytes(), result.losses.tobytes(), result.agreed.spec.text.encode()]


# Specs, and what a site builds from one -------------------------------------------------------------------------------
def spec_texts() -> list[bytes]:
    return [text.encode() for text in specs()]


def other_json(rng: Random, valid: Inputs) -> bytes:
    return damage_json(rng, rng.choice(valid))


def read_spec_text(data: bytes, folder: Path) -> Spec:
    return read_spec(data.decode("utf-8", "replace"))


def build_spec(data: bytes, folder: Path) -> Any:
    return contract(read_spec_text(data, folder))


def spec_hostile() -> list[bytes]:
    out = []
    for text in specs():
        for rounds in (2**31, 2**70):
            tree = json.loads(text)
            tree["method"]["rounds"] = rounds
            out.append(json.dumps(tree).encode())
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
    """Little compressed data that unpacks to 400 MB, and a header that claims 8 TB."""
    packed, claims = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file, file.open("x.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": False, "shape": (10**8, 1)})
        for _ in range(400):
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


def table_numbers(table: Any) -> list[bytes]:
    return [np.asarray(array).tobytes() for pair in table.pairs for array in pair]


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
    """50 million equal rows in a few kilobytes."""
    zeros = np.zeros(5 * 10**7, np.float32)
    return written("a.parquet", lambda path: pq.write_table(pa.table({"a": zeros, "y": zeros}), path))


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
        run_folder.PATHS.write(folder, [(m, agent, r, 0.1, 0.2) for m in methods for agent in ("a", "") for r in (0, 1)])
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


READERS = {
    reader.name: reader
    for reader in (
        Reader("codecs", 0.30, codec_messages, read_coded, (sealed_codec,) * 3, vector_bytes, codec_hostile),
        Reader("messages", 0.18, messages, read_message, (sealed_block,) * 3, message_numbers, refusal=wire.MessageError),
        Reader("states", 0.12, states, FileReader("a.state", state_of), (sealed_block, block_with_other_note), state_numbers),
        Reader("results", 0.01, results, read_result_bytes, (sealed_block, block_with_other_note), result_numbers),
        Reader("specs", 0.10, spec_texts, read_spec_text, (other_json,)),
        Reader("contracts", 0.01, spec_texts, build_spec, (other_json,) * 3, hostile=spec_hostile),
        Reader("npz", 0.04, npz_files, FileReader("a.npz", read_table), (npz_with_other_members,), table_numbers, npz_hostile),
        Reader("csv", 0.04, csv_files, FileReader("a.csv", read_table), (other_csv,), hostile=csv_hostile),
        Reader("parquet", 0.04, parquet_files, FileReader("a.parquet", read_table), hostile=parquet_hostile),
        Reader(
            "weights", 0.04, weight_files, FileReader("a.safetensors", weights_of), (safetensors_with_other_header,) * 2,
            hostile=weights_hostile,
        ),
        Reader("parts", 0.04, part_files, FileReader("stage.safetensors", part_of), (safetensors_with_other_header,)),
        Reader("studies", 0.02, study_files, FileReader("a.toml", study_of), (other_toml,) * 2),
        Reader("federations", 0.03, federation_files, FileReader("a.toml", read_federation), (other_toml,)),
        Reader("run_folders", 0.03, run_folder_inputs, read_run_folder, (other_run_folder,) * 2),
    )
}  # fmt: skip
assert math.isclose(sum(reader.share for reader in READERS.values()), 1)
