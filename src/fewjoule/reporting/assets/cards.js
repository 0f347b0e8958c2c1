// The three answers: the same rules and words as reporting/cards.py.
const HALVES = Math.log10(2);
const TITLES = { cheapest: "Cheapest sensible", value: "Best value", quality: "Best quality" };
const least = (methods, ...keys) =>
  methods.reduce((best, m) => {
    if (!best) return m;
    for (const key of keys) if (key(m) !== key(best)) return key(m) < key(best) ? m : best;
    return best;
  }, null);
const byJoules = (m) => m.joules;
const byError = (m) => m.error;
const byName = (m) => m.name;
const worth = (m) => Math.log10(m.error) + HALVES * Math.log10(m.joules);

function tie(one, other) {
  return [one.low, one.high, other.low, other.high].every((end) => end !== null) && one.low <= other.high && other.low <= one.high;
}
function sensible(methods, budget) {
  if (!methods.length) return [];
  const start = methods.find((m) => m.random) ?? least(methods, (m) => -m.error, byName);
  const half = Math.sqrt(start.error * Math.min(...methods.map(byError)));
  const good = methods.filter((m) => m !== start && m.error <= half && !tie(m, start) && m.joules <= budget);
  const controls = methods.filter((m) => m.control);
  const learned = good.filter((m) => !m.control && controls.every((c) => m.error < c.error));
  return learned.length ? learned : good.filter((m) => m.control);
}
function answers(methods, budget) {
  const fitting = methods.filter((m) => m.joules <= budget);
  const fits = sensible(methods, budget);
  const alike = [...fits, ...fitting.filter((m) => m.control && !fits.includes(m))];
  const asCheap = (chosen) =>
    chosen ? alike.filter((m) => m !== chosen && tie(m, chosen) && m.joules <= 1.1 * chosen.joules) : [];
  const cheapest = least(fits, byJoules, byError, byName);
  const value = least(fits.filter((m) => m.joules > 0), worth, byJoules, byName) ?? cheapest;
  const lowest = least(fitting, byError, byJoules, byName);
  return {
    cheapest: { chosen: cheapest, ties: asCheap(cheapest) },
    value: { chosen: value, ties: asCheap(value) },
    quality: { chosen: lowest, ties: fitting.filter((m) => m !== lowest && tie(m, lowest)) },
  };
}
function frontier(methods) {
  let best = Infinity;
  return [...methods]
    .sort((a, b) => a.joules - b.joules || a.error - b.error || (a.name < b.name ? -1 : 1))
    .filter((m) => m.error < best && ((best = m.error), true))
    .filter((m) => !m.control);
}

// --- words
const qualityNumber = (error) => (page.metric === "loss" ? digits(error) : `${(100 * (1 - error)).toFixed(1)} %`);
const qualityWords = (error) => `${page.metric} ${qualityNumber(error)}`;
function listing(names) {
  return names.length === 1 ? names[0] : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}
function noteWords({ chosen, ties }) {
  const ends = page.metric === "loss" ? [chosen.low, chosen.high] : [chosen.high, chosen.low];
  const interval = chosen.low === null ? "too few seeds for an interval" : `95 % interval ${ends.map(qualityNumber).join(" to ")}`;
  const said = [...(chosen.control ? ["a control: it learns from no agent"] : []), interval];
  const cheapest = least(ties, byJoules, byError, byName);
  const others = ties.length > 1 ? [`${ties.length - 1} ${ties.length === 2 ? "other" : "others"}`] : [];
  if (cheapest) said.push(`a tie with ${listing([`${cheapest.short} (${cheapest.control ? "control, " : ""}${si(cheapest.joules, "J")})`, ...others])}`);
  if (chosen.server) said.push(`${si(chosen.server, "J")} more at the server`);
  return said.join("; ");
}
function sentence(where, methods, budget) {
  const found = answers(methods, budget);
  let start = `On ${where},`;
  if (budget < Infinity) {
    const fits = methods.filter((m) => m.joules <= budget).length;
    start = `On ${where} with ${si(budget, "J")} to spend, ${fits} of ${methods.length} methods fit:`;
  }
  const value = found.value.chosen;
  if (!value) {
    const cheapest = answers(methods, Infinity).cheapest.chosen;
    const needs = cheapest ? `the cheapest sensible one needs ${si(cheapest.joules, "J")}` : "none is sensible";
    return budget === Infinity ? `${start} no method fits: ${needs}.` : `${start} ${needs}.`;
  }
  const said = `${start} ${value.label} gives ${qualityWords(value.error)} for ${si(value.joules, "J")}.`;
  const other = methods.find((m) => m.name === page.reference && m.name !== value.name);
  if (!other) return said;
  const times = value.joules && other.joules ? `, ${timesText(other.joules / value.joules)} times the energy` : "";
  return `${said} ${other.label} gives ${qualityWords(other.error)} for ${si(other.joules, "J")}${times}.`;
}
