"""Meters, operation counts, radio links and the ledger that keeps every joule with its source."""

from fewjoule.energy.choice import Choice, auto
from fewjoule.energy.counts import Counts, count
from fewjoule.energy.devices import Device
from fewjoule.energy.ledger import ALL_AGENTS, ALL_ROUNDS, BEFORE_FIRST_ROUND, KINDS, PHASES, Ledger, Line, Row
from fewjoule.energy.links import BitLink, Link, LoRaLink, ShannonLink, path_gain
from fewjoule.energy.meters import CpuTimeMeter, Meter, NoMeterError, OperationMeter, Reading, Together
from fewjoule.energy.powercap import PowercapMeter
from fewjoule.energy.presets import DEVICES, LINKS, device, link
from fewjoule.energy.radio import charge_downlink, charge_uplink
from fewjoule.energy.short_jobs import ShortJob, measure
from fewjoule.energy.third_party import PyraplMeter, ZeusMeter

__all__ = [
    "ALL_AGENTS",
    "ALL_ROUNDS",
    "BEFORE_FIRST_ROUND",
    "DEVICES",
    "KINDS",
    "LINKS",
    "PHASES",
    "BitLink",
    "Choice",
    "Counts",
    "CpuTimeMeter",
    "Device",
    "Ledger",
    "Line",
    "Link",
    "LoRaLink",
    "Meter",
    "NoMeterError",
    "OperationMeter",
    "PowercapMeter",
    "PyraplMeter",
    "Reading",
    "Row",
    "ShannonLink",
    "ShortJob",
    "Together",
    "ZeusMeter",
    "auto",
    "charge_downlink",
    "charge_uplink",
    "count",
    "device",
    "link",
    "measure",
    "path_gain",
]
