"""Run folders that all tests of the report share."""

from pathlib import Path

import pytest

from fewjoule.reporting import write_report
from tests.reporting.run_folders import make_folder


@pytest.fixture(scope="session")
def regression(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of losses with its report made; its two seeds are too few for bars."""
    folder = make_folder(tmp_path_factory.mktemp("runs") / "regression")
    write_report(folder)
    return folder


@pytest.fixture(scope="session")
def classification(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of accuracies with its report made."""
    folder = make_folder(tmp_path_factory.mktemp("runs") / "classification", metric="accuracy", seeds=3)
    write_report(folder)
    return folder
