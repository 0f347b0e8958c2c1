"""Chart descriptions to SVG and PNG, through vl-convert: no browser, no network."""

import json
import struct
import zlib
from typing import Any

from fewjoule.report.charts import Chart, Layout
from fewjoule.report.colours import on_paper, variable
from fewjoule.report.datasets import Rows

FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
PNG_SCALE = 2.0

CONFIG: dict[str, Any] = {
    "background": variable("ground"),
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "labelColor": variable("soft"),
        "titleColor": variable("soft"),
        "titleFontWeight": "normal",
        "titleFontSize": 11,
        "labelFontSize": 11,
        "gridColor": variable("line"),
        "domainColor": variable("line"),
        "tickColor": variable("line"),
    },
    "legend": {
        "labelColor": variable("ink"),
        "titleColor": variable("soft"),
        "titleFontWeight": "normal",
        "labelFontSize": 11,
        "titleFontSize": 11,
        "labelLimit": 220,
        "symbolSize": 90,
    },
    "header": {"labelColor": variable("ink"), "labelFontSize": 12, "labelFontWeight": "bold", "labelAnchor": "start"},
    "text": {"color": variable("ink")},
}


def compiled(chart: Chart, layout: Layout, config: dict[str, Any] | None = None) -> dict[str, Any]:
    """The chart as Vega, with variables for colours and without its numbers."""
    import vl_convert

    spec = chart.draw(layout).to_dict()
    spec |= {"config": CONFIG | (config or {}), "description": chart.alt_text}
    return vl_convert.vegalite_to_vega(spec)


def draw(vega: dict[str, Any], datasets: dict[str, Rows]) -> tuple[bytes, bytes]:
    """SVG and PNG of a compiled chart, in the colours of paper."""
    import vl_convert

    vega = json.loads(on_paper(json.dumps(vega)))
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
