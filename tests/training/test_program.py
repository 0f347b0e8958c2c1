"""Programs are compiled together, with the garbage collector waiting; brief ones give what others give."""

import gc
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fewjoule as fj
from fewjoule import files
from fewjoule.studies.families import Evaluation
from fewjoule.studies.predictions import NewDevice, predict_ahead, predict_new_tasks
from fewjoule.training import program
from fewjoule.training.program import BRIEF_OPTIONS, COMPILER_OPTIONS, Program, compile_all
from fewjoule.training.tuning import ALL_WEIGHTS


def test_all_jobs_are_done_and_told_while_the_collector_waits():
    collecting, told = [], []
    compile_all([lambda: collecting.append(gc.isenabled())] * 5, lambda: told.append(1))
    assert collecting == [False] * 5
    assert len(told) == 5
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off():
    gc.disable()
    try:
        compile_all([lambda: None])
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_error_of_a_job_comes_out_and_the_collector_goes_on():
    def broken():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compile_all([broken, lambda: None])
    assert gc.isenabled()


def test_what_xla_flags_say_goes_before(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=true")
    assert program._unless_told({"xla_cpu_use_fusion_emitters": False, "other": 1}) == {"other": 1}


def test_a_brief_program_gives_what_another_gives():
    @partial(jax.jit, compiler_options=COMPILER_OPTIONS)
    def step(x):
        return x - 0.1 * jnp.tanh(x @ x.T) @ x

    x = np.random.default_rng(0).normal(size=(20, 20)).astype(np.float32)
    usual, brief = Program(step, (), (x,)), Program(step, (), (x,), brief=True)
    program._compiled.cache_clear()
    usual.compile()
    brief.compile()
    assert program._compiled.cache_info().misses == 2  # each with its own options
    assert set(BRIEF_OPTIONS) > set(COMPILER_OPTIONS)
    np.testing.assert_allclose(usual.run(), brief.run(), rtol=1e-5)


def test_predictions_compile_nothing_that_was_compiled_ahead(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_traced", [tmp_path])
    program._compiled.cache_clear()
    model = fj.mlp([1, 4, 1])
    tasks = fj.sinusoid.new_tasks(10, amplitude=(1, 5), shots=5, queries=20, seed=1)
    evaluation = Evaluation(tasks=10, steps=[0, 1, 3], headline=3)
    predict_ahead(model, tasks, evaluation, ALL_WEIGHTS, False)
    made = program._compiled.cache_info().misses
    metas = {name: NewDevice(np.full(model.size, k, np.float32)) for k, name in enumerate("ab")}
    found = predict_new_tasks(model, metas, tasks, evaluation, 0)
    assert list(found.said) == ["a", "b"]
    assert (made, program._compiled.cache_info().misses) == (1, 1)
    program._compiled.cache_clear()
