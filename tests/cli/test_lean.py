"""`fewjoule train --method lean --questions`: what the rule chooses is said, sent and charged."""

from pathlib import Path

import numpy as np
import pytest

from fewjoule import Ledger
from tests.cli.conftest import Command


@pytest.mark.slow
@pytest.mark.parametrize(("budget", "sent"), [("0.05", "answers"), ("0.5", "weights")])
def test_the_rule_chooses_between_weights_and_answers(
    tmp_path: Path, fewjoule: Command, budget: str, sent: str
) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    x = np.linspace(-2, 2, 12)[:, None].astype(np.float32)
    for name, slope in (("east", 1.0), ("north", -2.0)):
        np.savez(folder / f"{name}.npz", x=x, y=slope * x)
    np.savez(tmp_path / "asked.npz", x=x[:3])  # three answers of 6 bits are 13 or 14 bytes
    code, out, err = fewjoule(
        "train", folder, "--method", "lean", "-o", tmp_path / "meta.safetensors", "--model", "mlp:1-40-1",
        "--questions", tmp_path / "asked.npz", "--set", f"budget_joules={budget}", "--local-steps", 50,
        "--meter", "operations", "--energy", tmp_path / "energy.csv",
    )  # fmt: skip
    assert code == 0, err
    assert f"lean sends {sent}: " in out
    ledger = Ledger.from_csv(tmp_path / "energy.csv")
    up = ledger.select(phase="uplink", agent="east")
    assert sum(row.joules for row in up) <= float(budget)
    assert ({row.bits for row in up} <= {104, 112}) == (sent == "answers")
