"""Meters, operation counts, radio links and the ledger that keeps every joule with its source."""

from fewjoule.energy.counts import Counts, count
from fewjoule.energy.ledger import ALL_AGENTS, ALL_ROUNDS, BEFORE_FIRST_ROUND, KINDS, PHASES, Ledger, Line, Row
from fewjoule.energy.links import BitLink, Link, LoRaLink, ShannonLink, path_gain
from fewjoule.energy.presets import LINKS, link
from fewjoule.energy.radio import charge_downlink, charge_uplink

__all__ = [
    "ALL_AGENTS",
    "ALL_ROUNDS",
    "BEFORE_FIRST_ROUND",
    "KINDS",
    "LINKS",
    "PHASES",
    "BitLink",
    "Counts",
    "Ledger",
    "Line",
    "Link",
    "LoRaLink",
    "Row",
    "ShannonLink",
    "charge_downlink",
    "charge_uplink",
    "count",
    "link",
    "path_gain",
]
