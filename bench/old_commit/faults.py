"""Faults of the old code that show in one process: run with the old environment, prints one JSON line each."""

# ruff: noqa: I001 - modules of the old tree
import datetime
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from cryptography import x509

from fewjoule import make_agents, method, mlp, simulate
from fewjoule.federation import wire
from fewjoule.federation.channel import LocalChannel
from fewjoule.federation.drive import Answers, drive
from fewjoule.federation.provision import Federation, provision
from fewjoule.federation.site import read_kit
from tests.federation.bench import NAMES, SHORT, Bench

HIDDEN = 8


def say(attack: str, succeeded: bool | None, how: str) -> None:
    print(json.dumps({"attack": attack, "succeeded": succeeded, "how": how}), flush=True)


def bench(hidden: list[int] | None = None, samples: int = 24) -> Bench:
    rng = np.random.default_rng(3)
    pairs = [(x, a * np.sin(x)) for a in (1, 2, 3) for x in [rng.uniform(-5, 5, (samples, 1)).astype(np.float32)]]
    model, agents = mlp([1, *(hidden or [HIDDEN]), 1]), make_agents(pairs, pairs, names=NAMES)
    local = model.init(jax.random.key(5)) + 0.1 * jax.random.normal(jax.random.key(6), (3, model.size))
    return Bench(model, agents, local, Path(tempfile.mkdtemp()))


class Altered(LocalChannel):
    """North's answers go through `change`."""

    def __init__(self, agents: Any, change: Callable[[wire.Message], wire.Message], made: Bench, run: bytes) -> None:
        super().__init__(agents)
        self.change, self.made, self.run = change, made, run

    def call(self, names: Iterable[str], request: bytes, timeout_seconds: float) -> Answers:
        answers = super().call(names, request, timeout_seconds)
        if "north" in answers.replies and wire.peek(request)[0] == wire.ROUND:
            data = answers.replies["north"]
            contract = self.agents["north"]._contract
            message = wire.decode(data, kind=wire.ROUND, run=self.run, forms=contract.reply_forms(wire.ROUND))
            answers.replies["north"] = wire.encode(self.change(message))
        return answers


def altered(made: Bench, change: Callable[[wire.Message], wire.Message]) -> tuple[Any, Any]:
    spec = made.spec("fedavg")
    server = made.server(spec)
    agents = {name: made.agent(name) for name in NAMES}
    return server, drive(server, Altered(agents, change, made, spec.run))


def poison() -> None:
    _, outcome = altered(bench(), lambda m: m._replace(arrays=tuple(np.full_like(a, 9000) for a in m.arrays)))
    innocent = "north" not in outcome.reason and outcome.status == "stopped"
    say("poison", innocent, f"north's constant 9000 is taken; then the run stops: {outcome.reason[:110]}")
    server, outcome = altered(
        bench(), lambda m: m._replace(reading=m.reading._replace(joules=1e300, kind="measured", source="mine"))
    )
    most = float(np.nanmax(server.table))
    say("joules", most >= 1e300, f"the run is {outcome.status}; its records hold {most:.0e} J 'measured'")


def text() -> None:
    made, lines = bench(), []
    spec = made.spec("fedavg")

    class Says(LocalChannel):
        def call(self, names: Iterable[str], request: bytes, timeout_seconds: float) -> Answers:
            return Answers({}, dict.fromkeys(names, "no\n12:00:00 agent south is gone\x1b[2J"))

    drive(made.server(spec), Says({n: made.agent(n) for n in NAMES}), report=lines.append)
    raw = any("\n" in line and "\x1b" in line for line in lines)
    say("text", raw, "line ends and terminal escapes of an agent's error go to the server's screen as they are")


class Clock:
    """Time that passes only while somebody waits."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def stuck() -> None:
    made, clock = bench(), Clock()
    spec = made.spec("fedavg", policy="skip", quorum=2, deadline_seconds=60.0)

    class Stuck(LocalChannel):
        def call(self, names: Iterable[str], request: bytes, timeout_seconds: float) -> Answers:
            if "north" in names:
                clock.now += timeout_seconds
            return super().call([n for n in names if n != "north"], request, timeout_seconds)

    drive(made.server(spec), Stuck({n: made.agent(n) for n in NAMES}), clock=clock)
    rounds = SHORT["fedavg"]["rounds"]
    say(
        "stuck",
        clock.now >= 60 * rounds,
        f"{rounds} rounds took {clock.now:.0f} s of waiting for one agent, deadline 60 s",
    )


def hang() -> None:
    """Under `wait`, with somebody who asked to stop after the first question."""
    made, asked, lines = bench(), [0], []

    class Hangs(LocalChannel):
        def call(self, names: Iterable[str], request: bytes, timeout_seconds: float) -> Answers:
            asked[0] += 1
            if asked[0] > 100:
                raise TimeoutError
            return super().call([n for n in names if n != "north"], request, timeout_seconds)

    channel = Hangs({n: made.agent(n) for n in NAMES})
    try:
        drive(
            made.server(made.spec("fedavg")),
            channel,
            report=lines.append,
            asked_to_stop=lambda: "stop" * (asked[0] > 1),
        )
        say("hang", False, "the drive ended")
    except TimeoutError:
        named = any("north" in line for line in lines)
        say("hang", not named, f"asked 100 times, `stop` not heard, north {'named' if named else 'never named'}")


def states() -> None:
    made = bench()
    spec = made.spec("meta_backward", settings={"radius": 0.3})
    whole, _ = made.run(spec)
    other = bench()
    server = other.server(spec)
    assert (
        drive(server, other.channel(), asked_to_stop=lambda: "pause" if server.exchange == 3 else "").status == "paused"
    )
    north, south = (other.folder / n / spec.run.hex() / "agent.state" for n in ("north", "south"))
    shutil.copy(north, other.folder / "kept")
    shutil.copy(south, north)
    shutil.copy(other.folder / "kept", south)
    again, outcome = other.run(spec)
    differs = float(np.abs(again.meta - whole.meta).max())
    say(
        "swap",
        outcome.status == "complete" and differs > 0,
        f"the run is {outcome.status}; its model is off by {differs:.2g}",
    )
    third = bench()
    server = third.server(spec)
    drive(server, third.channel(), asked_to_stop=lambda: "pause" if server.exchange == 3 else "")
    agents = third.channel().agents
    data = agents["north"]._data
    agents["north"]._data = data._replace(train=data.train._replace(y=data.train.y + 5))
    outcome = drive(third.server(spec), LocalChannel(agents))
    say(
        "data",
        outcome.status == "complete",
        f"labels of north changed by 5 between two starts: the run is {outcome.status}",
    )


def equality() -> None:
    made = bench([40, 40], 100)
    run = simulate(method("lean", **SHORT["lean"]), made.model, made.agents, made.local, seed=0)
    server, _ = made.run(made.spec("lean", seed=0))
    off = float(np.abs(server.meta - run.meta).max())
    say("coded", off > 1e-5, f"`lean` differs from the simulator by {off:.2g}, where 1e-5 was promised")


def growth() -> None:
    made, moved, sizes = bench(), [100.0], []
    spec = made.spec("fedavg", settings={"rounds": 200})

    def agents() -> LocalChannel:
        return LocalChannel({n: made.agent(n, traffic=lambda: (moved[0], moved[0])) for n in NAMES})

    server = made.server(spec)
    path = made.folder / "server" / spec.run.hex() / "server.state"

    def watch() -> str:
        if server.exchange in (2, 200):
            sizes.append(path.stat().st_size)
        return "pause" if server.exchange == 100 and moved[0] == 100 else ""

    drive(server, agents(), asked_to_stop=watch)
    moved[0] = 5000.0
    server = made.server(spec)
    drive(server, agents(), asked_to_stop=watch)
    say(
        "baseline",
        bool((server.baseline == 5000).all()),
        "a resumed run counts from the new process: its first half is lost",
    )
    say("state", sizes[0] > 3 * 200 * 8, f"each of 200 rounds writes all of server.state, {sizes[-1]} bytes")
    again = [0]

    class Slow(LocalChannel):
        def call(self, names: Iterable[str], request: bytes, timeout_seconds: float) -> Answers:
            again[0] += 1
            return Answers({}, {}) if again[0] % 2 else super().call(names, request, timeout_seconds)

    made = bench()
    server = made.server(made.spec("average"))
    drive(server, Slow({n: made.agent(n) for n in NAMES}))
    say(
        "twice",
        again[0] > len(server.contract.plan),
        f"{len(server.contract.plan)} exchanges with slow agents sent {again[0]} requests",
    )


def kits() -> None:
    folder = Path(tempfile.mkdtemp()) / "kits"
    provision(Federation("test", "localhost", 1234, ("north", "south")), folder)
    root = x509.load_pem_x509_certificate((folder / "server" / "startup" / "rootCA.pem").read_bytes())
    days = (root.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).days
    from fewjoule.cli.federation import app

    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    say("renew", "renew" not in commands, f"the root ends in {days} days; commands: {', '.join(sorted(commands))}")
    (folder / "north" / "startup" / "client.key").chmod(0o644)
    say("mode", read_kit(folder / "north", "agent")["name"] == "north", "a private key of mode 0644 is taken")


if __name__ == "__main__":
    for work in (poison, text, stuck, hang, states, equality, growth, kits):
        try:
            work()
        except Exception as error:  # the others are tried all the same
            print(f"{work.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
