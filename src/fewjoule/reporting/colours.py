"""Families of methods and the colours of the report, in light and in dark.

Twenty methods cannot have twenty colours that people tell apart, so a colour means a family; within a family the dash
of a line or the label beside a point says which method it is. Charts name a colour as a CSS variable, `var(--imaml)`:
the page resolves it for light and dark, `on_paper` for figures. Hues were chosen so that the nearest pair stays apart
for protan, deutan and tritan viewers; a test holds them to it.
"""

import re
import tomllib
from typing import NamedTuple

from fewjoule.reporting.wording import asset


class Family(NamedTuple):
    """A colour by its name in `LIGHT` and `DARK`, the shape of its points, and the registered names of its methods."""

    colour: str
    shape: str
    methods: list[str]


_THEME = tomllib.loads(asset("colours.toml"))
FAMILIES = {name: Family(**about) for name, about in _THEME["families"].items()}
LIGHT = {name: light for name, (light, _) in _THEME["colours"].items()}
DARK = {name: dark for name, (_, dark) in _THEME["colours"].items()}


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
