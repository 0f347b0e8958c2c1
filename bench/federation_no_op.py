"""A job that carries bytes both ways and does nothing with them: what the engine alone costs."""

import time

from nvflare.collab import collab

from fewjoule.federation.nvflare.site import say


class NoOpAgent:
    """Answers at once."""

    def __init__(self, size: int) -> None:
        self._answer = bytes(size)

    @collab.publish
    def handle(self, request: bytes) -> bytes:
        return self._answer


class NoOpServer:
    """Asks all agents, `rounds` times."""

    def __init__(self, rounds: int, size: int) -> None:
        self._rounds, self._request = rounds, bytes(size)

    @collab.main
    def run(self) -> None:
        began = time.perf_counter()
        for _ in range(self._rounds):
            results = collab.clients(timeout=60.0).handle(self._request)
            assert len(results) == len(collab.clients)
            now = time.perf_counter()
            say(f"no-op round {now - began:.6f} s")
            began = now
