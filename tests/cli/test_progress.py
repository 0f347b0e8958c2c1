"""Progress as a run shows it: lines in a pipe, bars on a terminal, and Ctrl-C given back at the end."""

import io
import signal

import pytest

from fewjoule.cli.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(progress):
    progress.line("data: [made up] :x: " + "long " * 30)
    progress.stage("one", 2)
    progress.advance(1)
    progress.advance(1)
    progress.stage("two", 0)
    progress.finish()
    progress.finish()


def test_lines_in_a_pipe(capsys):
    run(Progress())
    first, *stages = capsys.readouterr().out.splitlines()
    assert first == "data: [made up] :x: " + "long " * 30
    assert [line.partition(" in ")[0] for line in stages] == ["one: done", "two: done"]


def test_a_finished_bar_has_no_time_left(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    run(Progress())
    screen = terminal.getvalue()
    last = screen[screen.rindex("one  ") :]
    assert "100 %" in last
    assert "left" not in last


def test_ctrl_c_is_raised_again_where_it_was_swallowed_and_given_back_at_the_end(capsys):
    before, progress = signal.getsignal(signal.SIGINT), Progress()
    progress.stage("one", 1)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        progress.advance(1)
    progress.stop()
    assert capsys.readouterr().out.startswith("one: stopped after 0.")  # it was not done
    assert signal.getsignal(signal.SIGINT) is before
    progress.finish()
