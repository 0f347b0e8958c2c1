"""How far a run is: bars with the remaining time on a terminal, plain lines otherwise."""

import signal
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars


class _Stoppable:
    """Raises KeyboardInterrupt at the next sign of progress after Ctrl-C, should a library have swallowed the first."""

    def __init__(self) -> None:
        self._stopped = False
        signal.signal(signal.SIGINT, self._stop)

    def _stop(self, *_: object) -> None:
        self._stopped = True
        raise KeyboardInterrupt

    def _check(self) -> None:
        if self._stopped:
            raise KeyboardInterrupt


class PlainProgress(_Stoppable):
    """One line per stage, for files and pipes."""

    def __init__(self) -> None:
        super().__init__()
        self._stage, self._began = "", 0.0

    def line(self, text: str) -> None:
        print(text, flush=True)

    def stage(self, name: str, work: float) -> None:
        self._check()
        self.finish()
        self._stage, self._began = name, time.monotonic()

    def advance(self, work: float) -> None:
        self._check()

    def finish(self) -> None:
        if self._stage:
            self.line(f"{self._stage}: done in {time.monotonic() - self._began:.1f} s")
        self._stage = ""


class BarProgress(_Stoppable):
    """One bar per stage with elapsed and remaining time."""

    def __init__(self) -> None:
        super().__init__()
        self._bars = Bars(
            TextColumn("{task.description:<16}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(), console=Console(highlight=False),
        )  # fmt: skip
        self._task: TaskID | None = None
        self._bars.start()

    def line(self, text: str) -> None:
        self._bars.console.print(text, markup=False)

    def stage(self, name: str, work: float) -> None:
        self._check()
        self._task = self._bars.add_task(name, total=work)

    def advance(self, work: float) -> None:
        self._check()
        if self._task is not None:
            self._bars.advance(self._task, work)

    def finish(self) -> None:
        self._bars.stop()


def progress() -> PlainProgress | BarProgress:
    return BarProgress() if sys.stdout.isatty() else PlainProgress()
