"""Tables read back as they were written, and a second process finds the compiled programs of the first."""

import csv
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewjoule.errors import InputError
from fewjoule.files import read_csv, write_csv

PROGRAM = """
from jax import monitoring
from fewjoule.files import use_compile_cache
import jax, jax.numpy as jnp, fewjoule as fj

seen = {"hits": 0, "misses": 0}

def note(event, **_):
    for kind in seen:
        seen[kind] += event == f"/jax/compilation_cache/cache_{kind}"

monitoring.register_event_listener(note)
print(use_compile_cache())
model = fj.mlp([1, 2, 1])
agents = fj.sinusoid.agents([1, 2], samples=4, validation=0)
fj.simulate(fj.fedsgd(rounds=2, batch=None), model, agents, jnp.zeros((2, model.size)))
print(seen["hits"], seen["misses"])
"""


@pytest.mark.slow
def test_the_cache_folder_saves_the_second_run_its_compilations(tmp_path):
    environment = {**os.environ, "FEWJOULE_CACHE": str(tmp_path), "JAX_PLATFORMS": "cpu"}

    def run():
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        folder, counts = done.stdout.splitlines()
        assert folder.startswith(str(tmp_path))
        hits, misses = map(int, counts.split())
        return hits, misses

    hits, misses = run()
    assert misses > 0
    kept = {path.name for path in tmp_path.rglob("*-cache")}
    assert len(kept) >= misses
    assert run() == (hits + misses, 0)
    assert {path.name for path in tmp_path.rglob("*-cache")} == kept


TEXTS = st.text(st.sampled_from("=+-@\t'\" ,\n1e.a"), max_size=6)


@given(st.lists(st.tuples(TEXTS, TEXTS, st.floats(allow_nan=False)), max_size=5))
def test_trial_16_a_table_reads_back_what_was_written(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("table") / "table.csv"
    write_csv(path, ("a", "b", "c"), rows)
    assert [(row["a"], row["b"], float(row["c"])) for _, row in read_csv(path, ("a", "b", "c"))] == rows


@pytest.mark.parametrize("name", ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "'=1", "-inf+1", "=cmd|' /C calc'!A0"])
def test_trial_16_no_cell_is_a_formula(tmp_path, name):
    write_csv(tmp_path / "t.csv", ("name", "joules"), [(name, -1.5), ("kitchen, north", "-2.5e-07"), ('"hall', "-inf")])
    with open(tmp_path / "t.csv", newline="", encoding="utf-8") as file:
        cells = list(csv.reader(file))[1:]
    assert cells == [["'" + name, "-1.5"], ["kitchen, north", "-2.5e-07"], ['"hall', "-inf"]]  # numbers stay numbers


def test_a_table_with_other_columns_or_a_short_row_is_refused(tmp_path):
    write_csv(tmp_path / "t.csv", ("a", "b"), [(1, 2)])
    with pytest.raises(InputError, match="the first line must be a,c, got 'a,b'"):
        list(read_csv(tmp_path / "t.csv", ("a", "c")))
    (tmp_path / "t.csv").write_text("a,b\n1\n")
    with pytest.raises(InputError, match="line 2: a row has 2 cells, got 1"):
        list(read_csv(tmp_path / "t.csv", ("a", "b")))
