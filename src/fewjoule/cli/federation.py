"""`fewjoule federation`: the same methods between real machines.

What needs the extra is imported where it is used, so that all other commands work without it. So is what needs JAX:
`status` and `stop` answer at once.
"""

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewjoule.cli import members
from fewjoule.errors import InputError, unknown

if TYPE_CHECKING:
    from fewjoule.federation.carrier.operator import Operator

app = typer.Typer(
    name="federation",
    help="Run methods between real machines (extra: federation).",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Kit = Annotated[Path, typer.Argument(metavar="KIT", help="The site's folder, made by provision.", show_default=False)]
OperatorKit = Annotated[Path, typer.Option("--kit", help="The operator's kit.", show_default=False)]
RunFolder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The run folder.", show_default=False)]
Patience = Annotated[
    float | None, typer.Option(help="Seconds to wait for an absent server or agents; by default forever.")
]
Modules = Annotated[
    list[str] | None,
    typer.Option("--module", metavar="KIND:FILE.py:NAME", help="Your own code that a run may name as its model."),
]
COUNTS = ("charged", "payload", "network")


@app.callback()
def _need_engine() -> None:
    if any(importlib.util.find_spec(name) is None for name in ("grpc", "cryptography")):
        raise InputError("federations need gRPC and cryptography; pip install 'fewjoule[federation]'.")


for command in (members.provision, members.add, members.remove, members.renew, members.members):
    app.command()(command)


@contextmanager
def _session(
    kit: Path, patience: float | None = 0.0, tell: Callable[[str], None] = lambda line: None
) -> Iterator["Operator"]:
    """The operator of this kit, connected to its server while the block runs."""
    from fewjoule.federation.carrier.operator import Operator

    with closing(Operator(kit)) as operator:
        if operator.kit.warning is not None:
            print(operator.kit.warning)
        operator.await_server(tell, patience)
        yield operator


@app.command()
def server(
    kit: Kit,
    metrics: Annotated[
        int | None, typer.Option(help="Also serve Prometheus metrics on this port of 127.0.0.1.", show_default=False)
    ] = None,
    module: Modules = None,
) -> None:
    """Run the server in the foreground; Ctrl-C stops it."""
    from fewjoule.federation.carrier.handshakes import VERBOSITY

    os.environ.update(VERBOSITY)
    from fewjoule.federation.carrier.serve import run_server

    _trust(module)
    raise typer.Exit(run_server(kit, metrics))


@app.command()
def agent(
    kit: Kit,
    data: Annotated[Path, typer.Option(help="This agent's samples: .npz with x, y (x_test, y_test), .csv, .parquet.")],
    model: Annotated[Path | None, typer.Option(help="The model this agent trained already (.safetensors).")] = None,
    device: Annotated[str | None, typer.Option(help="Device profile for modelled energy, if none is measured.")] = None,
    meter: Annotated[
        str | None, typer.Option(help="auto also tries vendors' libraries (zeus); default: Linux's own counters.")
    ] = None,
    consent: Annotated[
        Path | None, typer.Option(help="What this agent consents to: a TOML file by its owner.", show_default=False)
    ] = None,
    module: Modules = None,
) -> None:
    """Run an agent in the foreground; Ctrl-C stops it. Data and model stay on this machine."""
    from fewjoule.energy.metering import METERS
    from fewjoule.federation.carrier.dial import run_agent
    from fewjoule.federation.carrier.site import Site
    from fewjoule.federation.kits import read_kit

    if meter is not None and meter not in METERS:
        raise unknown("meter", meter, METERS)
    _trust(module)
    raise typer.Exit(run_agent(kit, Site(read_kit(kit, "agent").facts.name, data, model, device, meter), consent))


def _trust(modules: list[str] | None) -> None:
    """Run the code that this site's own people named; a run may name it then, and no other."""
    from fewjoule.models.code import trust

    for spec in modules or []:
        trust(spec)


@app.command()
def run(
    study: Annotated[str, typer.Argument(metavar="NAME|STUDY.toml", help="A study file, or sinusoid, mnist.")],
    kit: OperatorKit,
    out: Annotated[str | None, typer.Option(help="Run folder; by default the first free runs/NAME.")] = None,
    patience: Patience = None,
) -> None:
    """Run a study's methods over the federation; ends in the same run folder as a simulated run."""
    from fewjoule.federation.carrier.follow import start_run
    from fewjoule.federation.spec import load_federated_study

    chosen = load_federated_study(study)
    _carry(kit, patience, lambda operator: start_run(chosen, operator, out))


@app.command()
def resume(folder: RunFolder, kit: OperatorKit, patience: Patience = None) -> None:
    """Continue a run that was stopped or interrupted, from its last complete round."""
    from fewjoule.federation.carrier.facts import read_facts
    from fewjoule.studies.parts import stopped_study

    read_facts(folder)
    stopped_study(folder, None)
    _carry(kit, patience, lambda operator: folder)


def _carry(kit: Path, patience: float | None, begin: Callable[["Operator"], Path]) -> None:
    """Follow the run of the folder that `begin` gives to its end, and show what came out."""
    from fewjoule.federation.carrier.follow import follow
    from fewjoule.federation.carrier.live import LiveView
    from fewjoule.federation.carrier.view import View

    with _session(kit, patience, print) as operator:
        folder = begin(operator)
        try:
            with LiveView() if sys.stdout.isatty() else nullcontext(View()) as view:
                follow(folder, operator, view, patience_seconds=patience)
        except KeyboardInterrupt:
            print(f"the federation goes on; look again with: fewjoule federation resume {folder} --kit {kit}")
            raise typer.Exit(130) from None
    _finish(folder)


def _finish(folder: Path) -> None:
    from fewjoule.reporting import write_report

    print(traffic_table(folder))
    if (folder / "evaluation.csv").read_text().count("\n") > 1:
        write_report(folder)
        print(f"report: {folder / 'report.html'}")
    print(f"run folder: {folder}")


def traffic_table(folder: Path) -> str:
    """Per method and seed: joules by phase and kind, then kilobytes that the link charges, payload and network."""
    from fewjoule.reporting.run_folder import Summary

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
    """Show who is connected and what is running."""
    with _session(kit) as operator:
        print(status_lines(operator.status()))


def status_lines(status: dict[str, Any]) -> str:
    """What the server says of itself, for people."""
    from fewjoule.federation.carrier.view import describe

    lines = [f"federation {status['federation']}, fewjoule {status['fewjoule']}, list of members {status['members']}"]
    for name, stream in status["agents"].items():
        minutes = 0 if stream is None else (time.time() - stream["since"]) / 60
        lines.append(
            f"{name}: away" if stream is None else f"{name}: connected for {minutes:.0f} min ({stream['from']})"
        )
    at_work = [job for job in status["jobs"] if job["state"] in ("queued", "running", "waiting")]
    for job in at_work:
        told = describe(job) if job["progress"] else "not begun"
        lines.append(f"job {job['job'][:8]} {job['state']}: {told}")
        lines += [f"  {job['reason']}"] if job["reason"] else []
        lines += [f"  agent {name}: {why}" for name, why in job["progress"].get("waiting", {}).items()]
    if not at_work:
        lines.append("nothing runs")
    lines += [f"warning: {line}" for line in status["warnings"]]
    if status["refused"]:
        lines.append(f"{status['refused']} refused since the server began: see log.jsonl in its kit")
    return "\n".join(lines)


@app.command()
def stop(folder: RunFolder, kit: OperatorKit) -> None:
    """Stop a run after the current exchange; its state is kept, so resume can continue it."""
    from fewjoule.federation.carrier.facts import job_id, read_facts

    job = job_id(read_facts(folder)["specs"])
    with _session(kit) as operator:
        operator.stop(job)
    print("stopping after the current exchange")


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="A new folder for everything.")] = Path("federation-demo"),
    prepare: Annotated[
        str | None, typer.Option(metavar="HOST", help="Only write kits, data and study, for a server of this name.")
    ] = None,
) -> None:
    """A whole federation on this machine: a server and three agents, real certificates, one run folder."""
    from fewjoule.federation.carrier.demo import PORT, run_demo, write_demo

    if prepare is not None:
        write_demo(out, PORT, prepare)
        print(f"wrote {out}: kits, each with its data or study, for a server at {prepare}:{PORT}")
        return
    _finish(run_demo(out, lambda line: print(line, flush=True)))


for registered in app.registered_commands:  # a short help is wrapped, where the whole one would be cut
    registered.short_help = " ".join((registered.callback.__doc__ or "").split()) if registered.callback else None
