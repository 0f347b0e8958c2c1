"""What the server believes of an agent: texts, readings, and messages that are of the size of everybody's.

A single message is checked when it comes. Only beside the others does it show whether one agent wants to move the mean
by itself: that is judged when all answers are there, before any is used, so that whoever sent it is named.
"""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from fewjoule.federation.wire import AgentReport, MessageError

LONGEST_TEXT = 300
MOST_WATTS = 20_000.0
"""Of one agent's machine, a server full of accelerators included."""
MOST_SECONDS = 90 * 86_400.0
MOST_BYTES = 2.0**50
MOST_SAMPLES = 1e9
MEDIAN_NEEDS = 3
"""Answers; the median of fewer says nothing about one of them."""
_ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?|[@-Z\\^_])")


def clean(text: str, longest: int = LONGEST_TEXT) -> str:
    """A text of the other side as one short line: no line ends, no terminal escapes, nothing that does not print."""
    plain = _ESCAPES.sub("", text[: 4 * longest])
    line = " ".join("".join(c if c.isprintable() else " " for c in plain).split())
    return line if len(line) <= longest else line[: longest - 3] + "..."


def check_reading(report: AgentReport, message_bytes: int) -> None:
    """Refuse joules, seconds and bytes that no machine can have used for a message of this length."""
    bounds = {
        "seconds": MOST_SECONDS,
        "joules": MOST_WATTS * (MOST_SECONDS if report.kind == "analytic" else report.seconds),
        "bytes_sent": MOST_BYTES,
        "bytes_received": MOST_BYTES,
        "charged_bytes": message_bytes,
        "samples": MOST_SAMPLES,
    }
    for name, most in bounds.items():
        value = getattr(report, name)
        if value > most:
            watts = f" ({MOST_WATTS:g} W at most)" if name == "joules" else ""
            raise MessageError(f"its reading of {name}, {value:.3g}, is above any plausible one, {most:.3g}{watts}.")


def outliers(
    messages: Mapping[str, Sequence[np.ndarray]], known: np.ndarray, largest_ratio: float, *, models: bool
) -> dict[str, str]:
    """Agents whose message is far out of proportion, and why. `known` is the model that all of them started from.

    A size is a root mean square: of the difference from `known` where the messages are `models`, else of the message.
    With three answers or more, a message is out of proportion where its size is above that of `known` and above
    `largest_ratio` times the median of all sizes. With fewer, a model is where it is above `largest_ratio` times the
    size of `known`. Numbers beside a vector are squares of lengths, so the ratio is squared for them.
    """
    found: dict[str, str] = {}
    own = _size(known)
    for i in range(max((len(parts) for parts in messages.values()), default=0)):
        sizes = {name: _size(parts[i] - known if models and i == 0 else parts[i]) for name, parts in messages.items()}
        is_number = next(iter(messages.values()))[i].ndim == 0
        ratio, least = (largest_ratio**2, own**2 * known.size) if is_number else (largest_ratio, own)
        if len(sizes) >= MEDIAN_NEEDS:
            middle = float(np.median(list(sizes.values())))
            limit, beside = max(least, ratio * middle), f"the agents' median is {middle:.3g}"
        elif models and i == 0 and own > 0:
            limit, beside = ratio * own, f"that of the broadcast is {own:.3g}"
        else:
            continue
        for name, size in sizes.items():
            if size > limit:
                found.setdefault(name, f"the size of its message, {size:.3g}, is above {limit:.3g}; {beside}.")
    return found


def _size(array: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(array, dtype=np.float64))))
