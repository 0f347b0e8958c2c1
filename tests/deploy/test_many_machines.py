"""The SLURM script and the Kubernetes job start processes that `fewjoule run` takes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fewjoule.cli import load
from tests.deploy.test_files import DEPLOY, EXTRA, yaml_documents

SCRIPT = DEPLOY / "slurm" / "run.sh"


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)


def test_the_slurm_script_starts_every_process(tmp_path: Path) -> None:
    """With programs in SLURM's place: srun starts as many tasks as the script asked for."""
    asked = dict(
        line.removeprefix("#SBATCH --").split("=") for line in SCRIPT.read_text().splitlines() if "#SBATCH" in line
    )
    assert set(asked) == {"job-name", "nodes", "ntasks-per-node", "cpus-per-task", "time"}
    tasks = int(asked["nodes"]) * int(asked["ntasks-per-node"])
    program(tmp_path, "scontrol", "#!/bin/sh\n[ \"$*\" = 'show hostnames node[7-10]' ] && printf 'node7\\nnode8\\n'\n")
    program(
        tmp_path, "srun", '#!/bin/sh\nshift\nfor k in $(seq 0 $((SLURM_NTASKS - 1))); do SLURM_PROCID=$k "$@"; done\n'
    )
    told = f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n"
    program(tmp_path, "fewjoule", told)
    slurm = {"SLURM_JOB_NODELIST": "node[7-10]", "SLURM_NTASKS": str(tasks)}
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", **slurm}
    command = ["bash", str(SCRIPT), "my study.toml", "--seeds", "8"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    started = [json.loads(line) for line in done.stdout.splitlines()]
    for process, arguments in enumerate(started):
        given = load("run").make_context("run", arguments[1:]).params
        assert (given["study"], given["seeds"], given["coordinator"]) == ("my study.toml", "8", "node7:4711")
        assert (given["process"], given["of"]) == (process, tasks)
    assert len(started) == tasks == 4


@pytest.mark.slow
def test_the_kubernetes_job_starts_every_process() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason=EXTRA)
    documents = list(yaml_documents(DEPLOY / "kubernetes" / "run.yaml"))
    for document in documents:
        for version in ("1.28", "1.34"):
            validate.validate(document, version, strict=True)
    service, job, policy = documents
    assert (service["kind"], job["kind"], policy["kind"]) == ("Service", "Job", "NetworkPolicy")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    command, *arguments = container["args"]
    filled = [text.replace("$(JOB_COMPLETION_INDEX)", "3") for text in arguments]
    given = load(command).make_context(command, filled).params
    assert given["of"] == spec["completions"] == spec["parallelism"]
    assert given["process"] == 3
    assert given["coordinator"] == f"{job['metadata']['name']}-0.{pod['subdomain']}:4711"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert spec["completionMode"] == "Indexed"
    container["imaje"] = "x"
    with pytest.raises(validate.ValidationError, match="imaje"):
        validate.validate(job, "1.34", strict=True)
