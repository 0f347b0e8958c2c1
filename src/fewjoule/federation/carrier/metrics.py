"""Numbers for a monitoring system, in Prometheus' text form, on this machine alone and only where asked for."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fewjoule.errors import InputError


def render(status: dict[str, Any]) -> str:
    """What `Desk.status` says, as metrics; sums are over the jobs since the server began."""
    runs = [run for job in status["jobs"] for run in (job["before"], job["progress"]) if run]
    joules: dict[str, float] = {}
    for run in runs:
        for kind, amount in run["joules"].items():
            joules[kind] = joules.get(kind, 0.0) + amount
    at_work = [job for job in status["jobs"] if job["state"] in ("running", "waiting")]
    lines = {
        "connected_agents": ("gauge", {"": sum(agent is not None for agent in status["agents"].values())}),
        "jobs": ("gauge", {f'{{state="{s}"}}': sum(j["state"] == s for j in status["jobs"]) for s in STATES}),
        "round": ("gauge", {"": at_work[0]["progress"].get("round", 0) if at_work else 0}),
        "present_agents": ("gauge", {"": at_work[0]["progress"].get("present", 0) if at_work else 0}),
        "payload_bytes_total": ("counter", {"": sum(run["payload_bytes"] for run in runs)}),
        "joules_total": ("counter", {f'{{kind="{kind}"}}': amount for kind, amount in sorted(joules.items())}),
        "refused_total": ("counter", {"": status["refused"]}),
        "certificate_ends_timestamp_seconds": (
            "gauge",
            {f'{{name="{name}"}}': ends for name, ends in status["certificates"].items()},
        ),
        "last_exchange_timestamp_seconds": ("gauge", {"": status["last_exchange"]}),
    }
    text = [
        line
        for name, (kind, values) in lines.items()
        for line in (f"# TYPE fewjoule_{name} {kind}", *(f"fewjoule_{name}{label} {v}" for label, v in values.items()))
    ]
    return "\n".join(text) + "\n"


STATES = ("queued", "running", "waiting", "complete", "stopped")


@contextlib.contextmanager
def serve_metrics(port: int, status: Callable[[], dict[str, Any]]) -> Iterator[int]:
    """Answer GET /metrics on 127.0.0.1 while the block runs; the port, a free one for 0."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 5.0

        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404)
                return
            body = render(status()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise InputError(f"--metrics {port}: the port cannot be had ({error.strerror}); choose another one.") from None
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
