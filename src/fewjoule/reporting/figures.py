"""Pictures as files: SVG in the colours of paper, and PNG through vl-convert, which needs no browser and no network."""

import struct
import zlib

from fewjoule.reporting.colours import on_paper, variable

PAPER_FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
PNG_SCALE = 2.0


def on_white(svg: str) -> str:
    """The picture as a file of its own: light colours on their ground, and a font that every system has."""
    head, body = svg.split(">", 1)
    ground = f'<rect width="100%" height="100%" fill="{variable("ground")}"/>'
    font = head.split('font-family="', 1)[1].split('"', 1)[0]
    return on_paper(head.replace(font, PAPER_FONT) + ">" + ground + body)


def as_png(svg: str) -> bytes:
    """Two pixels per point."""
    import vl_convert

    return smaller(vl_convert.svg_to_png(svg, scale=PNG_SCALE))


def smaller(png: bytes) -> bytes:
    """The same picture in about a fifth of the bytes: vl-convert compresses for speed only."""
    chunks, position = [], 8
    while position < len(png):
        (length,) = struct.unpack_from(">I", png, position)
        chunks.append((png[position + 4 : position + 8], png[position + 8 : position + 8 + length]))
        position += 12 + length
    pixels = zlib.decompress(b"".join(body for kind, body in chunks if kind == b"IDAT"))
    before = [chunk for chunk in chunks if chunk[0] not in (b"IDAT", b"IEND")]
    return png[:8] + b"".join(
        png_chunk(kind, body) for kind, body in [*before, (b"IDAT", zlib.compress(pixels, 6)), (b"IEND", b"")]
    )


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
