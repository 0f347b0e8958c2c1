"""Links against hand counts, limit cases, a Monte Carlo of the fading channel and published times on air."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewjoule.energy import LINKS, BitLink, LoRaLink, ShannonLink, link, path_gain
from fewjoule.errors import InputError

SINUSOID, MNIST = 1761, 6442


def test_the_papers_link_by_hand():
    paper = link("paper")
    assert paper.rate_bits_per_second == pytest.approx(11_609.64, abs=0.005)
    assert paper.rate_bits_per_second == pytest.approx(5000 * math.log2(5))
    assert paper.snr == pytest.approx(4)
    assert paper.snr_decibels == pytest.approx(6.02, abs=0.005)
    assert paper.seconds(32 * SINUSOID) == pytest.approx(4.854, abs=5e-4)
    assert paper.energy_joules(32 * SINUSOID) == pytest.approx(9.708, abs=5e-4)
    assert paper.seconds(32 * MNIST) == pytest.approx(17.756, abs=5e-4)
    assert paper.energy_joules(32 * MNIST) == pytest.approx(35.513, abs=5e-4)


def test_the_papers_erratum_is_ten_times_the_natural_logarithm():
    assert 10 * math.log(link("paper").snr) == pytest.approx(13.86, abs=0.005)


@given(bits=st.integers(0, 10**9), gain=st.floats(1e-12, 1), efficiency=st.floats(0.05, 1), circuit=st.floats(0, 5))
def test_amplifier_and_circuit_add_to_the_radiated_power(bits, gain, efficiency, circuit):
    plain = link("paper", gain=gain)
    real = link("paper", gain=gain, amplifier_efficiency=efficiency, circuit_watts=circuit)
    assert real.seconds(bits) == plain.seconds(bits)
    assert real.energy_joules(bits) == pytest.approx(
        plain.energy_joules(bits) / efficiency + circuit * plain.seconds(bits)
    )


def test_wide_band_reaches_shannons_limit_of_n0_ln2_joules_per_bit():
    wide = link("paper", bandwidth_hz=1e12)
    assert wide.energy_joules(1) == pytest.approx(1e-4 * math.log(2), rel=1e-6)


@given(agents=st.integers(1, 1000))
def test_a_split_band_keeps_power_so_each_rate_lies_between_a_share_and_the_whole(agents):
    whole = link("paper")
    part = whole.shared_by(agents)
    assert part.bandwidth_hz * agents == pytest.approx(whole.bandwidth_hz)
    assert whole.rate_bits_per_second / agents * (1 - 1e-12) <= part.rate_bits_per_second
    assert part.rate_bits_per_second <= whole.rate_bits_per_second * (1 + 1e-12)


def test_friis_at_exponent_two():
    metres, hertz = 250.0, 868e6
    wavelength = 299_792_458 / hertz
    assert path_gain(metres, frequency_hz=hertz) == pytest.approx((wavelength / (4 * math.pi * metres)) ** 2)
    # Free-space loss in decibels, the form in radio handbooks: 20 log10(km) + 20 log10(MHz) + 32.45.
    loss = -10 * math.log10(path_gain(metres, frequency_hz=hertz))
    assert loss == pytest.approx(20 * math.log10(0.25) + 20 * math.log10(868) + 32.45, abs=0.01)


@pytest.mark.parametrize("outage", [0.02, 0.1, 0.5])
def test_rayleigh_outage_equals_a_simulated_fading_channel(outage):
    faded = link("paper", outage=outage)
    rng = np.random.default_rng(1)
    gains = rng.exponential(size=400_000)
    carried = faded.bandwidth_hz * np.log2(1 + gains * faded.snr) >= faded.rate_bits_per_second
    assert 1 - carried.mean() == pytest.approx(outage, rel=0.05)
    attempts_per_message = len(carried) / carried.sum()
    seconds = attempts_per_message * 1000 / faded.rate_bits_per_second
    assert faded.seconds(1000) == pytest.approx(seconds, rel=0.01)
    assert faded.energy_joules(1000) == pytest.approx(2.0 * seconds, rel=0.01)


def test_mean_of_inverse_rate_keeps_growing_as_the_cut_falls():
    # Why an outage rule is needed: the part of E[1/R] above gain c grows by the same step each time c falls tenfold.
    def above(cut):
        gains = np.geomspace(cut, 50, 400_001)
        return np.trapezoid(np.exp(-gains) / np.log2(1 + 4 * gains), gains)

    steps = np.diff([above(10.0**-k) for k in range(4, 9)])
    assert steps == pytest.approx(np.full(4, math.log(2) / 4 * math.log(10)), rel=0.01)


# Times on air of a 51-byte LoRaWAN payload (64 bytes with headers), 125 kHz, 4/5: the values of the public calculators
# follow Semtech's formula; here symbols are counted by hand: SF7 18 blocks of 5, SF12 13 blocks of 5.
@pytest.mark.parametrize(("sf", "blocks"), [(7, 19), (12, 13)])
def test_lora_time_on_air_by_hand(sf, blocks):
    lora = LoRaLink(spreading_factor=sf, transmit_watts=0.1, payload_bytes=51)
    symbol = 2**sf / 125_000
    assert lora.packet_seconds(51) == pytest.approx((12.25 + 8 + 5 * blocks) * symbol)


def test_lora_message_is_whole_packets_and_waits_for_its_duty_cycle():
    lora = LoRaLink(spreading_factor=7, transmit_watts=0.1, payload_bytes=100, duty_cycle=0.01)
    assert lora.air_seconds(8 * 250) == pytest.approx(2 * lora.packet_seconds(100) + lora.packet_seconds(50))
    assert lora.seconds(8 * 250) == pytest.approx(100 * lora.air_seconds(8 * 250))
    assert lora.energy_joules(8 * 250) == pytest.approx(0.1 * lora.air_seconds(8 * 250))
    assert lora.energy_joules(0) == 0


def test_bit_link_adds_its_fixed_cost_once_a_message():
    cellular = BitLink(rate_bits_per_second=1e6, joules_per_bit=1e-6, message_joules=3.0, active_watts=0.5)
    assert cellular.energy_joules(1_000_000) == pytest.approx(1.0 + 0.5 + 3.0)
    assert cellular.seconds(1_000_000) == pytest.approx(1.0)
    assert cellular.energy_joules(0) == 0


def test_an_unknown_receive_power_is_an_error_not_zero():
    with pytest.raises(InputError, match="receive_watts"):
        link("paper").receive_joules(100)
    assert link("paper", receive_watts=0.5).receive_joules(11_609.640474436812) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: link("papr"), "did you mean 'paper'"),
        (lambda: link("paper", bandwith_hz=1.0), "did you mean 'bandwidth_hz'"),
        (lambda: link("paper", bandwidth_hz=0.0), "bandwidth_hz must be above 0"),
        (lambda: link("paper", outage=1.0), "outage"),
        (lambda: link("paper", amplifier_efficiency=1.5), "at most 1"),
        (lambda: link("paper").energy_joules(-1), "bits"),
        (lambda: link("paper").energy_joules(math.nan), "bits"),
        (lambda: LoRaLink(spreading_factor=13, transmit_watts=1), "spreading_factor"),
        (lambda: LoRaLink(spreading_factor=7, transmit_watts=1, payload_bytes=250), "255"),
        (lambda: path_gain(0.001, frequency_hz=1e6), "more power would arrive"),
        (lambda: BitLink(rate_bits_per_second=1), "no radio is free"),
        (lambda: link("nb-iot").receive_joules(8), "receive_joules_per_bit"),
        (lambda: link("paper").shared_by(0), "agents"),
    ],
)
def test_wrong_settings_say_what_is_wrong(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_changed_presets_say_so_in_their_name():
    assert link("paper", gain=0.5).name == "paper (gain=0.5)"
    assert isinstance(link("paper"), ShannonLink)


@pytest.mark.parametrize("name", LINKS)
def test_every_preset_has_a_source_and_costs_something(name):
    preset = link(name)
    assert preset.name == name
    assert re.search(r"\d", preset.source), "the source must say what and when"
    one, two = preset.energy_joules(56_352), preset.energy_joules(2 * 56_352)
    assert 0 < one < two
    assert preset.seconds(56_352) > 0


def test_lte_and_wifi_are_the_published_power_model():
    # Huang et al. 2012: watts = alpha * Mbit/s + beta. Sending 6 Mbit in one second costs that power for one second.
    lte, wifi = link("lte", message_joules=0.0), link("wifi", message_joules=0.0)
    assert lte.energy_joules(6_000_000) == pytest.approx((438.39 * 6 + 1288.04) / 1000)
    assert lte.receive_joules(13_000_000) == pytest.approx((51.97 * 13 + 1288.04) / 1000)
    assert wifi.energy_joules(6_000_000) == pytest.approx((283.17 * 6 + 132.86) / 1000)
    assert link("lte").energy_joules(8) == pytest.approx(12.76, abs=0.01)


def test_lora_presets_cost_what_the_chip_draws_on_air():
    # 51 bytes at SF12, 125 kHz, 4/5: 2.793 s on air (28 symbols at a time), 29 mA at 3.3 V.
    slow = link("lora-sf12")
    assert slow.packet_seconds(51) == pytest.approx((12.25 + 8 + 65) * 4096 / 125_000)
    assert slow.energy_joules(8 * 51) == pytest.approx(0.029 * 3.3 * slow.packet_seconds(51))
    assert link("lora-sf7").energy_joules(8 * 51) < slow.energy_joules(8 * 51) / 20
