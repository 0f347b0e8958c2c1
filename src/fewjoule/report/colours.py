"""Families of methods and the colours of the report, in light and in dark.

Twenty methods cannot have twenty colours that people tell apart, so a colour means a family; within a family the dash
of a line or the label beside a point says which method it is. Charts name a colour as a CSS variable, `var(--imaml)`:
the page resolves it for light and dark, `on_paper` for figures. Hues were chosen so that the nearest pair stays apart
for protan, deutan and tritan viewers; a test holds them to it.
"""

import re

FAMILIES = {
    "Meta-Backward": ("meta_backward",),
    "iMAML": ("imaml",),
    "MAML": ("maml", "fomaml"),
    "FedAvg, Reptile": ("fedsgd", "fedavg", "reptile", "fedavgm", "fedexp", "lean"),
    "without rounds": ("average", "local", "random", "fisher"),
    "other": (),
}

FAMILY_VARIABLES = {
    "Meta-Backward": "meta-backward",
    "iMAML": "imaml",
    "MAML": "maml",
    "FedAvg, Reptile": "fedavg",
    "without rounds": "no-rounds",
    "other": "other",
}

PHASE_VARIABLES = {
    "pretraining": "pretraining",
    "computation": "computation",
    "uplink": "uplink",
    "downlink": "downlink",
    "adaptation": "adaptation",
}

FAMILY_SHAPES = {
    "Meta-Backward": "diamond",
    "iMAML": "square",
    "MAML": "triangle-up",
    "FedAvg, Reptile": "circle",
    "without rounds": "cross",
    "other": "triangle-down",
}

LIGHT = {
    "ground": "#ffffff",
    "panel": "#f5f6f8",
    "ink": "#15181d",
    "soft": "#565d68",
    "line": "#d5d9df",
    "accent": "#0b57c9",
    "meta-backward": "#b32510",
    "imaml": "#0966f1",
    "maml": "#a0266f",
    "fedavg": "#139a5c",
    "no-rounds": "#1d2026",
    "other": "#c08006",
    "pretraining": "#71758a",
    "computation": "#1e61ff",
    "uplink": "#950a1b",
    "downlink": "#ae7c05",
    "adaptation": "#2f9a63",
}

DARK = {
    "ground": "#14171c",
    "panel": "#1d2128",
    "ink": "#eef1f5",
    "soft": "#a7afbb",
    "line": "#3a414c",
    "accent": "#8ab8ff",
    "meta-backward": "#f2542f",
    "imaml": "#2d8cff",
    "maml": "#e669bc",
    "fedavg": "#1fdc80",
    "no-rounds": "#f0f2f4",
    "other": "#ffd01a",
    "pretraining": "#75777d",
    "computation": "#4c8cfd",
    "uplink": "#f0283c",
    "downlink": "#fff07e",
    "adaptation": "#2ffbcf",
}


def family_of(method: str) -> str:
    """The family of a method by its registered name (`imaml`, not `imaml-50-50`)."""
    return next((family for family, members in FAMILIES.items() if method in members), "other")


def variable(name: str) -> str:
    """The CSS text that means this colour."""
    return f"var(--{name})"


def on_paper(text: str) -> str:
    """The same text (a chart as JSON) with the light colours in place of variables."""
    return re.sub(r"var\(--([a-z-]+)\)", lambda found: LIGHT[found[1]], text)


def as_css(colours: dict[str, str]) -> str:
    """Declarations of the variables."""
    return " ".join(f"--{name}: {value};" for name, value in colours.items())
