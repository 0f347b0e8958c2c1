"""The example of own agents does what it says."""

import importlib.util
from pathlib import Path

import pytest

from fewjoule import read_model

EXAMPLE = Path(__file__).parent.parent / "examples" / "own_agents.py"


@pytest.mark.slow
def test_the_example_runs(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("own_agents", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    errors = module.main(tmp_path)
    assert errors[10] < 0.5 < errors[0]
    assert read_model(tmp_path / "meta.safetensors").model.spec == "mlp:1-40-40-1"
