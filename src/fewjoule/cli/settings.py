"""Settings of `train` from flags and, where given, from a study: flags win."""

from typing import Any

import pydantic

from fewjoule.energy import device, link
from fewjoule.errors import InputError
from fewjoule.study.settings import EnergySettings, LocalSettings, ModelSettings


def method_settings(texts: list[str]) -> dict[str, Any]:
    """Settings like `rounds=10`, values as in TOML."""
    table: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise InputError(f"--set takes NAME=VALUE, as in rounds=10, got {text!r}.")
        table[key.strip()] = _value(value.strip())
    return table


def step_list(text: str) -> list[int]:
    """Numbers of fine-tuning steps like `0,1,10`."""
    try:
        return sorted({int(n) for n in text.split(",")})
    except ValueError as error:
        raise InputError(f"--steps takes whole numbers with commas, as in 0,1,10, got {text!r}.") from error


def sections(
    study: str | None, *, model: str | None, local: dict[str, Any], energy: dict[str, Any]
) -> tuple[str | None, str, LocalSettings, EnergySettings]:
    """The model's spec and init, the local training and the energy settings."""
    file = _tables(study)
    spec, init = model, "glorot"
    if "model" in file:
        settings = _checked(ModelSettings, file["model"], {}, f"{study}: [model]")
        spec, init = model or settings.spec, settings.init
    elif study is not None and model is None:
        raise InputError(f'{study} has no [model]; add one with spec = "mlp:…" or give --model.')
    where = "" if study is None else f"{study}: "
    trained = _checked(LocalSettings, file.get("local", {}), local, f"{where}[local]")
    energies = _checked(EnergySettings, file.get("energy", {}), energy, f"{where}[energy]")
    link(energies.link), device(energies.device)  # an unknown name is refused before the work, not after it
    return spec, init, trained, energies


def energy_settings(**flags: Any) -> EnergySettings:
    """Energy settings from flags alone."""
    checked: EnergySettings = _checked(EnergySettings, {}, flags, "[energy]")
    return checked


def _tables(study: str | None) -> dict[str, Any]:
    if study is None:
        return {}
    from fewjoule.study.settings import BUILT_IN, load_study, read_toml

    if study in BUILT_IN:
        return load_study(study).model_dump()
    from pathlib import Path

    return read_toml(Path(study))


def _checked(kind: Any, table: Any, flags: dict[str, Any], where: str) -> Any:
    if not isinstance(table, dict):
        raise InputError(f"{where} must be a table.")
    try:
        return kind(**{**table, **{k: v for k, v in flags.items() if v is not None}})
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(p) for p in first["loc"])
        value = "" if isinstance(first.get("input"), dict) else f", got {first.get('input')!r}"
        raise InputError(f"{where}: {key}: {first['msg'][0].lower()}{first['msg'][1:]}{value}.") from error


def _value(text: str) -> Any:
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
