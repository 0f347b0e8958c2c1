"""`fewjoule train --method answers`: models of different architectures and layouts, questions by range or file."""

from pathlib import Path

import numpy as np
import pytest

from fewjoule import Ledger, export, mlp, read_model, write_model
from fewjoule.randomness import key_for
from tests.cli.conftest import Command


@pytest.fixture
def agents(tmp_path: Path) -> Path:
    """Two agents with models of their own, one in PyTorch's layout; the third has none yet."""
    folder = tmp_path / "agents"
    folder.mkdir()
    x = np.linspace(-2, 2, 12)[:, None].astype(np.float32)
    for name, slope in (("east", 1.0), ("north", -2.0), ("south", 0.5)):
        np.savez(folder / f"{name}.npz", x=x, y=slope * x)
    wide, deep = mlp([1, 9, 1]), mlp([1, 4, 3, 1])
    write_model(folder / "east.safetensors", wide, wide.init(key_for(0, "local")), {})
    export(folder / "north.safetensors", deep, deep.init(key_for(1, "local")), to="pytorch")
    return folder


QUICK = ["--set", "episodes=3", "--set", "steps=2", "--local-steps", 50, "--meter", "operations"]


@pytest.mark.slow
def test_agents_with_different_models_make_one_meta_model(agents: Path, tmp_path: Path, fewjoule: Command) -> None:
    meta = tmp_path / "meta.safetensors"
    settings = ["--model", "mlp:1-6-1", "--questions", "range:-2:2", "--energy", tmp_path / "energy.csv", *QUICK]
    code, out, err = fewjoule("train", agents, "--method", "answers", "-o", meta, *settings)
    assert code == 0, err
    assert "east.safetensors (mlp:1-9-1)" in out
    assert "north.safetensors (mlp:1-4-3-1)" in out
    assert read_model(meta).model.spec == "mlp:1-6-1"
    ledger = Ledger.from_csv(tmp_path / "energy.csv")
    assert {row.bits for row in ledger.select(phase="uplink")} <= {200, 208}
    (served,) = ledger.select(phase="server")
    assert served.joules > 0
    assert "server" in out
    code, _, err = fewjoule("train", agents, "--method", "fedavg", "-o", tmp_path / "other.st", *settings[:2])
    assert code == 2
    assert "safetensors" in err


@pytest.mark.slow
def test_own_questions_are_charged_down_and_wrong_ones_refused(agents: Path, tmp_path: Path, fewjoule: Command) -> None:
    np.savez(tmp_path / "asked.npz", x=np.asarray([[-1.0], [0.0], [1.0]]))
    known = ["--model", "mlp:1-6-1", "--link", "wifi", *QUICK]
    asked = ["--questions", tmp_path / "asked.npz", "--energy", tmp_path / "energy.csv"]
    code, _, err = fewjoule("train", agents, "--method", "answers", "-o", tmp_path / "m.st", *known, *asked)
    assert code == 0, err
    down = Ledger.from_csv(tmp_path / "energy.csv").select(phase="downlink")
    assert [row.bits for row in down] == [96, 96, 96]
    for wrong, said in ((["--questions", "noise:4x4"], "16 numbers each"), ([], "needs --questions")):
        code, _, err = fewjoule("train", agents, "--method", "answers", "-o", tmp_path / "n.st", *known, *wrong)
        assert code == 2
        assert said in err
        assert not (tmp_path / "n.st").exists()


@pytest.mark.slow
def test_a_plan_has_a_row_for_answers(fewjoule: Command) -> None:
    code, out, _ = fewjoule("plan", "--agents", 3, "--model", "mlp:1-40-40-1")
    assert code == 0
    assert "answers" in out
    assert "invented" not in out
