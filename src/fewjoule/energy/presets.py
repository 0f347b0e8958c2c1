"""Named links and devices, from `presets.toml`, where every number stands beside its published source."""

import tomllib
from dataclasses import fields, replace
from importlib import resources
from typing import Any, TypeVar

from fewjoule.energy.limits import Checked
from fewjoule.energy.links import BitLink, Link, LoRaLink, ShannonLink
from fewjoule.energy.meters import Device
from fewjoule.errors import unknown

_KINDS: dict[str, type[Link]] = {"shannon": ShannonLink, "bits": BitLink, "lora": LoRaLink}
_PRESETS = tomllib.loads(resources.files(__package__).joinpath("presets.toml").read_text(encoding="utf-8"))

LINKS = {name: _KINDS[numbers.pop("kind")](name=name, **numbers) for name, numbers in _PRESETS["links"].items()}
DEVICES = {name: Device(name=name, **numbers) for name, numbers in _PRESETS["devices"].items()}


def link(name: str, **changes: Any) -> Link:
    """The named link; `changes` replace its fields, as in `link("paper", receive_watts=0.1)`."""
    return _preset("link", LINKS, name, changes)


def device(name: str, **changes: Any) -> Device:
    """The named device; `changes` replace its fields, as in `device("cortex-m4", watts=0.05)`."""
    return _preset("device", DEVICES, name, changes)


_Preset = TypeVar("_Preset", bound=Checked)


def _preset(what: str, presets: dict[str, _Preset], name: str, changes: dict[str, Any]) -> _Preset:
    if name not in presets:
        raise unknown(what, name, presets)
    if not changes:
        return presets[name]
    known = {field.name for field in fields(presets[name])}
    for key in changes:
        if key not in known:
            raise unknown(f"setting of {what} {name!r}:", key, known)
    note = ", ".join(f"{key}={value}" for key, value in changes.items())
    return replace(presets[name], **{"name": f"{name} ({note})", **changes})
