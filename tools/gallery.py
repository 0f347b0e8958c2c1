"""Run shipped studies and put their pages into docs/gallery, where the site finds them.

    python tools/gallery.py [--quick] [--pictures] [--study NAME]

The pages are not in the repository: run this before `zensical build`. With --pictures the first screens of each page
become docs/gallery-STUDY.png, by headless Chromium; those are in the repository.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
STUDIES = ("sinusoid", "mnist")
"""Shipped studies whose data comes with the package."""
SIZE = "1200,1145"
"""Pixels of a picture: the page down to the predictions."""


def run(study: str, folder: Path, *, quick: bool) -> Path:
    """Run a study and return its page."""
    options = ["--quick"] if quick else []
    subprocess.run([sys.executable, "-m", "fewjoule", "run", study, *options, "--out", str(folder)], check=True)
    return folder / "report.html"


def take_picture(page: Path, picture: Path, size: str) -> None:
    """The page as people with a light screen see it when it opens."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("--pictures needs Chromium; install it, or leave --pictures out")
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={size}", f"--screenshot={picture}"]
    subprocess.run([browser, *options, page.as_uri()], check=True, capture_output=True)


def make(studies: list[str], docs: Path, *, quick: bool, pictures: bool = False) -> None:
    """The pages of these studies in docs/gallery."""
    (docs / "gallery").mkdir(exist_ok=True)
    for study in studies:
        with tempfile.TemporaryDirectory() as folder:
            page = run(study, Path(folder) / study, quick=quick)
            if pictures:
                take_picture(page, docs / f"gallery-{study}.png", SIZE)
            shutil.copy(page, docs / "gallery" / f"{study}.html")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Put the pages of shipped studies into docs/gallery.")
    parser.add_argument("--study", choices=STUDIES, action="append", help="only this one")
    parser.add_argument("--quick", action="store_true", help="run the quick form of each study")
    parser.add_argument("--pictures", action="store_true", help="write docs/gallery-STUDY.png too")
    given = parser.parse_args()
    make(given.study or list(STUDIES), DOCS, quick=given.quick, pictures=given.pictures)
