"""Run the code of the documentation's pages and write what it prints under it.

    python tools/outputs.py [PAGE ...]            pages of docs/, such as start.md; by default all that show output

A page is one session: its `python` and `sh` blocks run in order, in an empty folder. A `text` block right after one of
them is what it prints. A test runs the pages and compares: words exactly, numbers within three tenths, since another
machine rounds differently.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
PAGES = (
    "start.md",
    "tutorials/paper.md",
    "tutorials/own-data.md",
    "tutorials/radio-budget.md",
    "tutorials/federation.md",
)
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:\n^```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def run(page: str) -> list[tuple[str, str]]:
    """What each block of the page should print, by the page, and what it prints."""
    names: dict[str, object] = {}
    found = []
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for match in BLOCK.finditer((DOCS / page).read_text("utf-8")):
            language, code, shown = match.groups()
            said = _python(code, names, page) if language == "python" else _shell(code)
            found.append((shown or "", said))
    return found


def _python(code: str, names: dict[str, object], page: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, page, "exec"), names)
    return out.getvalue()


def _shell(code: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run(["bash", "-ec", code], env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{code}\n{done.stdout}{done.stderr}")
    return re.sub(r" +$", "", done.stdout, flags=re.MULTILINE)


def differences(shown: str, said: str) -> list[str]:
    """Where what a page shows is not what its code prints; a line "..." stands for any lines."""
    page, printed = shown.splitlines(), _cut(shown, said).splitlines()
    if [_words(line) for line in page] != [_words(line) for line in printed]:
        return [f"the page shows:\n{shown}\nthe code prints:\n{said}"]
    pairs = zip(NUMBER.findall("\n".join(page)), NUMBER.findall("\n".join(printed)), strict=True)
    return [f"the page shows {a}, the code prints {b}" for a, b in pairs if not _near(float(a), float(b))]


def _cut(shown: str, said: str) -> str:
    """What the code prints, with "..." in place of the lines that the page leaves out."""
    page, printed = shown.splitlines(), said.splitlines()
    if "..." not in page:
        return said
    head = page.index("...")
    tail = len(page) - head - 1
    return "\n".join([*printed[:head], "...", *printed[len(printed) - tail :]]) + "\n"


def _words(line: str) -> str:
    return " ".join(NUMBER.sub("0", line).split())


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= 0.3 * max(abs(a), abs(b))


def write(page: str) -> None:
    """Put what the code prints into the page, where it shows output at all."""
    said = iter(run(page))

    def filled(match: re.Match[str]) -> str:
        shown, text = next(said)
        if match[3] is None:
            return match[0]
        return f"```{match[1]}\n{match[2]}```\n\n```text\n{_cut(shown, text)}```\n"

    (DOCS / page).write_text(BLOCK.sub(filled, (DOCS / page).read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    for page in sys.argv[1:] or PAGES:
        write(page)
