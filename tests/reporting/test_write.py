"""Figures and page as files: all there, well formed, the same bytes every time."""

import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path

import pytest

from fewjoule.reporting import write_report
from fewjoule.reporting.figures import smaller
from tests.reporting.run_folders import METHODS, make_folder

CHARTS = ("quality", "distribution", "energy", "steps", "spread", "radius", "paths")


@pytest.mark.parametrize("name", CHARTS)
def test_every_figure_is_a_picture_in_both_formats(regression: Path, name: str) -> None:
    root = ET.fromstring((regression / "figures" / f"{name}.svg").read_text(encoding="utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert float(root.attrib["width"]) <= 740
    png = (regression / "figures" / f"{name}.png").read_bytes()
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    assert width == pytest.approx(2 * float(root.attrib["width"]), abs=2)
    assert height == pytest.approx(2 * float(root.attrib["height"]), abs=2)


@pytest.mark.parametrize("name", ["quality", "distribution", "steps"])
def test_every_method_with_a_result_is_named_in_the_figure(regression: Path, name: str) -> None:
    svg = (regression / "figures" / f"{name}.svg").read_text(encoding="utf-8")
    for label, *_, last, _ in METHODS.values():
        assert (f">{label.split(' (')[0]}<" in svg) == (last > 0), label


def test_figures_have_colours_instead_of_variables(regression: Path) -> None:
    for path in (regression / "figures").glob("*.svg"):
        assert "var(--" not in path.read_text(encoding="utf-8"), path


def test_the_same_folder_gives_the_same_bytes(regression: Path, tmp_path: Path) -> None:
    again = make_folder(tmp_path / "again")
    write_report(again)
    made = sorted(p.relative_to(regression) for p in regression.rglob("*") if p.is_file())
    assert made == sorted(p.relative_to(again) for p in again.rglob("*") if p.is_file())
    for path in made:
        assert (regression / path).read_bytes() == (again / path).read_bytes(), path


def test_recompression_keeps_the_picture() -> None:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\x00" + bytes([7 * y % 256]) * 300 for y in range(100))
    stored = zlib.compress(rows, 0)
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 100, 100, 8, 2, 0, 0, 0))
    parts = chunk(b"IDAT", stored[:1000]) + chunk(b"IDAT", stored[1000:])
    small = smaller(b"\x89PNG\r\n\x1a\n" + head + parts + chunk(b"IEND", b""))
    assert len(small) < 2000
    (length,) = struct.unpack(">I", small[33:37])
    assert small[8:33] == head
    assert zlib.decompress(small[41 : 41 + length]) == rows
    assert small.endswith(chunk(b"IEND", b""))


def test_charts_are_imported_only_to_draw() -> None:
    code = (
        "import sys, fewjoule.cli, fewjoule.reporting; print([m for m in ('altair', 'vl_convert') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
