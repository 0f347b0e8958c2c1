"""Named links and devices. Every number stands beside its published source; `docs/energy.md` has them as tables."""

from dataclasses import fields, replace
from typing import Any

from fewjoule.energy.links import BitLink, LoRaLink, ShannonLink
from fewjoule.errors import unknown

LINKS: dict[str, ShannonLink | BitLink | LoRaLink] = {
    "paper": ShannonLink(
        name="paper",
        bandwidth_hz=5_000.0,
        power_watts=2.0,
        noise_watts_per_hz=1e-4,
        # The SNR is P / (N0 B) = 4 = 6.02 dB; the 13.86 dB printed in the paper is 10 ln 4.
        source="Elgabli et al. 2021, section V: B = 5 kHz per agent, P = 2 W, N0 = 1e-4 W/Hz",
    ),
}


def link(name: str, **changes: Any) -> ShannonLink | BitLink | LoRaLink:
    """The named link; `changes` replace its fields, as in `link("paper", receive_watts=0.1)`."""
    if name not in LINKS:
        raise unknown("link", name, LINKS)
    preset = LINKS[name]
    if not changes:
        return preset
    known = {field.name for field in fields(preset)}
    for key in changes:
        if key not in known:
            raise unknown(f"setting of link {name!r}:", key, known)
    note = ", ".join(f"{key}={value}" for key, value in changes.items())
    return replace(preset, **{"name": f"{name} ({note})", **changes})
