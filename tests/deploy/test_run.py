"""The compose file's own commands, names and places, run as processes on a network of their own."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("yaml", reason="needs the extra: pip install 'fewjoule[deploy]'")
pytest.importorskip("grpc", reason="needs the extra: pip install 'fewjoule[federation]'")
pytestmark = pytest.mark.slow

OWN = ["unshare", "--user", "--map-root-user", "--mount", "--net"]


def test_the_demo_runs_with_names_of_its_own_network(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run([*OWN, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no namespaces of one's own")
    command = [*OWN, sys.executable, "-m", "tests.deploy.own_network", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    logs = "\n".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    assert "ended with [0, 0, 0, 0]" in done.stdout
    for name in ("kitchen", "garage", "attic"):
        assert "connected to federation demo at fl.demo.internal:8443" in (tmp_path / f"{name}.log").read_text()
    assert (tmp_path / "volumes" / "results" / "run" / "summary.json").exists()
