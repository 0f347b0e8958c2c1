"""Radio links: how long a message of so many bits takes, and what it costs the agent's battery.

Every link answers the same four questions, in seconds and joules of one agent for one message:

    link.seconds(bits)            time on air to send it
    link.energy_joules(bits)      energy to send it
    link.receive_seconds(bits)    time to receive it
    link.receive_joules(bits)     energy to receive it (an error where the link does not know its receive power)

Named links with published numbers are in `fewjoule.energy.presets`.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated

from fewjoule.energy import limits
from fewjoule.energy.limits import NotNegative, NotNegativeInt, Positive, PositiveInt, Share, amount
from fewjoule.errors import InputError

SPEED_OF_LIGHT_METRES_PER_SECOND = 299_792_458.0
_BETWEEN_0_AND_1 = limits.Limit("lie between 0 and 1", lambda value: 0 < value < 1, "; leave it out for no fading")
Outage = Annotated[float, _BETWEEN_0_AND_1]
SpreadingFactor = Annotated[int, limits.Limit("be 7 to 12", lambda value: value in range(7, 13))]
CodingRate = Annotated[int, limits.Limit("be 1 to 4 (4/5 to 4/8)", lambda value: value in range(1, 5))]


@dataclass(frozen=True, kw_only=True)
class Link(limits.Checked, ABC):
    """What the ledger asks of a link."""

    @abstractmethod
    def seconds(self, bits: float) -> float: ...
    @abstractmethod
    def energy_joules(self, bits: float) -> float: ...
    @abstractmethod
    def receive_joules(self, bits: float) -> float: ...

    def receive_seconds(self, bits: float) -> float:
        """Downlink over the same channel at the same rate, where a link says nothing else."""
        return self.seconds(bits)

    def _known(self, field: str) -> float:
        if getattr(self, field) is None:
            raise InputError(f"link {self.name!r} does not know its {field}; give it to charge the downlink.")
        return float(getattr(self, field))


def knows_receiving(link: Link) -> bool:
    """Whether the link knows what receiving costs; the paper's does not, and the paper does not charge it."""
    try:
        link.receive_joules(1)
    except InputError:
        return False
    return True


@dataclass(frozen=True, kw_only=True)
class ShannonLink(Link):
    """A band-limited Gaussian channel used at its capacity (Shannon 1949), as in Elgabli et al. 2021.

        R = B log2(1 + g P / (N0 B))        tau = bits / R        E = (P / efficiency + circuit) tau

    `power_watts` P is radiated; the amplifier draws P / `amplifier_efficiency` and the rest of the transmitter
    `circuit_watts`. `gain` g is the share of the power that arrives (see `path_gain`).

    With `outage` the channel also fades (Rayleigh, one independent draw h ~ Exp(1) of the power gain per attempt). The
    mean of tau = bits / (B log2(1 + h SNR)) over h does not exist: near h = 0 it grows like 1/h. So the transmitter
    keeps to the rate that the channel carries with probability 1 - outage, R = B log2(1 + SNR ln(1 / (1 - outage))),
    and sends a lost message again: 1 / (1 - outage) attempts on average, which `seconds` and `energy_joules` include.
    """

    bandwidth_hz: Positive
    power_watts: Positive
    noise_watts_per_hz: Positive
    gain: Positive = 1.0
    amplifier_efficiency: Share = 1.0
    circuit_watts: NotNegative = 0.0
    receive_watts: Positive | None = None
    outage: Outage | None = None
    name: str = "shannon"

    @property
    def snr(self) -> float:
        """Received signal-to-noise ratio in the band (a plain ratio, before fading)."""
        return self.gain * self.power_watts / (self.noise_watts_per_hz * self.bandwidth_hz)

    @property
    def snr_decibels(self) -> float:
        return 10 * math.log10(self.snr)

    @property
    def rate_bits_per_second(self) -> float:
        """The rate while sending; a lost message under fading is sent again at the same rate."""
        fade = 1.0 if self.outage is None else -math.log1p(-self.outage)
        return self.bandwidth_hz * math.log1p(self.snr * fade) / math.log(2)

    @property
    def attempts(self) -> float:
        """Mean number of times a message is sent."""
        return 1.0 if self.outage is None else 1 / (1 - self.outage)

    def seconds(self, bits: float) -> float:
        return self.attempts * amount("bits", bits) / self.rate_bits_per_second

    def energy_joules(self, bits: float) -> float:
        return (self.power_watts / self.amplifier_efficiency + self.circuit_watts) * self.seconds(bits)

    def receive_joules(self, bits: float) -> float:
        return self._known("receive_watts") * self.receive_seconds(bits)

    def shared_by(self, agents: int) -> "ShannonLink":
        """This link's band split evenly among `agents` by frequency (FDMA); each keeps its full power."""
        if agents < 1:
            raise InputError(f"{self.name}: agents must be at least 1, got {agents}.")
        return replace(self, bandwidth_hz=self.bandwidth_hz / agents)


@dataclass(frozen=True, kw_only=True)
class BitLink(Link):
    """A link known by its joules per bit and its rate.

        E = bits * joules_per_bit + active_watts * bits / rate + message_joules

    `active_watts` is drawn for as long as the transfer lasts. `message_joules` is spent on every message whatever its
    length: waking the radio, the high-power tail after a cellular transfer. An agent that receives within the tail of
    what it sent pays it once: charge one of the two with `message_joules=0`.
    """

    rate_bits_per_second: Positive
    joules_per_bit: NotNegative = 0.0
    receive_rate_bits_per_second: Positive | None = None
    receive_joules_per_bit: Positive | None = None
    active_watts: NotNegative = 0.0
    message_joules: NotNegative = 0.0
    name: str = "bits"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.joules_per_bit + self.active_watts + self.message_joules == 0:
            raise InputError(f"{self.name}: give joules_per_bit or active_watts; no radio is free.")

    def seconds(self, bits: float) -> float:
        return amount("bits", bits) / self.rate_bits_per_second

    def energy_joules(self, bits: float) -> float:
        return self._cost(bits, self.joules_per_bit, self.seconds(bits))

    def receive_seconds(self, bits: float) -> float:
        return amount("bits", bits) / self._known("receive_rate_bits_per_second")

    def receive_joules(self, bits: float) -> float:
        return self._cost(bits, self._known("receive_joules_per_bit"), self.receive_seconds(bits))

    def _cost(self, bits: float, joules_per_bit: float, seconds: float) -> float:
        return bits * joules_per_bit + self.active_watts * seconds + (self.message_joules if bits else 0.0)


@dataclass(frozen=True, kw_only=True)
class LoRaLink(Link):
    """LoRa packets: time on air by the formula of the SX1276 data sheet (Semtech, section 4.1.1.7).

    A message is cut into packets of at most `payload_bytes` bytes of its own, each with `overhead_bytes` of protocol
    headers. `duty_cycle` is the share of time that the regulator lets a device send; `seconds` includes the waiting,
    the energy does not.
    """

    spreading_factor: SpreadingFactor
    transmit_watts: Positive
    receive_watts: Positive | None = None
    bandwidth_hz: Positive = 125_000.0
    coding_rate: CodingRate = 1  # for 4/5 to 4/8
    preamble_symbols: NotNegative = 8.0
    payload_bytes: PositiveInt = 222
    overhead_bytes: NotNegativeInt = 13
    duty_cycle: Share = 1.0
    name: str = "lora"

    def __post_init__(self) -> None:
        super().__post_init__()
        total = self.payload_bytes + self.overhead_bytes
        if total > 255:
            raise InputError(f"{self.name}: a LoRa packet holds 255 bytes, got {total}; lower payload_bytes.")

    def packet_seconds(self, payload_bytes: int) -> float:
        """Time on air of one packet with explicit header and CRC, `payload_bytes` without the protocol's headers."""
        symbol_seconds = 2.0**self.spreading_factor / self.bandwidth_hz
        slow = 1 if symbol_seconds > 0.016 else 0  # low-data-rate optimisation is mandatory above 16 ms a symbol
        bits = 8 * (payload_bytes + self.overhead_bytes) - 4 * self.spreading_factor + 28 + 16
        blocks = math.ceil(bits / (4 * (self.spreading_factor - 2 * slow)))
        symbols = 8 + max(blocks * (self.coding_rate + 4), 0)
        return (self.preamble_symbols + 4.25 + symbols) * symbol_seconds

    def air_seconds(self, bits: float) -> float:
        """Time on air of a message, all its packets."""
        size = math.ceil(amount("bits", bits) / 8)
        full, rest = divmod(size, self.payload_bytes)
        return full * self.packet_seconds(self.payload_bytes) + (self.packet_seconds(rest) if rest else 0.0)

    def seconds(self, bits: float) -> float:
        return self.air_seconds(bits) / self.duty_cycle

    def energy_joules(self, bits: float) -> float:
        return self.transmit_watts * self.air_seconds(bits)

    def receive_joules(self, bits: float) -> float:
        return self._known("receive_watts") * self.air_seconds(bits)


def path_gain(distance_m: float, *, frequency_hz: float, exponent: float = 2.0) -> float:
    """Share of the radiated power that arrives: Friis at 1 m, then falling as distance^-exponent (isotropic antennas).

    The exponent 2 is free space, so the whole is Friis' formula (c / (4 pi f d))^2; cities have 2.7 to 5 (Rappaport,
    Wireless Communications, 2nd ed., table 4.2).
    """
    for what, value in (("distance_m", distance_m), ("frequency_hz", frequency_hz), ("exponent", exponent)):
        limits.ABOVE_0.check(f"path_gain: {what}", value)
    at_1_m = math.pow(SPEED_OF_LIGHT_METRES_PER_SECOND / (4 * math.pi * frequency_hz), 2)
    gain = at_1_m * math.pow(distance_m, -exponent)
    if gain > 1:
        raise InputError(f"path_gain: more power would arrive than is sent at {distance_m} m; use a larger distance_m.")
    return gain
