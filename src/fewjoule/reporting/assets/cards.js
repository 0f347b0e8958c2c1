// The three answers: the same rules and words as reporting/cards.py.
const HALVES = Math.log10(2);
const TITLES = { cheapest: "Cheapest sensible", value: "Best value", quality: "Best quality" };
const NOT_SENSIBLE = "no method is clearly better than a random start";
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
function titleOf(keys) {
  const [first, ...others] = keys.map((key) => TITLES[key]);
  return listing([first, ...others.map((title) => title[0].toLowerCase() + title.slice(1))]);
}
function shownCards(methods, budget) {
  const found = answers(methods, budget);
  const keys = Object.keys(TITLES);
  if (found.cheapest.chosen) {
    const byMethod = new Map();
    for (const key of keys.filter((each) => found[each].chosen)) {
      const { name } = found[key].chosen;
      byMethod.set(name, [...(byMethod.get(name) ?? []), key]);
    }
    return [...byMethod.values()].map((own) => ({ keys: own, title: titleOf(own), answer: found[own.at(-1)], remark: "" }));
  }
  const everything = answers(methods, Infinity);
  if (everything.cheapest.chosen)
    return [{ keys, title: `No sensible method fits ${si(budget, "J")}`, answer: everything.cheapest, remark: "the cheapest sensible method" }];
  if (!everything.quality.chosen) return [];
  if (methods.length === 1) return [{ keys, title: "The only method", answer: everything.quality, remark: "" }];
  return [{ keys, title: TITLES.quality, answer: everything.quality, remark: NOT_SENSIBLE }];
}
function noteWords({ answer: { chosen, ties }, remark }) {
  const ends = page.metric === "loss" ? [chosen.low, chosen.high] : [chosen.high, chosen.low];
  const interval = chosen.low === null ? "too few seeds for an interval" : `95 % interval ${ends.map(qualityNumber).join(" to ")}`;
  const said = [remark, chosen.control ? "a control: it learns from no agent" : "", interval];
  const cheapest = least(ties, byJoules, byError, byName);
  const others = ties.length > 1 ? [`${ties.length - 1} ${ties.length === 2 ? "other" : "others"}`] : [];
  if (cheapest) said.push(`a tie with ${listing([`${cheapest.short} (${cheapest.control ? "control, " : ""}${si(cheapest.joules, "J")})`, ...others])}`);
  if (chosen.server) said.push(`${si(chosen.server, "J")} more at the server`);
  return said.filter((part) => part).join("; ");
}
function sentence(where, methods, budget) {
  const fitting = methods.filter((m) => m.joules <= budget);
  let start = `On ${where}, `;
  if (budget < Infinity) start += `${fitting.length} of ${methods.length} methods cost at most ${si(budget, "J")}. `;
  let { chosen } = answers(methods, budget).value;
  if (!chosen) {
    const needed = answers(methods, Infinity).cheapest.chosen;
    if (needed) return `${start}The cheapest sensible one, ${needed.label}, costs ${si(needed.joules, "J")}.`;
    if (methods.length !== 1) return `On ${where}, ${NOT_SENSIBLE}.`;
    [chosen] = methods;
    start = `On ${where}, `;
  }
  const said = `${start}${chosen.label} gives ${qualityWords(chosen.error)} for ${si(chosen.joules, "J")}.`;
  const other = fitting.find((m) => m.name === page.reference && m.name !== chosen.name);
  if (!other) return said;
  const times = chosen.joules && other.joules ? `, ${timesText(other.joules / chosen.joules)} times the energy` : "";
  return `${said} ${other.label} gives ${qualityWords(other.error)} for ${si(other.joules, "J")}${times}.`;
}
