"""What a site says: plain lines on the screen, and every event as one JSON line in the kit's log.jsonl.

The file has mode 0600 and rotates. Text of the other side is cleaned before it gets here.
"""

import json
import logging.handlers
import os
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

LARGEST_BYTES = 5_000_000
FILES = 4
_PORT = re.compile(r"(?<=[\d\]]):\d+$")
SILENCE_SECONDS = 60.0  # the same refusal of the same peer is on the screen this often at most


class Log:
    """A site's log. `refusals` counts what was refused since the process began."""

    def __init__(self, kit: Path, show: Callable[[str], None] | None = None) -> None:
        self.refusals = 0
        self._show = show or (lambda line: print(f"{time.strftime('%H:%M:%S')} {line}", flush=True))
        self._file = _PrivateFile(kit / "log.jsonl", maxBytes=LARGEST_BYTES, backupCount=FILES - 1, encoding="utf-8")
        self._last: dict[tuple[str, ...], float] = {}
        self._lock = threading.Lock()

    def say(self, line: str, **facts: Any) -> None:
        """For people, and for the file."""
        self._show(line)
        self.note("said", line=line, **facts)

    def note(self, event: str, **facts: Any) -> None:
        """For the file alone."""
        text = json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": event, **facts})
        self._file.emit(logging.LogRecord("fewjoule", logging.INFO, "", 0, text, None, None))

    def refused(self, who: str, what: str, why: str, times: int = 1) -> None:
        """Somebody was not let in, or something was not accepted, so many times at once."""
        key, now = (_PORT.sub("", who), what, why), time.monotonic()  # a peer's port changes every time
        with self._lock:
            self.refusals += times
            is_new = now - self._last.get(key, -SILENCE_SECONDS) >= SILENCE_SECONDS
            if is_new:
                if len(self._last) > 1000:
                    self._last.clear()
                self._last[key] = now
        self.note("refused", who=who, what=what, why=why, times=times)
        if is_new:
            self._show(f"refused: {f'{times} ' if times > 1 else ''}{what} by {who}: {why}")


class _PrivateFile(logging.handlers.RotatingFileHandler):
    def _open(self) -> TextIO:  # type: ignore[override]
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return os.fdopen(descriptor, "a", encoding="utf-8", errors="replace")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - a full disk must not end a run
        pass
