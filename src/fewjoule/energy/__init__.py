"""Meters, operation counts, radio links and the ledger that keeps every joule with its source."""

from fewjoule.energy.charge import charge_radio, charge_server
from fewjoule.energy.counts import Counts, count
from fewjoule.energy.ledger import ALL_ROUNDS, BEFORE_FIRST_ROUND, KINDS, PHASES, Ledger, Row, Spent
from fewjoule.energy.links import BitLink, Link, LoRaLink, ShannonLink, knows_receiving, path_gain
from fewjoule.energy.metering import ChosenMeter, ShortJob, auto, measure
from fewjoule.energy.meters import CpuTimeMeter, Device, Meter, NoMeterError, OperationMeter, Reading, Together
from fewjoule.energy.powercap import PowercapMeter
from fewjoule.energy.presets import DEVICES, LINKS, device, link
from fewjoule.energy.third_party import PyraplMeter, ZeusMeter
from fewjoule.tasks.samples import ALL_AGENTS

__all__ = [
    "ALL_AGENTS", "ALL_ROUNDS", "BEFORE_FIRST_ROUND", "DEVICES", "KINDS", "LINKS", "PHASES", "BitLink", "ChosenMeter",
    "Counts", "CpuTimeMeter", "Device", "Ledger", "Link", "LoRaLink", "Meter", "NoMeterError", "OperationMeter",
    "PowercapMeter", "PyraplMeter", "Reading", "Row", "ShannonLink", "ShortJob", "Spent", "Together", "ZeusMeter",
    "auto", "charge_radio", "charge_server", "count", "device", "knows_receiving", "link", "measure", "path_gain",
]  # fmt: skip
