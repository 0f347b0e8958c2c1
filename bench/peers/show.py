"""What docs/performance.md says and shows of docs/performance.json."""

from pathlib import Path
from typing import Any

from bench.measure import filled
from fewjoule.files import write_atomically

ROOT = Path(__file__).parents[2]
PAGE, PICTURE = ROOT / "docs/performance.md", ROOT / "docs/performance.svg"
Numbers = dict[str, Any]
BUSY = 1.0
"""A load of the machine beyond which a row says so."""


def draw(numbers: Numbers, order: list[str]) -> None:
    """The page's blocks and the picture."""
    text = PAGE.read_text("utf-8")
    write_atomically(PAGE, filled(text, words(numbers)).encode(), force=True)
    write_atomically(PICTURE, picture(numbers, order).encode(), force=True)


def words(numbers: Numbers) -> dict[str, str]:
    """The text of every block, by name."""
    out = {"machine": machine(numbers), "peers": table(numbers), "left out": left_out(numbers)}
    return out | ({"flute": flute(numbers["flute"])} if "flute" in numbers else {})


def machine(numbers: Numbers) -> str:
    here, peaks = numbers["machine"], numbers["peaks"]
    versions: dict[str, str] = {}
    rows = [row for job in numbers["jobs"].values() for row in job["sides"].values()]
    for row in rows:
        versions |= row.get("versions", {})
    dates = sorted({row["date"].partition(" ")[0] for row in rows})
    listed = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    return (
        f"Measured on {' and '.join(dates)}: {here['processor']}, {here['cores']} cores, Python {here['python']}, "
        f"{listed}.\nA large matrix product runs at {peaks['flops'] / 1e9:.0f} Gflop/s, memory is read at "
        f"{peaks['bytes'] / 1e9:.0f} GB/s."
    )


def table(numbers: Numbers) -> str:
    head = [
        "job", "side", "per second", "fewjoule is", "turns", "compile s", "J each, modelled", "peak GB", "of limit",
        "answer off", "measured",
    ]  # fmt: skip
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for name, job in numbers["jobs"].items():
        for side, row in job["sides"].items():
            if "left_out" in row:
                continue
            ours = side == "fewjoule"
            times = "" if ours else f"{row['times']:.2f} times ({row['least']:.2f} to {row['most']:.2f})"
            share = f"{row['per_second'] / job['limit_per_second']:.0%}"
            first = f"{name} ({job['unit']})" if ours else ""
            measured = row["date"] + (", busy" if row["load_before"] > BUSY else "")
            cells = [
                first, f"**{side}**" if ours else side, f"{row['per_second']:.4g}", times, str(row["turns"]),
                f"{row['compile_seconds']:.1f}", f"{row['joules']:.3g}", f"{row['peak_bytes'] / 2**30:.2f}", share,
                "" if ours else f"{row['answer_off']:.1e}", measured,
            ]  # fmt: skip
            rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def left_out(numbers: Numbers) -> str:
    lines = []
    for name, job in numbers["jobs"].items():
        lines += [f"- {name}, {side}: {row['left_out']}" for side, row in job["sides"].items() if "left_out" in row]
        lost = [s for s, row in job["sides"].items() if row.get("times", 2) < 1 and s != "fewjoule"]
        lines += [f"- {name}: {side} is **faster** than fewjoule." for side in lost]
    return "\n".join(lines) or "- Nothing."


def flute(found: Numbers) -> str:
    return (
        f"{found['seconds']:.1f} s from the arrays to the accuracy, compilation included; "
        f"{found['again_seconds']:.2f} s when compiled; accuracy {found['accuracy']:.3f}; {found['date']}, "
        f"{found['cores']} cores. The aim of 5 s was {'met' if found['seconds'] <= 5 else '**missed**'}."
    )


def picture(numbers: Numbers, order: list[str]) -> str:
    """How many times as fast as each peer, on a log axis; colours that light and dark pages can both show."""
    import altair as alt
    import vl_convert

    rows = []
    for name in order:
        for side, row in numbers["jobs"].get(name, {}).get("sides", {}).items():
            if side != "fewjoule" and "times" in row:
                rows.append({"job": name, "peer": side, **{key: row[key] for key in ("times", "least", "most")}})
    grey, base = "#808080", alt.Chart(alt.InlineData(values=rows))
    title = "fewjoule's rate over the peer's, same answer, one run"
    x = alt.X("times:Q", title=title, scale=alt.Scale(type="log", domainMin=0.5))
    y = alt.Y("job:N", title=None, sort=order)
    colour = alt.Color("peer:N", title=None, scale=alt.Scale(scheme="tableau10"))
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        x=x, y=y, color=colour, shape=alt.Shape("peer:N", legend=None)
    )
    spans = base.mark_rule(strokeWidth=2).encode(
        x=alt.X("least:Q", title=title, scale=alt.Scale(type="log", domainMin=0.5)), x2="most:Q", y=y, color=colour
    )
    even = alt.Chart(alt.InlineData(values=[{"times": 1}])).mark_rule(color=grey, strokeDash=[4, 4]).encode(x=x)
    chart = alt.layer(even, spans, points).properties(width=560, height=alt.Step(34), background="transparent")
    styled = (
        chart.configure_axis(labelColor=grey, titleColor=grey, gridColor=grey, gridOpacity=0.25, tickColor=grey)
        .configure_legend(labelColor=grey, orient="bottom")
        .configure_view(stroke=None)
    )
    return str(vl_convert.vegalite_to_svg(styled.to_dict()))
