"""What the terminal says at the end of a run: the page's three answers, in 80 columns, and without colours if asked."""

import io
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fewjoule._version import __version__
from fewjoule.cli import app, show_warnings_once
from fewjoule.cli.progress import Progress
from fewjoule.cli.run import read_seeds
from fewjoule.cli.screen import show_answers, show_summary
from fewjoule.energy import Ledger
from fewjoule.energy.ledger import TRAINING
from fewjoule.errors import InputError
from fewjoule.files import NO_CACHE
from fewjoule.reporting import write_report
from fewjoule.reporting.wording import joules_text
from tests.reporting.run_folders import METHODS, make_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("terminal") / "run", tasks=5, seeds=3)


def test_trial_24_a_run_ends_with_the_page_s_answers_in_80_columns(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    show_summary(folder)
    show_answers(folder)
    said = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in said[:-1])
    *_, place = said
    assert place == f"report: {folder / 'report.html'}"
    page = write_report(folder).read_text(encoding="utf-8")
    cards = re.findall(r'<article class="card".*?</article>', page, re.DOTALL)
    assert 1 <= len(cards) <= 3
    said = said[said.index("") + 1 : -1]
    for card in cards:
        title, *words = (
            re.search(rf'data-part="{part}">(.*?)<', card)[1] for part in ("title", "label", "quality", "joules")
        )
        heading, answer = said.pop(0).split(":", 1)
        assert heading == title
        assert (answer or said.pop(0)).strip().startswith(", ".join(words))
    assert said == []


def test_trial_24_a_server_s_column_fits_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    methods = {"maml": ("a method " * 12, *METHODS["maml"][1:]), "random": METHODS["random"]}
    folder = make_folder(tmp_path / "run", methods=methods, tasks=5, metric="accuracy")
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    summary["methods"]["maml"]["energy"]["server"] = {"modelled": {"joules": 1.2345e-7}}
    summary["methods"]["random"]["remarks"] = ["worse than a constant: " + "a long remark " * 9 + "is wrapped"]
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    show_summary(folder)
    said = capsys.readouterr().out.splitlines()
    assert any("server" in line for line in said)
    assert said[-1].endswith("is wrapped")
    assert all(len(line) <= 80 for line in said)


@pytest.mark.parametrize("words", [(), ("run",), ("federation",)])
def test_help_is_plain_and_whole(words: tuple[str, ...]) -> None:
    said = CliRunner().invoke(app, [*words, "--help"], terminal_width=80).output
    assert "--help  " in said
    assert "<bool>" not in said  # a flag takes no value
    assert "..." not in said.replace("[ARGS]...", "")  # no line is cut
    assert all(len(line) <= 80 for line in said.splitlines())


def test_the_terminal_s_joules_are_the_ledger_s(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_summary(folder)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  MAML")]
    ledger = Ledger.from_csv(folder / "energy.csv")
    assert joules_text(ledger.total(method="maml", phase=TRAINING, mix_kinds=True) / 3) in line
    assert METHODS["maml"][0] == line.split()[0]


def test_trial_24_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    from fewjoule.cli import app

    with pytest.raises(SystemExit) as ended:
        app(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"fewjoule {__version__}\n"


def test_a_warning_is_one_line_and_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("warnings.showwarning", warnings.showwarning)  # put back afterwards
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        show_warnings_once()
        for _ in range(2):
            warnings.warn("dropout is left out: 0.3 in drop.", UserWarning, stacklevel=2)
        for program in ("jit_stage", "jit_loss"):
            warnings.warn(f"Error writing persistent compilation cache entry for '{program}': full", stacklevel=2)
    said = "fewjoule: warning: dropout is left out: 0.3 in drop.\n", f"fewjoule: warning: {NO_CACHE}\n"
    assert capsys.readouterr().err == "".join(said)


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_one_warning(tmp_path: Path) -> None:
    """As a home that is read-only; a file stands in its place, since root may write everywhere."""
    (tmp_path / "cache").write_text("a file where the folder should be")
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "a.csv").write_text("x,y\n0,0.1\n1,1.2\n2,0.3\n3,1.4\n")
    command = "train agents --model mlp:1-4-1 --target y --method average --local-steps 3 -o model"
    environment = {**os.environ, "FEWJOULE_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-m", "fewjoule", *command.split()],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stderr.splitlines() if "warning" in line] == [f"fewjoule: warning: {NO_CACHE}"]


@pytest.mark.parametrize(("text", "seeds"), [("2", [0, 1]), ("0,3,7", [0, 3, 7]), ("3,", [3]), ("0,", [0])])
def test_seeds_are_a_number_or_a_list(text: str, seeds: list[int]) -> None:
    assert read_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", ",", "a", "1,,2", "0", "1.5"])
def test_wrong_seeds_are_explained(text: str) -> None:
    with pytest.raises(InputError, match="--seeds"):
        read_seeds(text)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("plain", [False, True])
def test_no_color_is_heeded(monkeypatch: pytest.MonkeyPatch, plain: bool) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if plain:
        monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stdout", screen := Terminal())
    progress = Progress()
    progress.stage("one", 1)
    progress.advance(1)
    progress.finish()
    coloured = re.search(r"\x1b\[[0-9;]*(3[0-7]|38;5|9[0-7])[0-9;]*m", screen.getvalue())
    assert (coloured is None) == plain
    assert screen.getvalue().endswith("\x1b[?25h")  # the cursor is back, on a line of its own
    assert "\n" in screen.getvalue()[-12:]
