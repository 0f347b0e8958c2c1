"""The examples do what they say."""

import importlib.util
from pathlib import Path

import pytest

from fewjoule import read_model

EXAMPLES = Path(__file__).parent.parent / "examples"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_own_agents(tmp_path: Path) -> None:
    errors = example("own_agents").main(tmp_path)
    assert errors[10] < 0.5 < errors[0]
    assert read_model(tmp_path / "meta.safetensors").model.spec == "mlp:1-40-40-1"


@pytest.mark.slow
def test_a_flax_gru_learns_new_sensors() -> None:
    pytest.importorskip("flax", reason="flax is not installed")
    errors = example("flax_gru").main()
    assert errors[50] < errors[0] < 0.2  # 0.5 is what saying 0 would cost


@pytest.mark.slow
def test_tables_of_clinics(tmp_path: Path) -> None:
    accuracy = example("tabular").main(tmp_path)
    assert accuracy[10] > accuracy[0]
    assert accuracy[10] > 0.8
