"""What a run would have cost on another link, and the links and controls that the page offers.

A run's messages are in summary.json by size, so that every preset is computed as if the run had used it; page.js does
the same for a link whose numbers somebody moved.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fewjoule.energy import LINKS, BitLink, Link, LoRaLink, ShannonLink, knows_receiving
from fewjoule.energy.ledger import RADIO, TRAINING
from fewjoule.reporting.cards import Answer, Contender, answers
from fewjoule.reporting.facts import Facts, seconds_kind
from fewjoule.reporting.run_folder import LinkFacts, Messages, Summary

NAMES = {
    "paper": "the paper’s link",
    "lora-sf7": "LoRa SF7",
    "lora-sf12": "LoRa SF12",
    "nb-iot": "NB-IoT",
    "wifi": "Wi-Fi",
    "lte": "LTE",
}
"""How the page calls a preset; one that is not here goes by its own name."""
EU868_PAYLOAD_BYTES = {7: 222, 8: 222, 9: 115, 10: 51, 11: 51, 12: 51}
"""LoRaWAN Regional Parameters RP002-1.0.3, EU863-870: payload by spreading factor."""
KINDS: dict[type[Link], str] = {ShannonLink: "shannon", BitLink: "bits", LoRaLink: "lora"}
CONTROLS: dict[str, list[dict[str, Any]]] = {
    "shannon": [
        {"key": "snr", "label": "SNR at the receiver", "form": "decibel", "unit": "dB", "ends": [-20, 40, 0.5]},
        {"key": "power_watts", "label": "radiated power", "form": "milliwatt", "unit": "dBm", "ends": [-10, 50, 0.5]},
        {"key": "bandwidth_hz", "label": "bandwidth of one agent", "form": "power", "unit": "Hz", "ends": [2, 8, 0.05]},
    ],
    "lora": [
        {"key": "spreading_factor", "label": "spreading factor", "form": "plain", "unit": "", "ends": [7, 12, 1]},
        {"key": "bandwidth_hz", "label": "bandwidth", "form": "double", "unit": "Hz", "ends": [0, 2, 1], "one": 125e3},
        {"key": "transmit_watts", "label": "draw while sending", "form": "power", "unit": "W", "ends": [-2.5, 0, 0.05]},
    ],
    "bits": [
        {"key": "rate_bits_per_second", "label": "rate up", "form": "power", "unit": "bit/s", "ends": [2, 9, 0.05]},
        {"key": "active_watts", "label": "draw while active", "form": "power", "unit": "W", "ends": [-4, 1, 0.05]},
        {"key": "message_joules", "label": "to wake, per message", "form": "power", "unit": "J", "ends": [-4, 2, 0.05]},
    ],
}
"""Sliders by the kind of a link. `form` is how a place on the slider becomes a value: the place itself, ten to its
power (the lowest place of active_watts and message_joules is 0), decibels, decibels over a milliwatt, doublings."""


def title_of(summary: Summary) -> str:
    """What the page calls the run's link."""
    return NAMES.get(summary.link.name, summary.link.name)


def knows_messages(summary: Summary) -> bool:
    """Whether the run says what was sent; the folders of older versions do not."""
    return all(method.messages for method in summary.methods.values())


def charged(messages: Messages, link: Link, way: str) -> tuple[float, float]:
    """Joules of all agents and seconds that pass; receiving is free on a link that does not know its cost."""
    if way == "downlink" and not knows_receiving(link):
        return 0.0, 0.0
    energy, time = (
        (link.energy_joules, link.seconds) if way == "uplink" else (link.receive_joules, link.receive_seconds)
    )
    joules = math.fsum(count * energy(bits) for bits, count in messages.sizes)
    return joules, math.fsum(count * time(bits) for bits, count in messages.longest)


def joules_on(f: Facts, link: Link) -> float:
    """Joules of the training if the run had used this link."""
    other = [phase for phase in TRAINING if phase not in RADIO]
    return f.joules(other) + math.fsum(charged(each, link, way)[0] for way, each in f.summary.messages.items())


def answers_on(facts: Sequence[Facts], methods: Sequence[Contender], link: Link) -> dict[str, Answer]:
    """The three answers if the run had used this link."""
    joules = {f.name: joules_on(f, link) for f in facts}
    return answers([method._replace(joules=joules[method.name]) for method in methods])


def link_of(facts: LinkFacts) -> Link | None:
    """The run's link, where its numbers are known."""
    if facts.is_shannon:
        numbers = facts.model_dump(exclude={"source", "bits_per_weight"})
        return ShannonLink(**numbers, receive_watts=getattr(LINKS.get(facts.name), "receive_watts", None))
    return LINKS.get(facts.name)


def links_of(summary: Summary) -> dict[str, Link]:
    """The presets, and the run's own link with the numbers that it had."""
    own = link_of(summary.link)
    return LINKS | ({} if own is None else {summary.link.name: own})


def of_page(facts: Sequence[Facts], summary: Summary) -> dict[str, Any]:
    """The links with their numbers, and of every method what page.js needs to charge it."""
    return {
        "run": summary.link.name,
        "links": {name: _numbers(link) | {"title": NAMES.get(name, name)} for name, link in links_of(summary).items()},
        "controls": CONTROLS,
        "payloads": EU868_PAYLOAD_BYTES,
        "methods": [
            {
                "name": f.name,
                "spent": [
                    {"phase": s.phase, "kind": s.kind, "joules": s.joules, "seconds": s.seconds}
                    | {"clock": seconds_kind(s)}
                    for s in f.spent
                ],
                "messages": {way: each.model_dump() for way, each in f.summary.messages.items()},
            }
            for f in facts
        ],
    }


def _numbers(link: Link) -> dict[str, Any]:
    numbers = asdict(link) | {"kind": KINDS[type(link)], "receives": knows_receiving(link)}
    return numbers | {"snr": link.snr} if isinstance(link, ShannonLink) else numbers
