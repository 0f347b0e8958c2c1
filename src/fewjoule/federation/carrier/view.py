"""What people see of a run while it goes: plain lines."""

from collections.abc import Callable
from typing import Any


class View:
    """Where a run shows itself; this one is plain lines, and one line per round."""

    def __init__(self, line: Callable[[str], None] = print) -> None:
        self.line = line
        self._last: tuple[Any, ...] = ()
        self._reason = ""

    def progress(self, job: dict[str, Any]) -> None:
        self.pauses(job)
        p = job["progress"]
        if p and (job["finished"], p["exchange"]) != self._last:
            self._last = (job["finished"], p["exchange"])
            self.line(describe(job))

    def pauses(self, job: dict[str, Any]) -> None:
        """A line when a run begins to wait, and for what."""
        late = "; ".join(f"agent {name}: {why}" for name, why in job["progress"].get("waiting", {}).items())
        reason = (job["reason"].removeprefix("paused: ") if job["state"] in ("running", "waiting") else "") or late
        if reason != self._reason:
            self._reason = reason
            if reason:
                self.line(f"paused: {reason}")


def describe(job: dict[str, Any]) -> str:
    """One line: rounds, agents, loss, spread, bytes, joules so far."""
    p = job["progress"]
    joules = ", ".join(f"{amount:.3g} J {kind}" for kind, amount in p["joules"].items()) or "no joules read"
    loss = "-" if p["loss"] is None else f"{p['loss']:.4g}"
    spread = "-" if p["spread"] is None else f"{p['spread']:.3g}"
    connected = f" ({len(job['connected'])} connected)" if "connected" in job else ""
    return (
        f"run {min(job['finished'] + 1, job['runs'])}/{job['runs']}  round {p['round']}/{p['rounds']}  "
        f"agents {p['present']}/{len(job['agents'])}{connected}  loss {loss}  spread {spread}  "
        f"{p['payload_bytes'] / 1000:.1f} kB  {joules}"
    )
