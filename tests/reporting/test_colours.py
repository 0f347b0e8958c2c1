"""Colours that people tell apart: contrast by WCAG 2, distances in CIE Lab as colour-blind viewers see them."""

import itertools

import numpy as np
import pytest

from fewjoule.energy.ledger import PHASES
from fewjoule.methods import METHODS
from fewjoule.reporting.colours import (
    DARK,
    FAMILIES,
    LIGHT,
    as_css,
    family_of,
    on_paper,
)

# Machado, Oliveira and Fernandes 2009, full severity, on linear RGB
VIEWERS = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
THEMES = {"light": LIGHT, "dark": DARK}
FAMILY_COLOURS = [family.colour for family in FAMILIES.values()]
JUST_NOTICEABLE = 2.3


def linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(linear(c) @ [0.2126, 0.7152, 0.0722]) for c in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    xyz = np.asarray(XYZ) @ np.clip(rgb, 0, 1) / [0.95047, 1, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("viewer", VIEWERS)
@pytest.mark.parametrize("names", [FAMILY_COLOURS, PHASES], ids=["families", "phases"])
def test_colours_of_one_chart_stay_apart(theme: str, viewer: str, names: list[str]) -> None:
    seen = {v: lab(np.asarray(VIEWERS[viewer]) @ linear(THEMES[theme][v])) for v in names}
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 9 * JUST_NOTICEABLE, (one, other)


@pytest.mark.parametrize("theme", THEMES)
def test_contrast_on_the_ground(theme: str) -> None:
    colours = THEMES[theme]
    for name in ("ink", "soft", "accent"):  # text
        assert contrast(colours[name], colours["ground"]) >= 4.5, name
        assert contrast(colours[name], colours["panel"]) >= 4.5, name
    for name in (*FAMILY_COLOURS, *PHASES):  # marks
        assert contrast(colours[name], colours["ground"]) >= 3, name


def test_every_method_has_a_family_and_every_family_a_colour_and_a_shape() -> None:
    named = {name for family in FAMILIES.values() for name in family.methods}
    assert named <= set(METHODS)
    assert all(family_of(name) != "other" for name in named)
    assert family_of("a method of tomorrow") == "other"
    assert len(set(FAMILY_COLOURS)) == len({family.shape for family in FAMILIES.values()}) == len(FAMILIES)
    assert set(LIGHT) == set(DARK)


def test_variables_resolve_on_paper_and_in_css() -> None:
    assert on_paper('{"color": "var(--imaml)"}') == f'{{"color": "{LIGHT["imaml"]}"}}'
    assert f"--imaml: {DARK['imaml']};" in as_css(DARK)
