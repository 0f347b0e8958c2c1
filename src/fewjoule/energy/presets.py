"""Named links and devices. Every number stands beside its published source; `docs/energy.md` has them as tables."""

from dataclasses import fields, replace
from typing import Any, TypeVar

from fewjoule.energy.links import BitLink, LoRaLink, ShannonLink
from fewjoule.energy.meters import Device
from fewjoule.errors import unknown

_LORA = (
    "Semtech SX1276 data sheet, power consumption specification: 29 mA sending at +13 dBm, 10.8 mA receiving, 3.3 V; "
    "payload of LoRaWAN Regional Parameters RP002-1.0.3, EU863-870"
)
_HUANG = "Huang et al., A Close Examination of Performance and Power Characteristics of 4G LTE Networks, MobiSys 2012"

LINKS: dict[str, ShannonLink | BitLink | LoRaLink] = {
    "paper": ShannonLink(
        name="paper",
        bandwidth_hz=5_000.0,
        power_watts=2.0,
        noise_watts_per_hz=1e-4,
        # The SNR is P / (N0 B) = 4 = 6.02 dB; the 13.86 dB printed in the paper is 10 ln 4.
        source="Elgabli et al. 2021, section V: B = 5 kHz per agent, P = 2 W, N0 = 1e-4 W/Hz",
    ),
    **{
        f"lora-sf{factor}": LoRaLink(
            name=f"lora-sf{factor}",
            spreading_factor=factor,
            transmit_watts=0.029 * 3.3,
            receive_watts=0.0108 * 3.3,
            payload_bytes=payload,
            source=_LORA,
        )
        for factor, payload in ((7, 222), (12, 51))
    },
    "wifi": BitLink(
        name="wifi",
        rate_bits_per_second=6e6,
        joules_per_bit=283.17e-9,
        receive_rate_bits_per_second=6e6,
        receive_joules_per_bit=137.01e-9,
        active_watts=0.13286,
        message_joules=0.04,
        source=f"{_HUANG}, table 4 and section 5: 283.17 mW/(Mbit/s) up, 137.01 down, 132.86 mW base, 0.04 J to wake; "
        "6 Mbit/s, the lowest rate of IEEE 802.11g",
    ),
    "lte": BitLink(
        name="lte",
        rate_bits_per_second=6e6,
        joules_per_bit=438.39e-9,
        receive_rate_bits_per_second=13e6,
        receive_joules_per_bit=51.97e-9,
        active_watts=1.28804,
        message_joules=12.76,
        source=f"{_HUANG}, table 4 and section 5: 438.39 mW/(Mbit/s) up, 51.97 down, 1288.04 mW base, 12.76 J to wake "
        "and for the 11.6 s tail; median rates 6 and 13 Mbit/s",
    ),
    "nb-iot": BitLink(
        name="nb-iot",
        rate_bits_per_second=66e3,
        active_watts=0.5,
        source="3GPP TR 45.820 (2015): 500 mW while sending; 3GPP Release 13, category NB1: at most 66 kbit/s up "
        "(multi-tone), without the repetitions of bad coverage",
    ),
}

_HPL = "J. Geerling, top500-benchmark (2024): HPL in double precision, watts of the whole board at the wall"
_TINY = "power: MLPerf Tiny v1.0 (2022), closed division, STMicroelectronics, anomaly detection"

# name: (watts, FLOP/s, cores, source)
_DEVICES = {
    "raspberry-pi-4": (7.2, 11.889e9, 4, f"{_HPL}: 11.889 Gflop/s at 7.2 W, BCM2711 at 1.8 GHz"),
    "raspberry-pi-5": (11.0, 30.249e9, 4, f"{_HPL}: 30.249 Gflop/s at 11 W, BCM2712 at 2.4 GHz"),
    "raspberry-pi-zero-2-w": (2.1, 0.370e9, 4, f"{_HPL}: 0.370 Gflop/s at 2.1 W, RP3A0-AU at 1.0 GHz"),
    "laptop-core": (
        25.0, 62.851e9, 4,
        f"{_HPL}: 62.851 Gflop/s at 25 W, Intel N100 at 3.4 GHz (LattePanda Mu), four cores",
    ),
    "apple-m4": (39.6, 299.93e9, 10, f"{_HPL}: 299.93 Gflop/s at 39.6 W, M4 at 4.4 GHz (Mac mini), ten cores"),
    "cortex-m4": (
        42.654e-3, 2 * 120e6 / 9, 1,
        f"{_TINY}: 42.654 mW, STM32L4R5 at 120 MHz and 1.8 V; rate: ST UM2526 (2019), about 9 cycles for a "
        "multiply-accumulate in float32",
    ),
    "cortex-m7": (
        146.21e-3, 2 * 280e6 / 6, 1,
        f"{_TINY}: 146.21 mW, STM32H7A3 at 280 MHz and 3.3 V; rate: ST UM2526 (2019), about 6 cycles for a "
        "multiply-accumulate in float32",
    ),
    "cortex-m33": (
        24.704e-3, 2 * 160e6 / 10.4, 1,
        f"{_TINY}: 24.704 mW, STM32U575 at 160 MHz and 1.8 V; rate: ST model zoo (2024), GMP wl 48 in float32 "
        "on STM32U585: 10.64 ms for 164 224 multiply-accumulates, 10.4 cycles each",
    ),
}  # fmt: skip
DEVICES = {
    name: Device(name=name, watts=watts, flops_per_second=rate, cores=cores, source=source)
    for name, (watts, rate, cores, source) in _DEVICES.items()
}


def link(name: str, **changes: Any) -> ShannonLink | BitLink | LoRaLink:
    """The named link; `changes` replace its fields, as in `link("paper", receive_watts=0.1)`."""
    if name not in LINKS:
        raise unknown("link", name, LINKS)
    return _changed("link", LINKS[name], changes)


def device(name: str, **changes: Any) -> Device:
    """The named device; `changes` replace its fields, as in `device("cortex-m4", watts=0.05)`."""
    if name not in DEVICES:
        raise unknown("device", name, DEVICES)
    return _changed("device", DEVICES[name], changes)


_Preset = TypeVar("_Preset", bound=ShannonLink | BitLink | LoRaLink | Device)


def _changed(what: str, preset: _Preset, changes: dict[str, Any]) -> _Preset:
    if not changes:
        return preset
    known = {field.name for field in fields(preset)}
    for key in changes:
        if key not in known:
            raise unknown(f"setting of {what} {preset.name!r}:", key, known)
    note = ", ".join(f"{key}={value}" for key, value in changes.items())
    return replace(preset, **{"name": f"{preset.name} ({note})", **changes})
