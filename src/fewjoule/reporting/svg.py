"""Pictures as SVG text: elements, scales with their ticks, axes, and labels that do not cover each other.

Colours are CSS variables, so that a picture in the page follows light and dark; `colours.on_paper` fixes them for a
file. page.js draws the two pictures that follow the link by the same rules; a test compares the places.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from fewjoule.energy.show import PREFIXES
from fewjoule.reporting.colours import variable

CHARACTER = 7.2
NARROW, BROAD = " ,.:;'()-fijlrtI", "MWmw"
"""Characters of 11 pixels: most are as wide as `CHARACTER` or a little less, some are half or half as wide again."""
LINE = 13
SHAPES = {
    "circle": "M5,0A5,5 0 1 1 -5,0A5,5 0 1 1 5,0Z",
    "square": "M-4.5,-4.5H4.5V4.5H-4.5Z",
    "diamond": "M0,-6.5L5.5,0L0,6.5L-5.5,0Z",
    "triangle-up": "M0,-6L5.5,4.5H-5.5Z",
    "triangle-down": "M0,6L5.5,-4.5H-5.5Z",
    "triangle-right": "M6,0L-4.5,5.5V-5.5Z",
    "cross": "M-2,-6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z",
}


class Place(NamedTuple):
    """Where a label stands: `x` of its near end, `y` of its middle; `left` of its point or right of it."""

    x: float
    y: float
    left: bool


def element(name: str, *children: str, **attributes: Any) -> str:
    """An element; `stroke_width` is the attribute stroke-width, `class_` is class."""
    said = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(short(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{said}>{''.join(children)}</{name}>" if children else f"<{name}{said}/>"


def short(value: Any) -> str:
    """Pixels to a tenth; texts as they are."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def text(x: float, y: float, words: str, *, size: int = 11, fill: str = "ink", **attributes: Any) -> str:
    return element("text", escape(words), x=float(x), y=float(y), font_size=size, fill=variable(fill), **attributes)


def picture(width: float, height: float, alt_text: str, *parts: str, **attributes: Any) -> str:
    """A whole SVG that says what it shows."""
    return element(
        "svg", element("title", escape(alt_text)), *parts, xmlns="http://www.w3.org/2000/svg", width=round(width),
        height=round(height), viewBox=f"0 0 {round(width)} {round(height)}", role="img",
        font_family="system-ui, -apple-system, Segoe UI, Liberation Sans, Arial, sans-serif", **attributes,
    )  # fmt: skip


class Scale(NamedTuple):
    """Values from `low` to `high` to pixels from `start` to `end`, plain or logarithmic."""

    low: float
    high: float
    start: float
    end: float
    log: bool = True

    def __call__(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        at = math.log(value) if self.log else value
        return self.start + (at - low) / (high - low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        return log_ticks(self.low, self.high) if self.log else plain_ticks(self.low, self.high)


def scale_of(values: Iterable[float], start: float, end: float, *, log: bool = True, room: float = 0.05) -> Scale:
    """A scale that holds the values with a little `room` (a share of the whole) at both ends."""
    found = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [1.0]
    low, high = min(found), max(found)
    if log:
        factor = max((high / low) ** room, 1.02) if high > low else 2.0
        return Scale(low / factor, high * factor, start, end, log)
    gap = (high - low) * room or 0.5
    return Scale(low - gap, high + gap, start, end, log)


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; 2 and 5 times them below two and a half decades, all below one; fewer where there are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = math.log10(high / low)
    leads = range(1, 10) if decades < 0.9 else (1, 2, 5) if decades < 2.5 else (1,)
    every = max(1, math.ceil(decades / 7))
    found = [lead * 10.0**power for power in range(first, last + 1, every) for lead in leads]
    return [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]


def plain_ticks(low: float, high: float) -> list[float]:
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * lead for lead in (1, 2, 5, 10) if power * lead >= raw)
    return [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def joules_tick(value: float) -> str:
    """`100 mJ`, `2 kJ`."""
    power = min(max(3 * math.floor(math.log10(value) / 3 + 1e-9), -12), 12)
    return f"{value / 10.0**power:.3g} {PREFIXES[power]}J"


def number_tick(value: float) -> str:
    """`0.1`, `20`, `1,000`, `1e-5`."""
    size = abs(value)
    if size and not 1e-3 <= size < 1e6:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:,.0f}" if size >= 1000 else f"{value:.3g}"


def axis_x(scale: Scale, top: float, bottom: float, words: Callable[[float], str], title: str) -> str:
    parts = []
    for value in scale.ticks():
        at = scale(value)
        parts.append(element("line", x1=at, x2=at, y1=top, y2=bottom, stroke=variable("line")))
        parts.append(text(at, bottom + 14, words(value), fill="soft", text_anchor="middle"))
    end = max(scale.start, scale.end)
    parts.append(text(end, bottom + 30, title, fill="soft", text_anchor="end"))
    return "".join(parts)


def axis_y(scale: Scale, left: float, right: float, words: Callable[[float], str], title: str) -> str:
    parts = []
    for value in scale.ticks():
        at = scale(value)
        parts.append(element("line", x1=left, x2=right, y1=at, y2=at, stroke=variable("line")))
        parts.append(text(left - 5, at + 4, words(value), fill="soft", text_anchor="end"))
    parts.append(text(2, min(scale.start, scale.end) - 7, title, fill="soft"))
    return "".join(parts)


def line_path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)


def room_of(label: str) -> float:
    """Pixels that a label takes."""
    return CHARACTER * sum(0.7 if c in NARROW else 1.4 if c in BROAD else 1.0 for c in label)


def placed(
    points: Sequence[tuple[float, float, str]], right: float, top: float, bottom: float, left: float = math.inf
) -> list[Place | None]:
    """Places for the labels of points (x, y, label), from the top down, each as near to its point as others let it.

    A label stands right of its point or, where it is nearer there, left of it; between `left` and `right`, on no other
    label and no marker. An empty label, or one for which there is no room, has no place.
    """
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y, _ in points]
    found: dict[int, Place | None] = dict.fromkeys(range(len(points)))
    for i in sorted(range(len(points)), key=lambda i: (points[i][1], points[i][0], points[i][2])):
        x, y, label = points[i]
        if not label:
            continue
        wide = room_of(label)
        sides = [(x + 10, x + 10, x + 10 + wide)] * (x + 10 + wide <= right)
        sides += [(x - 10, x - 10 - wide, x - 10)] * (x - 10 - wide >= left or not sides)
        for step in range(2 * math.ceil((bottom - top) / 3)):
            at = y + (step + 1) // 2 * (3 if step % 2 else -3)
            boxes = [(near, (start, at - LINE / 2, end, at + LINE / 2)) for near, start, end in sides]
            free = [(near, box) for near, box in boxes if not any(_overlap(box, other) for other in taken)]
            if top <= at - LINE / 2 and at + LINE / 2 <= bottom and free:
                near, box = free[0]
                taken.append(box)
                found[i] = Place(near, at, near < x)
                break
    return [found[i] for i in range(len(points))]


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def in_column(heights: Sequence[float], top: float, bottom: float) -> list[float]:
    """Heights for labels in one column, in the order of their points: a line apart, or less where there is no room."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    gap = min(LINE, (bottom - top - LINE) / max(len(order) - 1, 1))
    down, up = dict(enumerate(heights)), dict(enumerate(heights))
    for place, i in enumerate(order):  # first pushed down, with room below for those that follow
        least = top + LINE / 2 if place == 0 else down[order[place - 1]] + gap
        down[i] = min(max(heights[i], least), bottom - LINE / 2 - gap * (len(order) - 1 - place))
    for place, i in reversed(list(enumerate(order))):  # then pushed up; half of each keeps a crowd around its points
        most = bottom - LINE / 2 if place == len(order) - 1 else up[order[place + 1]] - gap
        up[i] = max(min(heights[i], most), top + LINE / 2 + gap * place)
    return [(down[i] + up[i]) / 2 for i in range(len(heights))]


def label_of(x: float, y: float, place: Place | None, words: str, **attributes: Any) -> str:
    """A label with a line to its point where it had to move away; nothing where it has no place."""
    if place is None:
        return ""
    anchor = "end" if place.left else "start"
    halo: dict[str, Any] = {
        "paint_order": "stroke",
        "stroke": variable("ground"),
        "stroke_width": 5,
        "stroke_linejoin": "round",
    }
    said = text(place.x, place.y + 4, words, text_anchor=anchor, **halo, **attributes)
    if abs(place.y - y) < 5:
        return said
    ends = {"x1": x, "y1": y, "x2": place.x + (2.0 if place.left else -2.0), "y2": place.y}
    return element("line", **ends, stroke=variable("soft"), stroke_width=0.7) + said
