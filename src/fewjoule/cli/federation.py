"""`fewjoule federation`: the same methods between real machines."""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fewjoule.errors import InputError
from fewjoule.federation.nvflare.demo import run_demo
from fewjoule.federation.nvflare.jobs import Away, Operator
from fewjoule.federation.nvflare.operator import View, describe, follow, read_facts, start_run
from fewjoule.federation.nvflare.process import daemon_command, run_site
from fewjoule.federation.nvflare.provision import place_storage, read_federation
from fewjoule.federation.nvflare.provision import provision as write_kits
from fewjoule.federation.nvflare.site import agent_meter, check_files, read_kit, read_site, write_site
from fewjoule.federation.spec import load_federated_study
from fewjoule.report import write_report
from fewjoule.report.run_folder import Summary
from fewjoule.study.parts import stopped_study

app = typer.Typer(help="Run methods between real machines (extra: federation).", no_args_is_help=True)

Kit = Annotated[Path, typer.Argument(metavar="KIT", help="The site's folder, made by provision.", show_default=False)]
OperatorKit = Annotated[Path, typer.Option("--kit", help="The operator's kit.", show_default=False)]
RunFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The run folder.", show_default=False)]
Patience = Annotated[
    float | None, typer.Option(help="Seconds to wait for a server or agents that are away; by default for ever.")
]
COUNTS = ("charged", "payload", "network")


@app.callback()
def _need_engine() -> None:
    if importlib.util.find_spec("nvflare") is None:
        raise InputError("federations need NVFlare; pip install 'fewjoule[federation]'.")


@contextmanager
def _session(
    kit: Path, patience: float | None = 10.0, tell: Callable[[str], None] = lambda line: None
) -> Iterator[Operator]:
    """The operator of this kit, connected to its server while the block runs."""
    with closing(Operator(kit)) as operator:
        operator.reconnect(tell, patience)
        yield operator


@app.command()
def provision(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="Name, agents, [server] name and port.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the kits.")],
) -> None:
    """Write one kit per site: certificates, minimum rights, and a README with the command that starts it."""
    for kit in write_kits(read_federation(file), out):
        print(f"wrote {kit}")
    print(f"keep {out / 'authority'} off the network: whoever has it can make kits.")


@app.command()
def server(kit: Kit) -> None:
    """Run the server in the foreground; Ctrl-C stops it."""
    facts = read_kit(kit, "server")
    place_storage(kit)
    print(f"server of federation {facts['federation']} on port {facts['port']}", flush=True)
    raise typer.Exit(run_site(kit, daemon_command(kit)))


@app.command()
def agent(
    kit: Kit,
    data: Annotated[Path, typer.Option(help="This agent's samples: .npz with x, y (x_test, y_test), .csv, .parquet.")],
    model: Annotated[Path | None, typer.Option(help="The model this agent trained already (.safetensors).")] = None,
    device: Annotated[
        str | None, typer.Option(help="Device preset for the energy model, where none is measured.")
    ] = None,
) -> None:
    """Run an agent in the foreground; Ctrl-C stops it. Data and model stay on this machine."""
    facts = read_kit(kit, "agent")
    write_site(kit, data, model, device)
    site = read_site(kit)
    samples = check_files(site)  # a mistake in the files shows now, not when a run begins
    agent_meter(site)
    print(f"agent {facts['name']}: {samples} samples, server {facts['host']}:{facts['port']}", flush=True)
    raise typer.Exit(run_site(kit, daemon_command(kit, facts["name"])))


@app.command()
def run(
    study: Annotated[str, typer.Argument(metavar="NAME|STUDY.toml", help="A study file, or sinusoid, mnist.")],
    kit: OperatorKit,
    out: Annotated[str | None, typer.Option(help="Run folder; by default the first free runs/NAME.")] = None,
    patience: Patience = None,
) -> None:
    """Run a study's methods over the federation; ends in the same run folder as a simulated run."""
    chosen = load_federated_study(study)
    _carry(kit, patience, lambda operator: start_run(chosen, operator, out))


@app.command()
def resume(folder: RunFolder, kit: OperatorKit, patience: Patience = None) -> None:
    """Go on with a run that was stopped or interrupted, from its last complete round."""
    read_facts(folder)
    stopped_study(folder, None)
    _carry(kit, patience, lambda operator: folder)


def _carry(kit: Path, patience: float | None, begin: Callable[[Operator], Path]) -> None:
    """Follow the run of the folder that `begin` gives to its end, and show what came out."""
    with _session(kit, patience, print) as operator:
        folder = begin(operator)
        try:
            follow(folder, operator, View(), patience_seconds=patience)
        except KeyboardInterrupt:
            print(f"the federation goes on; look again with: fewjoule federation resume {folder} --kit {operator.kit}")
            raise typer.Exit(130) from None
    _finish(folder)


def _finish(folder: Path) -> None:
    print(traffic_table(folder))
    if (folder / "evaluation.csv").read_text().count("\n") > 1:
        write_report(folder)
        print(f"report: {folder / 'report.html'}")
    print(f"run folder: {folder}")


def traffic_table(folder: Path) -> str:
    """Per method and seed: joules by phase and kind, then kilobytes that the link charges, payload and network."""
    lines = []
    for name, method in Summary.read(folder).methods.items():
        joules = ", ".join(
            f"{phase} {amount.joules:.3g} ({kind})"
            for phase, kinds in method.energy.items()
            for kind, amount in kinds.items()
        )
        kilobytes = {column: f"{amount / 1000:.1f}" for column, amount in method.traffic.items()}
        up, down = (" ".join(kilobytes[f"{of}_{way}"] for of in COUNTS) for way in ("up", "down"))
        lines += [
            f"{name:<16}  {joules}",
            f"{'':<16}  up {up} kB, down {down} kB (charged by the link, payload, over the network)",
        ]
        if method.skipped:
            lines.append(f"{'':<16}  {method.skipped} answers were left out: see skipped.csv")
    return "\n".join(lines)


@app.command()
def status(kit: OperatorKit) -> None:
    """Who is connected and what runs."""
    with _session(kit) as operator:
        connected = operator.agents()
        for name in operator.facts["agents"]:
            print(f"{name}: {'connected' if name in connected else 'away'}")
        running = [job for job in operator.jobs() if job.get("status") == "RUNNING"]
        for job in running:
            answer = operator.progress(job["job_id"]) or {}
            told = describe(answer, len(connected)) if answer.get("progress") else "starting or ending"
            print(f"{job.get('name', job['job_id'])}: {told}")
        if not running:
            print("nothing runs")


@app.command()
def stop(folder: RunFolder, kit: OperatorKit) -> None:
    """Stop a run after the exchange at hand; its state stays, and resume goes on."""
    jobs = read_facts(folder)["jobs"]
    with _session(kit) as operator:
        if not jobs:
            raise InputError(f"{folder} has no job yet; nothing is there to stop.")
        try:
            operator.ask_to_stop(jobs[-1], "stop: asked by the operator")
        except Away as error:
            raise InputError(f"the run of {folder} is not at work now ({error}); nothing is there to stop.") from None
    print("stopping after the exchange at hand")


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for everything.")] = Path("federation-demo"),
) -> None:
    """A whole federation on this machine: a server and three agents, real certificates, one run folder."""
    _finish(run_demo(out, lambda line: print(line, flush=True)))
