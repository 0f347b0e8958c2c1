"""The readers of the package, for the fuzzer, and what comes over a network; files are in `fuzz_files`."""

import hashlib
import json
import math
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import jax
import numpy as np

from bench import fuzz_files as files
from bench.fuzz_files import FileReader, Inputs
from bench.fuzz_mutations import damage, damage_json
from fewjoule.codecs import codec, decode
from fewjoule.codecs.frame import frame
from fewjoule.errors import InputError
from fewjoule.federation import blocks, state, wire
from fewjoule.federation.federation_file import read_federation
from fewjoule.federation.records import Records
from fewjoule.federation.results import read_result
from fewjoule.federation.spec import Spec, contract, read_spec

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


# Coded messages -------------------------------------------------------------------------------------------------------
CODECS = ("float32", "float16", "quantise:1", "quantise:8", "lloyd-max:1", "lloyd-max:4", "top-k:0.1:1", "top-k:0.5:3")
WEIGHTS = 300


def codec_messages() -> list[bytes]:
    rng, key = np.random.default_rng(0), jax.random.key(0)
    return [codec(spec).encode(rng.laplace(size=WEIGHTS), key) for spec in CODECS]


def codec_hostile() -> list[bytes]:
    """No positions and few bytes, but 2**31 - 1 weights; more positions than weights."""
    return [frame(4, 2**31 - 1, bytes([1, 0, 0, 1, 60])), frame(4, WEIGHTS, bytes([1, 23, 255, 255, 3, 1, 60]))]


def sealed_codec(rng: Random, valid: Inputs) -> bytes:
    body = damage(rng, rng.choice(valid)[:-4], valid)
    return body + zlib.crc32(body).to_bytes(4, "little")


def read_coded(data: bytes, folder: Path) -> Any:
    return decode(data, WEIGHTS)


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
    report = wire.AgentReport(
        loss=0.5, joules=2.0, bytes_sent=900.0, kind="measured", source="powercap", sends_model=True
    )
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
    return tuple(Spec(m, model, ("north", "south"), local={"batch": 5, "learning_rate": 0.1}).text for m in methods)


def results() -> list[bytes]:
    out = []
    for text in specs():
        agreed = contract(read_spec(text))
        arrays = {"meta": np.zeros(agreed.model.size, np.float32), "losses": np.zeros(2), "samples": np.ones(2)}
        arrays |= Records(len(agreed.plan), 2).arrays()
        values = {"spec": text, "sources": ["powercap"], "skipped": []}
        out.append(state.pack(blocks.RESULT, agreed.spec.run, state.State(values, arrays)))
    return out


def read_result_bytes(data: bytes, folder: Path) -> Any:
    return read_result(data)


def result_numbers(result: Any) -> list[bytes]:
    return [result.meta.tobytes(), result.losses.tobytes(), result.contract.spec.text.encode()]


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


NETWORK = (
    Reader("codecs", 0.20, codec_messages, read_coded, (sealed_codec,) * 3, vector_bytes, codec_hostile),
    Reader("messages", 0.14, messages, read_message, (sealed_block,) * 3, message_numbers, refusal=wire.MessageError),
    Reader("results", 0.02, results, read_result_bytes, (sealed_block, block_with_other_note), result_numbers),
    Reader("specs", 0.10, spec_texts, read_spec_text, (other_json,)),
    Reader("contracts", 0.03, spec_texts, build_spec, (other_json,) * 3, hostile=spec_hostile),
)
FILES = (
    Reader(
        "states", 0.10, states, FileReader("a.state", state_of), (sealed_block, block_with_other_note), state_numbers
    ),
    Reader(
        "npz", 0.08, files.npz_files, FileReader("a.npz", files.samples_of), (files.npz_with_other_members,),
        files.table_numbers, files.npz_hostile,
    ),
    Reader(
        "csv", 0.08, files.csv_files, FileReader("a.csv", files.samples_of), (files.other_csv,),
        hostile=files.csv_hostile,
    ),
    Reader(
        "parquet", 0.06, files.parquet_files, FileReader("a.parquet", files.samples_of), hostile=files.parquet_hostile
    ),
    Reader(
        "weights", 0.04, files.weight_files, FileReader("a.safetensors", files.weights_of),
        (files.safetensors_with_other_header,) * 2, hostile=files.weights_hostile,
    ),
    Reader(
        "cards", 0.02, files.card_files, FileReader("a.safetensors", files.shown_card),
        (files.safetensors_with_other_header,) * 3,
    ),
    Reader(
        "parts", 0.03, files.part_files, FileReader("stage.safetensors", files.part_of),
        (files.safetensors_with_other_header,),
    ),
    Reader("studies", 0.03, files.study_files, FileReader("a.toml", files.study_of), (files.other_toml,) * 2),
    Reader("federations", 0.03, files.federation_files, FileReader("a.toml", read_federation), (files.other_toml,)),
    Reader("run_folders", 0.04, files.run_folder_inputs, files.read_run_folder, (files.other_run_folder,) * 2),
)  # fmt: skip
READERS = {reader.name: reader for reader in NETWORK + FILES}
assert math.isclose(sum(reader.share for reader in READERS.values()), 1)
