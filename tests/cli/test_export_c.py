"""`fewjoule export --to c`: what it writes, whom it asks, and what it refuses in one line."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewjoule import mlp, write_model
from tests.cli.conftest import Command

FILES = {"fewjoule_model.h", "fewjoule_model.c", "main.c", "Makefile"}
ANSWERS = {"method": "answers", "questions": "range:-2:2", "number": 5, "bits": 3, "classes": None, "episodes": 7}


@pytest.fixture
def meta(tmp_path: Path) -> Path:
    model = mlp([1, 4, 1])
    write_model(tmp_path / "meta.safetensors", model, np.linspace(-1, 1, model.size), {"method": {"method": "average"}})
    return tmp_path / "meta.safetensors"


def sizes(folder: Path) -> dict[str, str]:
    return dict(re.findall(r"#define FEWJOULE_(\w+) (\S+)", (folder / "fewjoule_model.h").read_text()))


def numbers(folder: Path, table: str) -> list[float]:
    found = re.search(rf"{table}\[\d+\] = {{(.*?)}}", (folder / "fewjoule_model.c").read_text(), re.S)
    assert found is not None
    return [float(word.strip().rstrip("F")) for word in found[1].split(",") if word.strip()]


def test_a_folder_is_written_and_not_overwritten(meta: Path, fewjoule: Command) -> None:
    code, out, err = fewjoule("export", meta, "--to", "c")
    assert code == 0, err
    folder = meta.with_name("meta-c")
    assert "mlp:1-4-1 in C" in out
    assert "answer" not in out
    assert {p.name for p in folder.iterdir()} == FILES
    assert sizes(folder)["QUESTIONS"] == "0U"
    np.testing.assert_array_equal(np.float32(numbers(folder, "meta")), np.linspace(-1, 1, 13).astype(np.float32))
    code, _, err = fewjoule("export", meta, "--to", "c")
    assert code == 2
    assert "exists and is not overwritten" in err
    assert fewjoule("export", meta, "--to", "c", "--weights", "int8", "--force")[0] == 0
    assert sizes(folder)["INT8"] == "1U"
    assert sizes(folder)["CODES"] == "8U"


def test_questions_come_from_the_card_or_from_flags(meta: Path, tmp_path: Path, fewjoule: Command) -> None:
    model = mlp([1, 4, 1])
    card: dict[str, Any] = {"method": ANSWERS, "seed": 4}
    write_model(tmp_path / "asked", model, np.zeros(model.size), card)
    assert fewjoule("export", tmp_path / "asked", "--to", "c", "-o", tmp_path / "a")[0] == 0
    assert {k: v for k, v in sizes(tmp_path / "a").items() if k in ("QUESTIONS", "BITS")} == {
        "QUESTIONS": "5U", "BITS": "3U",
    }  # fmt: skip
    assert numbers(tmp_path / "a", "questions") == [-2, -1, 0, 1, 2]
    asked = ("--questions", "range:0:6", "--set", "number=3", "--set", "bits=8")
    code, out, err = fewjoule("export", meta, "--to", "c", "-o", tmp_path / "b", *asked)
    assert code == 0, err
    assert "answer (3 questions)" in out
    assert numbers(tmp_path / "b", "questions") == [0, 3, 6]
    np.savez(tmp_path / "own.npz", x=np.asarray([[1.5], [2.5]]))
    assert fewjoule("export", meta, "--to", "c", "-o", tmp_path / "d", "--questions", tmp_path / "own.npz")[0] == 0
    assert numbers(tmp_path / "d", "questions") == [1.5, 2.5]


WRONG = [
    (("--weights", "int4"), "unknown kind of weights (--weights) 'int4'; did you mean 'int8'"),
    (("--set", "number=3"), "answers --questions, got none"),
    (("--seed", 3), "answers --questions, got none"),
    (("--questions", "range:-5:5", "--set", "episodes=3"), "unknown setting of answers on a device: 'episodes'"),
    (("--questions", "range:-5:5", "--set", "bits=9"), "bits must be a whole number from 1 to 8, got 9"),
    (("--questions", "range:-5:5", "--seed", -1), "a seed must be a whole number"),
    (("--questions", "noise:4x4"), "16 numbers each, but the model takes 1"),
    (("--questions", "range:-5:5", "--set", "number=10000000"), "at most 1048576 numbers in its questions"),
    (("-o", "{meta}"), "exists and is not overwritten"),
    (("-o", "{meta}/no/c"), "does not exist"),
]


@pytest.mark.parametrize(("flags", "said"), WRONG, ids=[said[:40] for _, said in WRONG])
def test_what_cannot_be_exported_is_one_line(flags: Any, said: str, meta: Path, fewjoule: Command) -> None:
    before = sorted(meta.parent.iterdir())
    code, _, err = fewjoule("export", meta, "--to", "c", *(str(flag).format(meta=meta) for flag in flags))
    assert code == 2
    assert said in " ".join(err.split())
    assert "Traceback" not in err
    assert sorted(meta.parent.iterdir()) == before


def test_flags_of_c_are_refused_elsewhere(meta: Path, fewjoule: Command) -> None:
    for flag in (("--weights", "int8"), ("--seed", 1), ("--questions", "range:0:1")):
        code, _, err = fewjoule("export", meta, "--to", "pytorch", *flag)
        assert code == 2
        assert "are about C; give --to c" in err


def test_a_strangers_card_reads_no_file_and_writes_no_code(tmp_path: Path, fewjoule: Command) -> None:
    np.savez(tmp_path / "private.npz", x=np.ones((2, 1)))
    model = mlp([1, 4, 1])
    for questions in (str(tmp_path / "private.npz"), "*/ int main(void) {} /*", {"a": 1}, [["x"]]):
        card = {"method": {**ANSWERS, "questions": questions}, "seed": 0, "classes": ["*/ evil /*"]}
        write_model(tmp_path / "m", model, np.zeros(model.size), json.loads(json.dumps(card)), force=True)
        code, _, err = fewjoule("export", tmp_path / "m", "--to", "c", "-o", tmp_path / "c")
        assert code == 2, questions
        assert "questions must be" in err
        assert not (tmp_path / "c").exists()
    names = {"columns": ["*/ int evil; /*"], "classes": ["\n#error", "warm"]}
    write_model(tmp_path / "m", model, np.zeros(model.size), {"reading": names}, force=True)
    assert fewjoule("export", tmp_path / "m", "--to", "c", "-o", tmp_path / "c")[0] == 0
    header = (tmp_path / "c" / "fewjoule_model.h").read_text()
    assert "/* inputs: ?? int evil; ?? */\n/* classes: 0 ??error, 1 warm */\n" in header
