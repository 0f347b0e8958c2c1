"""The exported C against JAX: on this machine with two compilers and sanitizers, and on Cortex-M4 and M7 under QEMU."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from bench import boards as board
from fewjoule.errors import InputError
from fewjoule.models.c_source import c_files, quantise_weights, write_c
from fewjoule.models.model import Model
from fewjoule.tasks.format import DataFormat, standardised
from fewjoule.training.adapt import one_task

SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
needs_clang = pytest.mark.skipif(shutil.which("clang") is None, reason="no clang")
needs_board = pytest.mark.skipif(bool(board.missing_tools()), reason=f"not installed: {board.missing_tools()}")


class Case(NamedTuple):
    spec: str
    loss: str
    weights: str
    samples: int


CASES = {
    "regression": Case("mlp:3-8-5-2", "mse", "float32", 7),
    "logistic": Case("mlp:4-3", "cross_entropy", "float32", 9),
    "sinusoid": Case("mlp:1-40-40-1", "mse", "float32", 40),
    "mnist": Case("mlp:784-8-8-10", "cross_entropy", "float32", 40),
    "mnist in int8": Case("mlp:784-8-8-10", "cross_entropy", "int8", 40),
    "conv4": Case("conv4:14x14x2-5-8", "cross_entropy", "float32", 6),
    "conv4 of odd sides": Case("conv4:35x18x3-4-5", "mse", "int8", 5),
    "conv4 of one column": Case("conv4:4x1x2-3-3", "cross_entropy", "float32", 4),
}


class Exported(NamedTuple):
    """A folder of C with samples, and what JAX makes of them."""

    folder: Path
    before: Any
    weights: Any
    after: Any

    def check(self, got: dict[str, Any]) -> None:
        assert got["status"] == 0
        for name in ("before", "weights", "after"):
            wanted = np.asarray(getattr(self, name)).reshape(-1)
            np.testing.assert_allclose(got[name], wanted, rtol=1e-5, atol=1e-5, err_msg=name)


def drawn(model: Model) -> Any:
    return np.random.default_rng(1).normal(0, 0.3, model.size).astype(np.float32)


def prepared(folder: Path, case: Case) -> tuple[Model, board.Samples]:
    """The case with random weights, and samples: some inputs are 0, and a classifier knows that a class is out."""
    model = fj.model_from_spec(case.spec, loss=case.loss)
    rng, outputs = np.random.default_rng(3), model.architecture.layers[-1].outputs
    x = rng.normal(size=(case.samples + 5, *model.input_shape)).astype(np.float32)
    x *= rng.random(x.shape) < 0.8
    allowed = None if case.loss == "mse" else np.arange(outputs) != 1
    y: Any = rng.normal(size=(case.samples, outputs)).astype(np.float32)
    y = y if allowed is None else np.flatnonzero(allowed)[rng.integers(0, outputs - 1, case.samples)]
    samples = board.Samples(x[:-5], y, x[-5:], allowed=allowed)
    write_c(folder, model, drawn(model), weights=case.weights)
    board.write_samples(folder, samples)
    return model, samples


def exported(folder: Path, case: Case) -> Exported:
    model, samples = prepared(folder, case)
    vector = drawn(model)
    return by_jax(folder, model, quantise_weights(model, vector).vector if case.weights == "int8" else vector, samples)


def by_jax(folder: Path, model: Model, vector: Any, samples: board.Samples) -> Exported:
    y = jnp.asarray(samples.y, jnp.float32 if model.loss_name == "mse" else jnp.int32)
    allowed = None if samples.allowed is None else jnp.asarray(samples.allowed)
    support = fj.Samples(jnp.asarray(samples.x), y, jnp.ones(len(y)), allowed)
    settings: Any = {"steps": [samples.steps], "learning_rate": samples.learning_rate, "keep_models": True}
    after = fj.adapt(model, vector, one_task(support), **settings).models[0]  # type: ignore[index]
    apply = jax.jit(model.apply)
    return Exported(folder, apply(vector, samples.query), after, apply(after, samples.query))


@needs_gcc
def test_the_c_of_a_regression_fine_tunes_as_jax_does(tmp_path: Path) -> None:
    case = exported(tmp_path / "c", CASES["regression"])
    case.check(board.run_on_host(case.folder))


@pytest.mark.slow
@needs_gcc
@needs_clang
@pytest.mark.parametrize("name", ["logistic", "mnist in int8", "conv4 of odd sides", "conv4 of one column"])
def test_c_equals_jax_with_both_compilers_and_sanitizers(name: str, tmp_path: Path) -> None:
    case = exported(tmp_path / "c", CASES[name])
    case.check(board.run_on_host(case.folder, "gcc", "-Wconversion", "-Wshadow", "-Wdouble-promotion"))
    case.check(board.run_on_host(case.folder, "clang", "-Wconversion", *SANITIZED))


@pytest.mark.slow
@needs_board
@pytest.mark.parametrize(
    ("name", "chip"), [("mnist", "cortex-m4"), ("mnist in int8", "cortex-m7"), ("conv4", "cortex-m7")]
)
def test_c_equals_jax_on_the_chips(name: str, chip: str, tmp_path: Path) -> None:
    case = exported(tmp_path / "c", CASES[name])
    case.check(board.run_on_chip(case.folder, chip))


@pytest.mark.slow
@needs_board
@pytest.mark.parametrize("chip", board.CHIPS)
def test_a_meta_model_of_sinusoids_fine_tunes_on_the_chips_as_in_jax(chip: str, tmp_path: Path) -> None:
    model = fj.mlp([1, 40, 40, 1])
    local = fj.train_locally(model, fj.sinusoid.agents(seed=0), max_steps=5000, seed=0)
    task = fj.sinusoid.new_tasks(1, shots=40, queries=20, seed=1)
    samples = board.Samples(task.support.x[0], task.support.y[0], task.query.x[0])
    write_c(tmp_path / "c", model, local.models.mean(0))
    board.write_samples(tmp_path / "c", samples)
    case = by_jax(tmp_path / "c", model, local.models.mean(0), samples)
    assert np.abs(np.asarray(case.after - case.before)).max() > 0.1  # the steps matter
    case.check(board.run_on_chip(case.folder, chip))


@pytest.mark.slow
@needs_board
@pytest.mark.parametrize("name", CASES)
def test_the_header_states_what_the_linker_lays_out(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    prepared(folder, CASES[name])
    said = board.run_on_host(folder)
    for uses, ram in (((), "ram_predict"), (("FINE_TUNE",), "ram_fine_tune")):
        found = board.memory(folder, "cortex-m4", *uses)
        assert found.stack < 1024
        if name == "logistic":  # of one layer the compiler needs no table, nor a second buffer
            assert 0 <= said["flash_model"] - found.flash_tables <= 40
            assert 0 <= said[ram] - found.ram_tables <= 12
        else:
            assert found.flash_tables == said["flash_model"]
            assert found.ram_tables == said[ram]


@pytest.mark.slow
@needs_board
def test_the_studies_models_fit_small_chips(tmp_path: Path) -> None:
    limits = {"sinusoid": (24_000, 32_000), "mnist": (64_000, 64_000), "mnist in int8": (32_000, 64_000)}
    for name, (flash, ram) in limits.items():
        prepared(tmp_path / name, CASES[name])
        found = board.memory(tmp_path / name, "cortex-m7", "FINE_TUNE")
        assert found.flash < flash, name
        assert found.ram + found.stack < ram, name


@pytest.mark.slow
@needs_gcc
def test_inputs_are_divided_and_standardised_as_in_training(tmp_path: Path) -> None:
    model = fj.mlp([2, 6, 1])
    form = DataFormat(divide_by=4.0, mean=(1.0, -2.0), scale=(0.5, 3.0))
    x = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    fj.export(tmp_path / "c", model, drawn(model), {"reading": form._asdict()}, to="c")
    board.write_samples(tmp_path / "c", board.Samples(x, x[:, :1], x))
    got = board.run_on_host(tmp_path / "c")
    read = standardised(x / np.float32(4), form)
    np.testing.assert_allclose(got["before"], model.apply(drawn(model), read)[:, 0], atol=1e-6)
    support = fj.Samples(jnp.asarray(read), jnp.asarray(x[:, :1]), jnp.ones(5))
    tuned = fj.adapt(model, drawn(model), one_task(support), steps=[10], learning_rate=0.01, keep_models=True)
    np.testing.assert_allclose(got["weights"], tuned.models[0], atol=1e-5)  # type: ignore[index]


@pytest.mark.slow
@needs_gcc
def test_a_task_that_cannot_be_learned_is_said(tmp_path: Path) -> None:
    case = Case("mlp:4-3", "cross_entropy", "float32", 1)
    model = fj.model_from_spec(case.spec, loss=case.loss)
    x, right = np.ones((3, 4), np.float32), np.asarray([0, 1, 2])
    for y, rate, status in ((right, 0.1, 0), (right + 1, 0.1, 1), (right, 3e38, 2)):
        folder = tmp_path / f"{status}"
        write_c(folder, model, drawn(model))
        board.write_samples(folder, board.Samples(x, y, x, learning_rate=rate))
        got = board.run_on_host(folder, "gcc", *SANITIZED)
        assert got["status"] == status
        if status == 1:
            np.testing.assert_array_equal(got["weights"], drawn(model))


@pytest.mark.slow
@needs_gcc
@needs_clang
@pytest.mark.parametrize("name", ["regression", "mnist in int8", "conv4"])
def test_the_example_and_its_makefile_work(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = fj.model_from_spec(case.spec, loss=case.loss)
    write_c(tmp_path / "c", model, drawn(model), weights=case.weights)
    for compiler in ("gcc", "clang"):
        subprocess.run(["make", "-B", "-C", tmp_path / "c", f"CC={compiler}"], check=True, capture_output=True)
        said = subprocess.run([tmp_path / "c" / "example"], check=True, capture_output=True, text=True).stdout
        assert re.match(r"before:( -?[\d.]+)+\nafter 10 steps:( -?[\d.]+)+\n", said)
    if not board.missing_tools():
        for chip in board.CHIPS:
            subprocess.run(["make", "-C", tmp_path / "c", chip], check=True, capture_output=True)


@needs_gcc
def test_the_c_needs_no_library_but_memcpy(tmp_path: Path) -> None:
    write_c(tmp_path / "c", fj.conv4([8, 8, 1], 3, filters=2), drawn(fj.conv4([8, 8, 1], 3, filters=2)))
    source = tmp_path / "c" / "fewjoule_model.c"
    subprocess.run(["gcc", "-std=c99", "-O2", "-c", source, "-o", tmp_path / "m.o"], check=True)
    undefined = subprocess.run(["nm", "-u", tmp_path / "m.o"], check=True, capture_output=True, text=True).stdout
    assert set(undefined.split()) - {"U"} <= {
        "memcpy",
        "memmove",
        "memset",
        "__stack_chk_fail",
        "_GLOBAL_OFFSET_TABLE_",
    }


def test_no_function_calls_itself_or_a_later_one() -> None:
    model = fj.conv4([8, 8, 1], 3, filters=2)
    code = c_files(model, drawn(model))["fewjoule_model.c"]
    functions = re.findall(r"^(?!#)\w[\w *]*?(\w+)\([^;{]*?\)\n\{\n(.*?)^\}", code, re.M | re.S)
    names = [name for name, _ in functions]
    assert {"fewjoule_fine_tune", "block_backward", "add_product"} <= set(names)
    for place, (name, body) in enumerate(functions):
        called = set(re.findall(r"(\w+)\(", body)) & set(names)
        assert called <= set(names[:place]), name


def test_int8_weights_are_the_nearest_of_their_channel() -> None:
    for spec in ("mlp:5-7-3", "conv4:8x8x2-3-4"):
        model = fj.model_from_spec(spec)
        vector = drawn(model)
        quantised = quantise_weights(model, vector)
        before, after = model.tensors(vector), model.tensors(quantised.vector)
        assert quantised.codes.size + quantised.plain.size == model.size
        for name, tensor in before.items():
            if tensor.ndim == 1:
                np.testing.assert_array_equal(after[name], tensor)
                continue
            rows = tensor.reshape(-1, tensor.shape[-1])
            error = np.abs(after[name].reshape(rows.shape) - rows)
            assert (error <= np.abs(rows).max(0) / 127 * 0.5001).all()
            np.testing.assert_allclose(np.abs(after[name]).reshape(rows.shape).max(0), np.abs(rows).max(0), rtol=1e-6)
    nothing = quantise_weights(model, np.zeros(model.size))
    np.testing.assert_array_equal(nothing.vector, 0)


def test_what_cannot_be_written_in_c_is_said(tmp_path: Path) -> None:
    model = fj.mlp([1, 2, 1])
    with pytest.raises(InputError, match=r"unknown kind of weights \(--weights\) 'int4'; did you mean 'int8'"):
        write_c(tmp_path / "c", model, drawn(model), weights="int4")
    with pytest.raises(InputError, match="at most 1048576 weights, got 1281000"):
        c_files(fj.mlp([1280, 1000]), np.zeros(1))
    own = Model(lambda key: jnp.zeros((1, 1)), lambda w, x: x @ w)
    with pytest.raises(InputError, match="custom model are not known"):
        c_files(own, np.zeros(1))
    for reading in (DataFormat(mean=(1.0, 2.0), scale=(1.0, 2.0)), DataFormat(divide_by=1e-50)):
        with pytest.raises(InputError, match="a mean and scale for each input of mlp:1-2-1"):
            c_files(model, drawn(model), format=reading)
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="exists and is not overwritten"):
        write_c(tmp_path / "mine", model, drawn(model))
    write_c(tmp_path / "mine", model, drawn(model), force=True)
    assert {p.name for p in (tmp_path / "mine").iterdir()} == {
        "fewjoule_model.h", "fewjoule_model.c", "main.c", "Makefile",
    }  # fmt: skip
