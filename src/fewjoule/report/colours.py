"""Families of methods and the colours of the report, in light and in dark.

Twenty methods cannot have twenty colours that people tell apart, so a colour means a family; within a family the dash
of a line or the label beside a point says which method it is. Charts name a colour as a CSS variable, `var(--imaml)`:
the page resolves it for light and dark, `on_paper` for figures. Hues were chosen so that the nearest pair stays apart
for protan, deutan and tritan viewers; a test holds them to it.
"""

import re
from typing import NamedTuple


class Family(NamedTuple):
    """A colour by its name in `COLOURS`, the shape of its points, and the registered names of its methods."""

    colour: str
    shape: str
    methods: tuple[str, ...] = ()


FAMILIES = {
    "Meta-Backward": Family("meta-backward", "diamond", ("meta_backward",)),
    "iMAML": Family("imaml", "square", ("imaml",)),
    "MAML": Family("maml", "triangle-up", ("maml", "fomaml")),
    "FedAvg, Reptile": Family("fedavg", "circle", ("fedsgd", "fedavg", "reptile", "fedavgm", "fedexp", "lean")),
    "without rounds": Family("no-rounds", "cross", ("average", "local", "random", "fisher")),
    "other": Family("other", "triangle-down"),
}

COLOURS = {
    # name: on a light ground, on a dark ground
    "ground": ("#ffffff", "#14171c"),
    "panel": ("#f5f6f8", "#1d2128"),
    "ink": ("#15181d", "#eef1f5"),
    "soft": ("#565d68", "#a7afbb"),
    "line": ("#d5d9df", "#3a414c"),
    "accent": ("#0b57c9", "#8ab8ff"),
    # families
    "meta-backward": ("#b32510", "#f2542f"),
    "imaml": ("#0966f1", "#2d8cff"),
    "maml": ("#a0266f", "#e669bc"),
    "fedavg": ("#139a5c", "#1fdc80"),
    "no-rounds": ("#1d2026", "#f0f2f4"),
    "other": ("#c08006", "#ffd01a"),
    # phases
    "pretraining": ("#71758a", "#75777d"),
    "computation": ("#1e61ff", "#4c8cfd"),
    "uplink": ("#950a1b", "#f0283c"),
    "downlink": ("#ae7c05", "#fff07e"),
    "adaptation": ("#2f9a63", "#2ffbcf"),
}
LIGHT = {name: light for name, (light, _) in COLOURS.items()}
DARK = {name: dark for name, (_, dark) in COLOURS.items()}


def family_of(method: str) -> str:
    """The family of a method by its registered name (`imaml`, not `imaml-50-50`)."""
    return next((name for name, family in FAMILIES.items() if method in family.methods), "other")


def variable(name: str) -> str:
    """The CSS text that means this colour."""
    return f"var(--{name})"


def on_paper(text: str) -> str:
    """The same text (a chart as JSON) with the light colours in place of variables."""
    return re.sub(r"var\(--([a-z-]+)\)", lambda found: LIGHT[found[1]], text)


def as_css(colours: dict[str, str]) -> str:
    """Declarations of the variables."""
    return " ".join(f"--{name}: {value};" for name, value in colours.items())
