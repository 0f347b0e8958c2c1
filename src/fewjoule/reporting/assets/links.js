// What a message costs on a link: the same formulas as energy/links.py. All in seconds, joules and bits.
const LINKS = {
  // R = B log2(1 + SNR), with fading at the rate that the channel carries with probability 1 - outage
  shannon(link) {
    const fade = link.outage === null ? 1 : -Math.log1p(-link.outage);
    const attempts = link.outage === null ? 1 : 1 / (1 - link.outage);
    const rate = (link.bandwidth_hz * Math.log1p(link.snr * fade)) / Math.LN2;
    const seconds = (bits) => (attempts * bits) / rate;
    return {
      up: { seconds, joules: (bits) => (link.power_watts / link.amplifier_efficiency + link.circuit_watts) * seconds(bits) },
      down: { seconds, joules: (bits) => link.receive_watts * seconds(bits) },
      words: `${si(rate, "bit/s")}`,
    };
  },
  bits(link) {
    const way = (rate, perBit) => ({
      seconds: (bits) => bits / rate,
      joules: (bits) => bits * perBit + (link.active_watts * bits) / rate + (bits ? link.message_joules : 0),
    });
    return {
      up: way(link.rate_bits_per_second, link.joules_per_bit),
      down: way(link.receive_rate_bits_per_second, link.receive_joules_per_bit),
      words: link.message_joules ? `${si(link.message_joules, "J")} to wake for each message` : si(link.rate_bits_per_second, "bit/s"),
    };
  },
  // time on air by the formula of the SX1276 data sheet
  lora(link) {
    const symbol = 2 ** link.spreading_factor / link.bandwidth_hz;
    const slow = symbol > 0.016 ? 1 : 0;
    const packet = (payload) => {
      const bits = 8 * (payload + link.overhead_bytes) - 4 * link.spreading_factor + 28 + 16;
      const blocks = Math.ceil(bits / (4 * (link.spreading_factor - 2 * slow)));
      return (link.preamble_symbols + 4.25 + 8 + Math.max(blocks * (link.coding_rate + 4), 0)) * symbol;
    };
    const air = (bits) => {
      const size = Math.ceil(bits / 8);
      const rest = size % link.payload_bytes;
      return Math.floor(size / link.payload_bytes) * packet(link.payload_bytes) + (rest ? packet(rest) : 0);
    };
    const seconds = (bits) => air(bits) / link.duty_cycle;
    return {
      up: { seconds, joules: (bits) => link.transmit_watts * air(bits) },
      down: { seconds, joules: (bits) => link.receive_watts * air(bits) },
      words: `packets of ${link.payload_bytes} bytes, ${si(packet(link.payload_bytes), "s")} on air`,
    };
  },
};
const RADIO = { uplink: "up", downlink: "down" };

// what a method spends by phase on a link (null: as the run recorded it), as {joules, seconds}
function spentOn(method, link) {
  const found = {};
  for (const { phase, joules, seconds } of method.spent) {
    if (link && phase in RADIO) continue;
    const sum = (found[phase] ??= { joules: 0, seconds: null });
    sum.joules += joules;
    if (seconds !== null) sum.seconds = (sum.seconds ?? 0) + seconds;
  }
  if (!link) return found;
  const model = LINKS[link.kind](link);
  for (const [phase, way] of Object.entries(RADIO)) {
    const sent = method.messages[phase];
    if (!sent || !sent.sizes.length || (way === "down" && !link.receives)) continue;
    const sum = (pairs, price) => pairs.reduce((all, [bits, count]) => all + count * price(bits), 0);
    found[phase] = { joules: sum(sent.sizes, model[way].joules), seconds: sum(sent.longest, model[way].seconds) };
  }
  return found;
}
function trainingJoules(spent) {
  return page.training.reduce((sum, phase) => sum + (spent[phase]?.joules ?? 0), 0);
}
