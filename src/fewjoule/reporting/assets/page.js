// Draws the charts and recomputes radio energy for another link. All numbers come from the page's own data.
const page = JSON.parse(document.getElementById("data").textContent);
const PREFIXES = { "-12": "p", "-9": "n", "-6": "µ", "-3": "m", 0: "", 3: "k", 6: "M", 9: "G", 12: "T" };

// --- numbers as text: the same rules as wording.py
function digits(value) {
  const size = Math.abs(value);
  return size >= 1e-3 && size < 1000 ? value.toPrecision(3) : String(Number(value.toPrecision(3)));
}
function si(value, unit) {
  if (value === 0) return `0 ${unit}`;
  const rounded = Number(value.toExponential(2));
  let power = 3 * Math.floor(Math.log10(Math.abs(rounded)) / 3 + 1e-12);
  power = Math.min(Math.max(power, -12), 12);
  return `${digits(rounded / 10 ** power)} ${PREFIXES[power]}${unit}`;
}
function secondsText(value) {
  if (value < 60) return si(value, "s");
  return value < 3600 ? `${digits(value / 60)} min` : `${digits(value / 3600)} h`;
}

// --- datasets arrive as columns, which are smaller; charts want rows
function rowsOf(table) {
  return table.rows.map((cells) => {
    const row = {};
    cells.forEach((cell, i) => { if (cell !== null) row[table.columns[i]] = cell; });
    return row;
  });
}
const data = {};
for (const [name, table] of Object.entries(page.datasets)) data[name] = rowsOf(table);
// Vega marks the rows it is given as its own, and takes a copy that carries the mark for the old row; a clone carries none
const rowsFor = (name) => structuredClone(data[name]);

// --- the link (Shannon): R = B log2(1 + g P / (N0 B)), joules per bit = (P / efficiency + circuit) / R
// Another kind of link has no sliders, so that nothing ever moves.
const recorded = page.link;
const fields = ["bandwidth_hz", "power_watts", "noise_watts_per_hz", "bits_per_weight"];
const start = Object.fromEntries(fields.map((field) => [field, recorded[field]]));
let now = { ...start };
let moved = false;

function snr(link) {
  return (recorded.gain * link.power_watts) / (link.noise_watts_per_hz * link.bandwidth_hz);
}
function rate(link) {
  const fade = recorded.outage === null ? 1 : -Math.log1p(-recorded.outage);
  return (link.bandwidth_hz * Math.log1p(snr(link) * fade)) / Math.LN2;
}
function joulesPerBit(link) {
  const attempts = recorded.outage === null ? 1 : 1 / (1 - recorded.outage);
  return (attempts * (link.power_watts / recorded.amplifier_efficiency + recorded.circuit_watts)) / rate(link);
}
// what a phase costs on the present link; a method with a code of its own keeps its bits
function spentNow(method, spent) {
  if (!page.radio.includes(spent.phase) || !moved) return spent;
  const scale = method.ownBits ? 1 : now.bits_per_weight / start.bits_per_weight;
  const slower = (scale * rate(start)) / rate(now);
  const dearer = spent.phase === "uplink" ? (scale * joulesPerBit(now)) / joulesPerBit(start) : slower;
  return { ...spent, joules: spent.joules * dearer, seconds: spent.seconds === null ? null : spent.seconds * slower };
}
function total(method) {
  return method.spent.filter((s) => page.training.includes(s.phase)).reduce((sum, s) => sum + spentNow(method, s).joules, 0);
}
function kindsOf(method) {
  const found = method.spent.filter((s) => page.training.includes(s.phase) && spentNow(method, s).joules > 0).map((s) => s.kind);
  return ["measured", "modelled", "analytic"].filter((k) => found.includes(k)).join(" + ") || "nothing spent";
}
function frontierOf(methods) {
  let best = Infinity;
  return methods
    .filter((m) => m.contends)
    .map((m) => ({ m, joules: total(m) }))
    .sort((a, b) => a.joules - b.joules || a.m.error - b.m.error || (a.m.method < b.m.method ? -1 : 1))
    .filter((p) => p.m.error < best && ((best = p.m.error), true));
}

// --- charts
const PAPER_WIDTH = 680; // of a printed page with its margins, in CSS pixels
const views = {};
function layoutFor(width) {
  const names = Object.keys(page.layouts);
  const fitting = names.filter((name) => page.layouts[name] <= width + 8);
  return fitting.length ? fitting[fitting.length - 1] : names[0];
}
async function draw(box, width = box.clientWidth) {
  const name = box.dataset.chart;
  const layout = layoutFor(width);
  if (box.dataset.layout === layout) return;
  box.dataset.layout = layout;
  const spec = structuredClone(page.charts[name][layout]);
  for (const set of spec.data) if (page.uses[name].includes(set.name)) set.values = rowsFor(set.name);
  spec.description = describe(name);
  views[name]?.finalize();
  const target = document.createElement("div"); // vegaEmbed restyles its element; the box must keep its width
  box.replaceChildren(target);
  const options = { mode: "vega", renderer: "svg", actions: false, tooltip: tip };
  views[name] = (await vegaEmbed(target, spec, options)).view;
}
// the text that is read aloud instead of a chart: of the run, or of the link that the sliders are at
const LABELS = {
  quality: () => [...data.points, ...data.free].map((p) => `${p.label}: ${p.quality} for ${p.spent}`),
  energy: () => data.energy.map((row) => `${row.label}: ${row.phase} ${row.text}`),
  time: () => data.time.map((row) => `${row.label}: ${row.phase} ${row.text}`),
};
function describe(name) {
  const ofTheRun = Object.values(page.charts[name])[0].description;
  return moved && LABELS[name] ? `${ofTheRun.split(". ")[0]}. On ${linkText()}: ${LABELS[name]().join("; ")}` : ofTheRun;
}
const boxes = [...document.querySelectorAll("[data-chart]")];
async function drawAll() {
  for (const box of boxes) await draw(box);
  document.documentElement.dataset.ready = "yes";
}
function tip(handler, event, item, value) {
  const tip = document.getElementById("tip");
  tip.hidden = value === null || value === undefined || value === "";
  if (tip.hidden) return;
  tip.textContent = "";
  for (const [key, text] of typeof value === "object" ? Object.entries(value) : [["", value]]) {
    const line = document.createElement("div");
    line.textContent = key ? `${key}: ${text}` : String(text);
    tip.append(line);
  }
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - tip.offsetHeight - 8))}px`;
}

// --- what changes with the link: datasets, table, verdict
function show(chart) {
  if (!views[chart]) return;
  for (const set of page.uses[chart]) views[chart].data(set, rowsFor(set));
  views[chart].description(describe(chart)).run();
}
function refreshData() {
  const best = new Set(frontierOf(page.methods).map((p) => p.m.method));
  const by = Object.fromEntries(page.methods.map((m) => [m.method, m]));
  const points = [...data.points, ...data.free].map((p) => {
    const joules = total(by[p.method]);
    return { ...p, joules, best: best.has(p.method), spent: `${si(joules, "J")} (${kindsOf(by[p.method])})` };
  });
  data.points = points.filter((p) => p.joules > 0);
  data.free = points.filter((p) => !(p.joules > 0));
  data.frontier = data.points.filter((p) => p.best).sort((a, b) => a.joules - b.joules).map(({ joules, error }) => ({ joules, error }));
  for (const [set, what, text] of [["energy", "joules", (v) => si(v, "J")], ["time", "seconds", secondsText]]) {
    data[set] = page.methods.flatMap((m) => m.spent.map((s) => ({ s: spentNow(m, s), m })))
      .filter(({ s }) => s[what] > 0)
      .map(({ s, m }) => ({ method: m.method, label: m.label, phase: s.phase, kind: what === "joules" ? s.kind : s.seconds_kind, value: s[what], text: text(s[what]), source: s.sources.join("; ") }));
  }
  Object.keys(LABELS).forEach(show);
}
const runsLink = document.querySelector("[data-part=link-now]").textContent;
function linkText() {
  return `another link (${fields.map((field) => valueText(field, now[field])).join(", ")} per weight)`;
}
function refreshTable() {
  document.querySelector("[data-part=link-now]").textContent = moved ? linkText() : runsLink;
  const best = new Set(frontierOf(page.methods).map((p) => p.m.method));
  for (const m of page.methods) {
    const cells = document.querySelectorAll(`[data-method="${CSS.escape(m.method)}"]`);
    for (const cell of cells) {
      const part = cell.dataset.part;
      if (part === "row") cell.classList.toggle("best", best.has(m.method));
      else if (part === "star") cell.textContent = best.has(m.method) ? "\u00a0★" : "";
      else if (part === "total") cell.textContent = si(total(m), "J");
      else if (part === "total-with-server") {
        const server = m.spent.filter((s) => s.phase === "server").reduce((sum, s) => sum + s.joules, 0);
        cell.textContent = si(total(m) + server, "J");
      }
      else if (part) {
        const [phase, kind] = part.split("/");
        const spent = m.spent.find((s) => s.phase === phase && s.kind === kind);
        if (spent) cell.textContent = si(spentNow(m, spent).joules, "J");
      }
    }
  }
}
function refreshVerdict() {
  const box = document.getElementById("verdict");
  const target = document.getElementById("target");
  if (!box || !target) return;
  const goal = page.methods.find((m) => m.method === target.value);
  const good = page.methods.filter((m) => m.contends && m.error <= goal.error).map((m) => ({ m, joules: total(m) }));
  good.sort((a, b) => a.joules - b.joules || a.m.error - b.m.error);
  const win = good[0];
  box.querySelector("[data-part=air]").textContent = recorded.isShannon
    ? `SNR ${digits(snr(now))} (${digits(10 * Math.log10(snr(now)))} dB), ${si(rate(now), "bit/s")}, ${si(joulesPerBit(now), "J")} per bit sent (analytic). `
    : "";
  const same = win.m === goal;
  box.querySelector("[data-part=winner]").textContent = win.m.label;
  box.querySelector("[data-part=because]").textContent =
    ` wins: ${page.metric} ${win.m.quality} for ${si(win.joules, "J")} (${kindsOf(win.m)})` +
    (same ? "; nothing cheaper is as good." : `, where ${goal.label} needs ${si(total(goal), "J")} for ${goal.quality}.`);
  box.querySelector("[data-part=frontier]").textContent =
    frontierOf(page.methods).map((p) => `${p.m.label} (${p.m.quality}, ${si(p.joules, "J")})`).join(" → ");
}
function refresh() { refreshData(); refreshTable(); refreshVerdict(); }

// --- sliders
const units = { bandwidth_hz: "Hz", power_watts: "W", noise_watts_per_hz: "W/Hz" };
function valueText(field, value) {
  if (field === "bits_per_weight") return value === 1 ? "1 bit" : `${value} bits`;
  return field === "noise_watts_per_hz" ? `${Number(value.toPrecision(2)).toExponential()} W/Hz` : si(value, units[field]);
}
function showValue(input) {
  const field = input.dataset.field;
  const text = valueText(field, now[field]);
  document.getElementById(`${input.id}-value`).textContent = text;
  input.setAttribute("aria-valuetext", text);
}
const sliders = [...document.querySelectorAll("input[data-field]")];
function place(input) {
  const field = input.dataset.field;
  input.value = field === "bits_per_weight" ? now[field] : Math.log10(now[field]);
  showValue(input);
}
for (const input of sliders) {
  place(input);
  input.addEventListener("input", () => {
    const field = input.dataset.field;
    now[field] = field === "bits_per_weight" ? Number(input.value) : Number((10 ** Number(input.value)).toPrecision(2));
    moved = true;
    showValue(input);
    refresh();
  });
}
document.getElementById("reset")?.addEventListener("click", () => {
  now = { ...start };
  moved = false;
  sliders.forEach(place);
  refresh();
});
document.getElementById("target")?.addEventListener("change", refreshVerdict);

refreshVerdict();
drawAll();
let waiting;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 150); });
addEventListener("beforeprint", () => boxes.forEach((box) => draw(box, PAPER_WIDTH)));
addEventListener("afterprint", drawAll);
