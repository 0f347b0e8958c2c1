"""The documentation site: references are those of the code, pages with output run, everything has a place."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools import gallery, outputs, reference

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("page", reference.PAGES)
def test_a_reference_is_what_the_code_says(page):
    assert (DOCS / "reference" / page).read_text("utf-8") == reference.PAGES[page](), "run python tools/reference.py"


def test_every_key_of_a_study_file_is_explained():
    words = tomllib.loads((DOCS / "reference/study-keys.toml").read_text("utf-8"))
    assert {name: set(keys) for name, keys in words.items()} == {
        name: set(keys) for name, _, keys in reference.tables()
    }


def test_every_page_has_a_place_in_the_navigation():
    named = set(re.findall(r"([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    assert named == {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}


def test_llms_txt_names_pages_that_exist():
    named = re.findall(r"\]\(([\w/-]+)\.html\)", (DOCS / "llms.txt").read_text("utf-8"))
    assert len(named) > 10
    assert [name for name in named if not (DOCS / f"{name}.md").is_file()] == []


def test_the_gallery_shows_what_its_tool_makes():
    page = (DOCS / "gallery.md").read_text("utf-8")
    assert set(re.findall(r"\((gallery/[\w-]+\.html)\)", page)) == {f"gallery/{name}.html" for name in gallery.STUDIES}
    for name in gallery.STUDIES:
        assert f"`fewjoule run {name}`" in page
        assert (DOCS / f"gallery-{name}.png").stat().st_size < 250_000
    assert "/docs/gallery/" in (ROOT / ".gitignore").read_text("utf-8").splitlines()  # its pages are made, not kept


def test_other_outputs_would_be_noticed():
    page = "loss 0.35, 3 agents\n...\ndone\n"
    assert outputs.differences(page, "loss 0.351, 3 agents\nanything\nat all\ndone\n") == []
    assert outputs.differences(page, "loss 0.52, 3 agents\nanything\ndone\n")
    assert outputs.differences(page, "loss 0.35, 3 models\nanything\ndone\n")
    assert outputs.differences(page, "loss 0.35, 3 agents\nanything\n")


@pytest.mark.slow
@pytest.mark.parametrize("page", outputs.PAGES)
def test_a_page_shows_what_its_code_prints(page):
    if "federation" in page:
        pytest.importorskip("grpc", reason="needs the extra: pip install 'fewjoule[federation]'")
    found = outputs.run(page)
    assert len(found) > 1
    assert [line for shown, said in found if shown for line in outputs.differences(shown, said)] == []


@pytest.mark.slow
@pytest.mark.parametrize("studies", [[], ["sinusoid"]])
def test_the_site_builds_strictly(tmp_path, studies):
    pytest.importorskip("zensical", reason="needs the extra: pip install 'fewjoule[docs]'")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(DOCS, tmp_path / "docs", ignore=shutil.ignore_patterns("gallery"))
    gallery.make(studies, tmp_path / "docs", quick=True)
    command = [str(Path(sys.executable).with_name("zensical")), "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in DOCS.rglob("*.md"):
        assert (tmp_path / "site" / page.relative_to(DOCS)).with_suffix(".html").is_file()
    for study in studies:
        live = (tmp_path / "site/gallery" / f"{study}.html").read_text("utf-8")
        assert live == (tmp_path / "docs/gallery" / f"{study}.html").read_text("utf-8")
        assert 'data-part="title"' in live
    assert "https://" not in re.sub(r'href="https://[^"]*"', "", (tmp_path / "site/index.html").read_text("utf-8"))
