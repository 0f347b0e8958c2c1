"""A ledger for people: numbers with SI prefixes, a text table, a page's table, and a chart."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

PREFIXES = {-12: "p", -9: "n", -6: "µ", -3: "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T"}
HEADER = ("method", "phase", "kind", "joules", "time", "bits", "FLOPs")


def si_text(value: float, unit: str) -> str:
    """Three significant digits with an SI prefix, as in `1.49 kJ`; zero is `0 J`."""
    if value == 0:
        return f"0 {unit}"
    rounded = float(f"{value:.2e}")
    power = 3 * math.floor(math.log10(abs(rounded)) / 3 + 1e-12)
    power = min(max(power, -12), 12)
    return f"{digits(rounded / 10.0**power)} {PREFIXES[power]}{unit}"


def digits(value: float) -> str:
    """Three significant digits, zeros kept: `1.50`, `29.1`, `150`, `14,600`, `5.55e-5`; zero is `0`."""
    rounded = float(f"{value:.2e}") if math.isfinite(value) else value
    size = abs(rounded)
    if size == 0 or not math.isfinite(size):
        return f"{value:.0f}"
    if size < 1e-3 or size >= 1e6:
        lead, power = f"{rounded:.2e}".split("e")
        return f"{lead}e{int(power)}"
    return f"{rounded:,.0f}" if size >= 1000 else f"{rounded:#.3g}".rstrip(".")


def bytes_text(bits: float) -> str:
    """`15 bytes`, `359 kB`."""
    size = math.ceil(bits / 8)
    return si_text(size, "B") if size >= 1000 else f"{size} byte" + "s" * (size != 1)


def cells(spent: Iterable[Any]) -> list[tuple[str, ...]]:
    """Rows of a table, one for each `Spent`."""
    out = []
    for s in spent:
        amounts = ((s.joules, "J"), (s.seconds, "s"), (s.bits, "bit"), (s.flops, "FLOP"))
        out.append((s.method, s.phase, s.kind, *("" if v is None else si_text(v, unit) for v, unit in amounts)))
    return out


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 3) -> str:
    """Aligned columns, the first `left` of them to the left."""
    table = [header, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    lines = []
    for row in table:
        padded = [c.ljust(w) if i < left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def chart(spent: Iterable[Any]) -> Any:
    """Joules by method and phase on a logarithmic axis: an Altair chart."""
    import altair as alt

    rows = [{"method": s.method, "phase": s.phase, "kind": s.kind, "joules": s.joules} for s in spent if s.joules > 0]
    return (
        alt.Chart(alt.InlineData(values=rows))
        .mark_point(filled=True, size=90)
        .encode(
            x=alt.X("joules:Q", scale=alt.Scale(type="log")), y=alt.Y("method:N", title=None), color="phase:N",
            shape="kind:N", tooltip=["method:N", "phase:N", "kind:N", "joules:Q"],
        )
    )  # fmt: skip
