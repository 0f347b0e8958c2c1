"""How far a run is: bars with the remaining time on a terminal, one line per finished stage otherwise."""

import signal
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text


class _TimeLeft(TimeRemainingColumn):
    """The time that a stage still takes; nothing once it is done, or while nobody knows."""

    def render(self, task: Task) -> Text:
        return Text("left ") + super().render(task) if task.time_remaining else Text()


class Progress:
    """Shows a run's stages until `finish`.

    After Ctrl-C the next sign of progress raises KeyboardInterrupt again, should a library have swallowed the first.
    """

    def __init__(self) -> None:
        self._plain = not sys.stdout.isatty()
        self._bars = Bars(
            TextColumn("{task.description:<16}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(), _TimeLeft(), console=Console(highlight=False), disable=self._plain,
        )  # fmt: skip
        self._stage, self._began = "", 0.0
        self._stopped, self._running = False, True
        self._handler_before = signal.signal(signal.SIGINT, self._stop)
        self._bars.start()

    def line(self, text: str) -> None:
        if self._plain:
            print(text, flush=True)
        else:
            self._bars.console.print(text, markup=False)

    def stage(self, name: str, work: float) -> None:
        self._check()
        self._end_stage()
        self._stage, self._began = name, time.monotonic()
        self._task = self._bars.add_task(name, total=work)

    def advance(self, work: float) -> None:
        self._check()
        self._bars.advance(self._task, work)

    def finish(self) -> None:
        """End the last stage and give Ctrl-C back to who had it; a second call does nothing."""
        self._end("done in")

    def stop(self) -> None:
        """The same where the last stage was not completed."""
        self._end("stopped after")

    def _end(self, how: str) -> None:
        self._end_stage(how)
        self._bars.stop()
        if self._running:
            self._running = False
            signal.signal(signal.SIGINT, self._handler_before)

    def _end_stage(self, how: str = "done in") -> None:
        if self._stage and self._plain:
            self.line(f"{self._stage}: {how} {time.monotonic() - self._began:.1f} s")
        self._stage = ""

    def _stop(self, *_: object) -> None:
        self._stopped = True
        raise KeyboardInterrupt

    def _check(self) -> None:
        if self._stopped:
            raise KeyboardInterrupt
