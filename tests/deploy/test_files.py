"""What stands in deploy/ passes its own linters, and every command in it is one that fewjoule has.

Each linter is also shown a fault, so that a linter that looks at nothing would be noticed.
"""

import json
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fewjoule.cli import load

DEPLOY = Path(__file__).parents[2] / "deploy"
pytestmark = pytest.mark.slow  # those run with the extra installed
EXTRA = "needs the extra: pip install 'fewjoule[deploy]'"
LARGEST_EXPOSURE = 15  # tenths, of systemd's scale from 0 (nothing is exposed) to 100


def yaml_documents(path: Path) -> Iterator[dict[str, Any]]:
    yaml = pytest.importorskip("yaml", reason=EXTRA)
    return yaml.safe_load_all(path.read_text())


def linted(*command: str | Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(part) for part in command], input=text, capture_output=True, text=True, check=False)


def test_the_image_passes_hadolint() -> None:
    if shutil.which("hadolint") is None:
        pytest.skip(EXTRA)
    text = (DEPLOY / "Dockerfile").read_text()
    good = linted("hadolint", "--failure-threshold", "style", "-", text=text)
    assert good.returncode == 0, good.stdout
    bad = linted("hadolint", "-", text=text.replace("USER 10001:10001", "USER root"))
    assert "DL3002" in bad.stdout
    last = text[text.rindex("FROM ") :]
    assert "USER 10001" in last.split("ENTRYPOINT")[0]


def test_the_compose_file_is_one() -> None:
    compose = pytest.importorskip("compose_spec", reason=EXTRA)
    (table,) = yaml_documents(DEPLOY / "compose" / "compose.yaml")
    compose.PyCompose.from_json(json.dumps(table)).validate()
    with pytest.raises(ValueError, match="reed_only"):
        compose.PyCompose.from_json(json.dumps({**table, "services": {"server": {"reed_only": True}}}))
    services = table["services"]
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert set(service.get("depends_on", ())) <= set(services)
        seen = [mount for mount in service["volumes"] if isinstance(mount, dict)]
        if name != "prepare":  # a site sees its own kit and no other
            assert [mount["volume"]["subpath"] for mount in seen] == [f"all/kits/{name}"]
    assert "ports" not in json.dumps(table)


@pytest.mark.parametrize("name", ["server", "agent"])
def test_the_manifests_fit_kubernetes(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason=EXTRA)
    kinds = []
    for document in yaml_documents(DEPLOY / "kubernetes" / f"{name}.yaml"):
        kinds.append(document["kind"])
        for version in ("1.28", "1.34"):
            validate.validate(document, version, strict=True)
        if document["kind"] == "StatefulSet":
            pod = document["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"]
            assert not pod["automountServiceAccountToken"]
            for container in (*pod["initContainers"], *pod["containers"]):
                assert container["securityContext"]["readOnlyRootFilesystem"]
                assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            pod["containers"][0]["imaje"] = "x"
            with pytest.raises(validate.ValidationError, match="imaje"):
                validate.validate(document, "1.34", strict=True)
    assert kinds == [*(["Service"] if name == "server" else []), "StatefulSet", "NetworkPolicy"]


@pytest.mark.parametrize("name", ["fewjoule-server.service", "fewjoule-agent@.service"])
def test_the_units_pass_systemd(name: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze: apt-get install systemd")
    text = (DEPLOY / "systemd" / name).read_text().replace("/opt/fewjoule/bin/fewjoule", "/bin/true")
    unit = tmp_path / name
    unit.write_text(text)
    verified = linted("systemd-analyze", "verify", unit)
    assert (verified.returncode, verified.stderr) == (0, "")
    security = ("systemd-analyze", "security", "--offline=true", f"--threshold={LARGEST_EXPOSURE}", unit)
    assert linted(*security).returncode == 0
    unit.write_text(text.replace("ProtectSystem=strict", "ProtectSistem=strict"))
    assert "ProtectSistem" in linted("systemd-analyze", "verify", unit).stderr
    unit.write_text(text.replace("NoNewPrivileges=yes", "").replace("SystemCallFilter=@system-service", ""))
    assert linted(*security).returncode != 0


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every `fewjoule federation` command line in deploy/."""
    (compose,) = yaml_documents(DEPLOY / "compose" / "compose.yaml")
    for name, service in compose["services"].items():
        yield f"compose {name}", service["command"]
    for name in ("server", "agent"):
        for document in yaml_documents(DEPLOY / "kubernetes" / f"{name}.yaml"):
            if document["kind"] == "StatefulSet":
                yield f"kubernetes {name}", document["spec"]["template"]["spec"]["containers"][0]["args"]
    for path in sorted((DEPLOY / "systemd").iterdir()):
        (line,) = (line for line in path.read_text().splitlines() if line.startswith("ExecStart="))
        program, group, *words = shlex.split(line.removeprefix("ExecStart="))
        assert (program, group) == ("/opt/fewjoule/bin/fewjoule", "federation")
        yield path.name, [word for word in words if word != "$OPTIONS"]


def test_every_command_is_one_of_fewjoules() -> None:
    known = load("federation").commands
    found = dict(commands())
    assert len(found) == 6 + 2 + 2
    for where, (name, *arguments) in found.items():
        known[name].make_context(name, list(arguments))  # raises on an option or argument that is not there
        assert all(isinstance(argument, str) for argument in arguments), where
