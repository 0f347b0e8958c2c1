"""The README is executable: its snippets and commands run, its links and extras exist."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text("utf-8")


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands():
    lines = [line.partition("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [command.strip() for line in lines for command in line.split("&&") if command.strip()]


@pytest.mark.slow
def test_the_snippets_run(capsys):
    assert blocks("python")
    for snippet in blocks("python"):
        exec(compile(snippet, "README.md", "exec"), {})
    said = capsys.readouterr().out
    assert "10:" in said
    assert "uplink" in said  # the line that prints joules
    assert "analytic" in said


def test_the_extras_named_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named = re.findall(r"\.\[([\w,]+)\]", README)
    assert "test" in named
    for group in named:
        assert set(group.split(",")) <= set(extras)


def test_the_links_lead_somewhere():
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert len(targets) > 10
    assert [t for t in targets if not (ROOT / t).is_file()] == []


def test_ci_runs_the_readmes_own_set_up_and_test_commands():
    script = (ROOT / ".ci/run").read_text("utf-8")
    for command in commands():
        if command.startswith("pip") and "test" in command:
            assert command.replace("pip install", "pip install -q") in script
    assert "pytest" in commands()
    assert "\npytest\n" in script


def test_the_output_shown_is_that_of_the_page_whose_code_is_run():
    start = (ROOT / "docs/start.md").read_text("utf-8")
    (shown,) = blocks("text")
    assert f"```text\n{shown}```" in start  # tests/test_site.py runs the commands of start.md
    assert "fewjoule run sinusoid --quick" in commands()


@pytest.mark.slow
@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("fewjoule")])
def test_the_commands_run(command, tmp_path):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    if command.startswith("fewjoule run"):
        (folder,) = (tmp_path / "runs").iterdir()
        assert (folder / "report.html").stat().st_size > 100_000


def drawn(metric):
    """Energy and quality of the labelled points of one panel of the README's picture."""
    text = (ROOT / "docs/quality.svg").read_text("utf-8")
    found = re.findall(rf"arithmetic: ([\d.]+); {metric} after 10 steps: ([\d.]+); [^\"]*label: ([^\"]+)\"", text)
    return {label: (float(joules), float(quality)) for joules, quality, label in found}


def test_trial_9_the_words_say_what_the_picture_shows():
    said = " ".join(README.split())
    sinusoid, mnist = drawn("median loss"), drawn("mean accuracy")
    ratio, gain = float.__truediv__, float.__sub__
    paper = "Meta-Backward, the paper's"
    for text, panel, name, of in (
        (
            r"has ([\d.]+) of Meta-Backward's loss at ([\d,]+) times less energy",
            sinusoid,
            "lean, match",
            float.__truediv__,
        ),
        (r"and ([\d.]+) of it at ([\d,]+) times less", sinusoid, "lean, better", ratio),
        (r"has ([\d.]+) more accuracy at ([\d,]+) times less energy", mnist, "lean, match", gain),
        (r"and ([\d.]+) more at ([\d,]+) times less", mnist, "lean, better", gain),
    ):
        quality, times = re.search(text, said).groups()
        assert float(quality) == pytest.approx(of(panel[name][1], panel[paper][1]), abs=0.006)
        assert float(times.replace(",", "")) == pytest.approx(panel[paper][0] / panel[name][0], rel=0.01)
