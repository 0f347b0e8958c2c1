"""Chart descriptions to SVG and PNG, through vl-convert: no browser, no network."""

import json
import struct
import zlib
from typing import Any

from altair.utils.schemapi import debug_mode

from fewjoule.reporting.axes import LAYOUTS, Layout
from fewjoule.reporting.charts import Chart
from fewjoule.reporting.colours import on_paper, variable
from fewjoule.reporting.datasets import Rows
from fewjoule.reporting.wording import asset

PAPER_FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
CONFIG: dict[str, Any] = json.loads(asset("vega.json"))
"""How all charts look; the page's font is among it."""
PNG_SCALE = 2.0

Vega = dict[str, Any]
Compiled = dict[str, dict[str, Vega]]
"""Charts by name, each by layout."""


def compile_chart(chart: Chart) -> dict[str, Vega]:
    """The chart as Vega in every layout, with variables for colours and without its numbers."""
    import vl_convert

    layouts = {}
    for name, width in LAYOUTS.items():
        with debug_mode(False):  # Altair's own checks take most of the time; the tests run them
            spec = chart.draw(Layout(width)).to_dict(validate=False)
        layouts[name] = vl_convert.vegalite_to_vega(spec | {"config": CONFIG, "description": chart.alt_text})
    return layouts


def draw(vega: Vega, datasets: dict[str, Rows]) -> tuple[bytes, bytes]:
    """SVG and PNG of a compiled chart, in the colours of paper."""
    import vl_convert

    vega = json.loads(
        on_paper(json.dumps(vega | {"background": variable("ground")}).replace(CONFIG["font"], PAPER_FONT))
    )
    for source in vega["data"]:
        if source["name"] in datasets:
            source["values"] = datasets[source["name"]]
    svg = vl_convert.vega_to_svg(vega)
    return svg.encode("utf-8"), smaller(vl_convert.svg_to_png(svg, scale=PNG_SCALE))


def smaller(png: bytes) -> bytes:
    """The same picture in about a fifth of the bytes: vl-convert compresses for speed only."""
    chunks, position = [], 8
    while position < len(png):
        (length,) = struct.unpack_from(">I", png, position)
        chunks.append((png[position + 4 : position + 8], png[position + 8 : position + 8 + length]))
        position += 12 + length
    pixels = zlib.decompress(b"".join(body for kind, body in chunks if kind == b"IDAT"))
    before = [chunk for chunk in chunks if chunk[0] not in (b"IDAT", b"IEND")]
    out = [png[:8]]
    for kind, body in [*before, (b"IDAT", zlib.compress(pixels, 6)), (b"IEND", b"")]:
        out.append(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))
    return b"".join(out)
