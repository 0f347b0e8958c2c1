"""A microcontroller's `fewjoule_answer` against the method: the bytes that an agent sends."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from bench import boards as board
from fewjoule.codecs.uniform import Uniform
from fewjoule.errors import InputError
from fewjoule.methods.answers import asked_of
from fewjoule.methods.method import Broadcast
from fewjoule.models.c_source import write_c
from fewjoule.models.model import Model
from fewjoule.simulation.rules import own_model, told
from fewjoule.tasks.samples import AgentData

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sinusoid": ("mlp:1-40-40-1", "mse", {"questions": "range:-5:5"}),
    "three classes": (
        "mlp:784-8-8-10", "cross_entropy", {"questions": "strokes:28x28", "number": 40, "bits": 4, "classes": 3},
    ),
    "a hypercube": ("mlp:3-9-2", "mse", {"questions": "range:0:2", "number": 33, "bits": 5}),
    "own questions": ("mlp:2-4-3", "mse", {"questions": [[0.5, 1.5], [2, 3.25]], "bits": 1}),
    "conv4 of colours": ("conv4:8x9x3-3-4", "cross_entropy", {"questions": "noise:8x9x3", "number": 12, "bits": 3}),
}  # fmt: skip


def sent(method: fj.Method, model: Model, vector: Any, data: AgentData, seed: int) -> bytes:
    """The message of one agent, as the simulator and a federation make it."""

    @jax.jit
    def turn(vector: Any, data: AgentData, seed: Any) -> Any:
        own = own_model(method, model, vector)
        return method.agent(model.loss, own, told(Broadcast(vector), seed), data, jax.random.key(0))

    _, message, info = turn(vector, data, seed)
    codec = method.codecs[0]
    assert codec is not None
    data_sent = codec.to_bytes(info.packed[0], message.size)
    assert len(data_sent) == int(info.size_bytes)
    return data_sent


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
@pytest.mark.parametrize("name", CASES)
def test_the_bytes_are_those_that_the_simulator_sends(name: str, tmp_path: Path) -> None:
    spec, loss, settings = CASES[name]
    model, method = fj.model_from_spec(spec, loss=loss), fj.method("answers", **settings)
    rng, outputs = np.random.default_rng(0), model.architecture.layers[-1].outputs
    x = rng.normal(size=(20, *model.input_shape)).astype(np.float32)
    y: Any = rng.normal(size=(20, outputs)) if loss == "mse" else rng.integers(0, outputs, 20)
    samples = fj.Samples(jnp.asarray(x), jnp.asarray(y, jnp.float32 if loss == "mse" else jnp.int32), jnp.ones(20))
    seed, folder = 3, tmp_path / "c"
    vector = 2 * model.init(jax.random.key(seed))
    write_c(folder, model, vector, asked=asked_of(model, method, seed))
    board.write_samples(folder, board.Samples(x, y, x[:1], steps=0))
    wanted = sent(method, model, vector, AgentData(samples, samples), seed)
    got = board.run_on_host(folder, "gcc", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    assert got["message"] == wanted
    if name == "sinusoid":
        assert len(wanted) == 25
    if name in ("sinusoid", "three classes") and not board.missing_tools():
        assert board.run_on_chip(folder, "cortex-m7")["message"] == wanted
        found = board.memory(folder, "cortex-m4", "FINE_TUNE", "ANSWER")
        assert found.flash_tables == got["flash_model"] + got["flash_answer"]
        assert found.ram_tables == got["ram_fine_tune"] + got["ram_answer"]


MANY = """
#include <stdio.h>
#include "fewjoule_model.h"
static const float lines[][2] = {%s};
int main(void)
{
    static uint8_t message[FEWJOULE_MESSAGE_BYTES];
    for (uint32_t i = 0U; i < (sizeof(lines) / sizeof(lines[0])); i++) {
        uint32_t length;
        fewjoule_set_weights(lines[i]);
        length = fewjoule_answer(NULL, message);
        for (uint32_t b = 0U; b < length; b++) {
            (void)printf("%%02x", message[b]);
        }
        (void)printf("\\n");
    }
    return 0;
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
@pytest.mark.parametrize("bits", [1, 3, 6, 8])
def test_the_codec_in_c_is_the_codec(bits: int, tmp_path: Path) -> None:
    """A line through the questions gives any range: tiny, huge, far from 0, on the levels themselves, constant."""
    rng, model = np.random.default_rng(bits), fj.mlp([1, 1])
    x = np.concatenate([np.arange(2**bits), rng.normal(size=30)]).astype(np.float32)
    method = fj.method("answers", questions=[[float(v)] for v in x], bits=bits)
    slopes = np.concatenate([[0, 0, 1, 1, 0.5, -3, 1e-20, 2.0**-101], 10.0 ** rng.uniform(-28, 28, 200)])
    offsets = np.concatenate(
        [[0, 7, 0, 1000, 1e4, 0.125, 1, 0], rng.normal(size=200) * 10.0 ** rng.uniform(-28, 28, 200)]
    )
    lines = np.stack([slopes, offsets], 1).astype(np.float32)
    lines = np.concatenate([lines, np.asarray([[1e38, 0], [0, 1e38]], np.float32)])
    write_c(tmp_path / "c", model, np.zeros(2), asked=asked_of(model, method, 0))
    rows = ", ".join(f"{{{w:.9e}F, {b:.9e}F}}" for w, b in lines)
    (tmp_path / "c" / "many.c").write_text(MANY % rows)
    folder, program = tmp_path / "c", tmp_path / "many"
    files = [folder / "many.c", folder / "fewjoule_model.c"]
    subprocess.run(["gcc", *board.WARNINGS, "-O2", "-fsanitize=undefined", *files, "-o", program], check=True)
    said = subprocess.run([program], check=True, capture_output=True, text=True)
    assert said.stderr == ""
    codec = Uniform(bits)
    for (slope, offset), text in zip(lines[:-2], said.stdout.splitlines(), strict=False):
        assert bytes.fromhex(text) == codec.encode(offset + x * slope), (slope, offset)
    assert said.stdout.splitlines()[-2:] == ["", ""]  # too large to be sent
    with pytest.raises(InputError, match="the run diverged"):
        codec.encode(np.asarray([1e38, 0.0]))


def test_questions_that_no_chip_has_room_for_are_refused_before_they_are_drawn() -> None:
    model = fj.mlp([784, 8, 10], loss="cross_entropy")
    with pytest.raises(InputError, match="at most 1048576 numbers in its questions, got 7840000000"):
        asked_of(model, fj.method("answers", questions="range:0:1", number=10_000_000), 0)
    with pytest.raises(InputError, match="16 numbers each, but the model takes 784"):
        asked_of(model, fj.method("answers", questions="noise:4x4"), 0)
