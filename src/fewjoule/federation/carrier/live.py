"""A run on a terminal: one picture that changes in place, and lines above it for what happens only once."""

from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fewjoule.federation.carrier.view import View

BAR_WIDTH = 40


class LiveView(View):
    """The view of a terminal, for use in a `with` block."""

    def __init__(self, console: Console | None = None) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        super().__init__(lambda line: self._live.console.print(Text(line)))

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def progress(self, job: dict[str, Any]) -> None:
        self.pauses(job)
        if job["progress"]:
            self._live.update(picture(job))


def picture(job: dict[str, Any]) -> RenderableType:
    """Rounds, loss, bytes and joules of the run at hand, and every agent with what is known of it."""
    p = job["progress"]
    rounds = Table.grid(padding=(0, 2))
    rounds.add_row(
        Text(f"run {min(job['finished'] + 1, job['runs'])}/{job['runs']}"),
        ProgressBar(total=max(p["rounds"], 1), completed=p["round"] if p["rounds"] else 1, width=BAR_WIDTH),
        Text(f"round {p['round']}/{p['rounds']}"),
    )
    known = {"loss": p["loss"], "spread": p["spread"]}
    facts = [f"{name} {value:.4g}" for name, value in known.items() if value is not None]
    facts += [f"{p['payload_bytes'] / 1000:.1f} kB", *(f"{j:.3g} J {kind}" for kind, j in p["joules"].items())]
    agents = Table.grid(padding=(0, 2))
    connected, late = set(job.get("connected", ())), p.get("waiting", {})
    for name in job["agents"]:
        word, style = ("connected", "green") if name in connected else ("away", "red")
        agents.add_row(Text(name), Text(word, style), Text(late.get(name) or job["gone"].get(name, "")))
    return Group(rounds, Text("  ".join(facts)), agents)
