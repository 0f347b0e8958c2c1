"""What the methods do on unseen tasks: curves for a regression of one number, query samples for a classification.

From predictions.safetensors to the numbers that page.js shows for any task and method, and to what stands in the page
without a script: the first task. Other regressions have no picture.
"""

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import numpy as np

from fewjoule.energy.show import digits
from fewjoule.reporting.colours import variable
from fewjoule.reporting.figures import png_chunk
from fewjoule.reporting.predictions import Array, Predictions
from fewjoule.reporting.svg import axis_x, axis_y, element, line_path, number_tick, picture, scale_of
from fewjoule.reporting.wording import counted

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 350, 196, 34, 6, 6, 22
LEAST_SIDE, LEAST_LENGTH = 8, 8
"""Of an image in pixels, and of an input that is drawn as a line."""


def of_page(predictions: Predictions) -> dict[str, Any] | None:
    """The numbers for page.js; None where there is nothing to look at."""
    if not predictions.said:
        return None
    about: dict[str, Any] = {"steps": predictions.steps, "tasks": len(predictions.query_x)}
    if predictions.classifies:
        return about | {
            "kind": "classes",
            "pictures": [[as_picture(x) for x in task] for task in predictions.query_x.astype(np.float32)],
            "truth": predictions.query_y.tolist(),
            "said": {name: each.tolist() for name, each in predictions.said.items()},
        }
    if math.prod(predictions.query_x.shape[2:]) != 1 or math.prod(predictions.query_y.shape[2:]) != 1:
        return None
    tasks, queries = predictions.query_x.shape[:2]
    x = predictions.query_x.reshape(tasks, queries).astype(np.float64)
    order = np.argsort(x, axis=1)
    said = {
        name: [[_short(row[o]) for row, o in zip(each.reshape(-1, tasks, queries)[s], order, strict=True)]
               for s in range(len(predictions.steps))]
        for name, each in predictions.said.items()
    }  # fmt: skip
    samples = [
        [
            [float(f"{a:.3g}"), float(f"{b:.3g}")]
            for a, b in zip(xs.ravel(), ys.ravel(), strict=True)
            if math.isfinite(b)
        ]
        for xs, ys in zip(
            predictions.support_x.astype(np.float64), predictions.support_y.astype(np.float64), strict=True
        )
    ]
    truth = predictions.query_y.reshape(tasks, queries)
    reach = float(np.abs(truth).max()) * 1.25 or 1.0
    frame = {"width": WIDTH, "height": HEIGHT, "left": LEFT, "right": RIGHT, "top": TOP, "bottom": BOTTOM}
    return about | {
        "kind": "curves",
        "frame": frame | {"x": [float(x.min()), float(x.max())], "y": [-reach if truth.min() < 0 else 0.0, reach]},
        "x": [_short(row[o]) for row, o in zip(x, order, strict=True)],
        "truth": [_short(row[o]) for row, o in zip(truth, order, strict=True)],
        "samples": samples,
        "said": said,
    }


def curves(shown: dict[str, Any], method: str, words: str) -> str:
    """The first task: the truth, the samples, and the model before and after its fine-tuning."""
    frame = shown["frame"]
    x = scale_of(frame["x"], LEFT, WIDTH - RIGHT, log=False, room=0.0)
    y = scale_of(frame["y"], HEIGHT - BOTTOM, TOP, log=False, room=0.0)
    parts = [axis_y(y, LEFT, WIDTH - RIGHT, number_tick, ""), axis_x(x, TOP, HEIGHT - BOTTOM, number_tick, "")]

    def path(name: str, values: Sequence[float], **style: Any) -> str:
        points = [(x(a), min(max(y(b), -HEIGHT), 2 * HEIGHT)) for a, b in zip(shown["x"][0], values, strict=True)]
        return element("path", d=line_path(points), fill="none", data_curve=name, **style)

    inside = []
    looks = [{"stroke_dasharray": "2 3", "stroke_width": 1.3}, {"stroke_dasharray": "7 3", "stroke_width": 1.3}]
    inside.append(path("truth", shown["truth"][0], stroke=variable("soft"), stroke_width=5, opacity=0.35))
    for i, _ in enumerate(shown["steps"]):
        style = looks[i] if i < len(shown["steps"]) - 1 and i < len(looks) else {"stroke_width": 2.2}
        inside.append(path(str(i), shown["said"][method][i][0], stroke=variable("accent"), **style))
    dots = [element("circle", cx=x(a), cy=y(b), r=2.2, fill=variable("ink")) for a, b in shown["samples"][0]]
    inside.append(element("g", *dots, data_curve="samples"))
    clip = element("svg", *inside, x=0, y=TOP - 4, width=WIDTH, height=HEIGHT - TOP - BOTTOM + 8,
                   viewBox=f"0 {TOP - 4} {WIDTH} {HEIGHT - TOP - BOTTOM + 8}")  # fmt: skip
    return picture(WIDTH, HEIGHT, words, *parts, clip)


def score_words(shown: dict[str, Any], method: str) -> str:
    """How well the method does on the first task after its last step, as page.js says it of any task."""
    now, truth = shown["said"][method][-1][0], shown["truth"][0]
    after = f"after {counted(shown['steps'][-1], 'step')}"
    if shown["kind"] == "classes":
        return f"{sum(a == b for a, b in zip(now, truth, strict=True))} of {len(now)} right {after}"
    loss = math.fsum((a - b) ** 2 for a, b in zip(now, truth, strict=True)) / len(now)
    return f"loss {digits(loss) if loss < 1e6 else 'very large'} {after}"


def as_picture(x: Array) -> str:
    """An input as an image address: a picture if it looks like one, a line if it is long, else its numbers' first."""
    image = _image(x)
    if image is not None:
        return "data:image/png;base64," + base64.b64encode(_png(image)).decode()
    rows = x.reshape(len(x), -1).T if x.ndim == 2 else x.reshape(1, -1)
    if rows.shape[1] < LEAST_LENGTH:
        return ""
    low, high = float(rows.min()), float(rows.max())
    down = 50 - 44 * (rows[:6] - low) / ((high - low) or 1.0)
    across = np.linspace(1, 55, rows.shape[1]).tolist()
    ways = [line_path(list(zip(across, row, strict=True))) for row in down.tolist()]
    lines = [element("path", d=way, fill="none", stroke="#4477cc", stroke_width=1) for way in ways]
    svg = element("svg", *lines, xmlns="http://www.w3.org/2000/svg", viewBox="0 0 56 56")
    return "data:image/svg+xml," + quote(svg)


def _image(x: Array) -> Array | None:
    """Grey or colour bytes [height, width] or [height, width, 3]; None for what is no image.

    A flat input of 0 to 1 is taken for a square image, as MNIST's 784 are 28 x 28.
    """
    if x.ndim == 1 and math.isqrt(len(x)) ** 2 == len(x) and x.min() >= 0 and x.max() <= 1:
        x = x.reshape(math.isqrt(len(x)), -1)
    if x.ndim == 3 and x.shape[-1] == 1:
        x = x[..., 0]
    if x.ndim not in (2, 3) or (x.ndim == 3 and x.shape[-1] != 3):
        return None
    if min(x.shape[:2]) < LEAST_SIDE or max(x.shape[:2]) > 2 * min(x.shape[:2]):
        return None
    low, high = float(x.min()), float(x.max())
    return np.asarray((x - low) / ((high - low) or 1.0) * 255).round().astype(np.uint8)


def _png(image: Array) -> bytes:
    """A small PNG: grey or RGB, eight bits."""
    height, width = image.shape[:2]
    head = struct.pack(">IIBBBBB", width, height, 8, 2 if image.ndim == 3 else 0, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in image)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(kind, body) for kind, body in chunks)


def _short(values: Array) -> list[float]:
    """Three significant digits; what is not finite leaves the picture."""
    return [float(f"{v:.3g}") if math.isfinite(v) else 1e6 for v in values.tolist()]
