// The page: its state is the link, its numbers and the budget; the address holds what differs from the run.
const FORMS = { // value of a place on a slider, and back
  plain: { value: (at) => at, at: (value) => value },
  power: { value: (at) => Number((10 ** at).toPrecision(2)), at: Math.log10 },
  decibel: { value: (at) => 10 ** (at / 10), at: (value) => 10 * Math.log10(value) },
  milliwatt: { value: (at) => 10 ** (at / 10) / 1000, at: (value) => 10 * Math.log10(1000 * value) },
  double: { value: (at, one) => one * 2 ** at, at: (value, one) => Math.log2(value / one) },
};
const MAY_BE_ZERO = ["active_watts", "message_joules"];
page.qualities = Object.fromEntries(page.contenders.map((m) => [m.name, qualityWords(m.error)]));
for (const name of Object.keys(page.scatter.looks)) page.qualities[name] ??= "a ceiling";

const state = { link: page.run, changes: {}, budget: Infinity };
const $ = (selector) => document.querySelector(selector);
const all = (selector) => [...document.querySelectorAll(selector)];
const form = $("#radio form");

function linkNow() {
  const preset = page.links[state.link];
  const link = { ...preset, ...state.changes };
  if ("spreading_factor" in state.changes) link.payload_bytes = page.payloads[link.spreading_factor];
  return link;
}
const isRun = () => state.link === page.run && !Object.keys(state.changes).length;
function controlsNow() {
  return page.controls[page.links[state.link].kind];
}
function valueText(control, value) {
  if (control.form === "decibel") return `${FORMS.decibel.at(value).toFixed(1)} dB`;
  if (control.form === "milliwatt") return `${FORMS.milliwatt.at(value).toFixed(1)} dBm`;
  return control.unit ? si(value, control.unit) : String(value);
}
function where() {
  const { title, kind } = page.links[state.link] ?? { title: state.link };
  if (!Object.keys(state.changes).length) return title;
  const link = linkNow();
  const said = controlsNow().filter((c) => c.key in state.changes || c.key === "spreading_factor");
  return `${kind === "lora" ? "LoRa" : title} (${said.map((c) => `${c.label} ${valueText(c, link[c.key])}`).join(", ")})`;
}

// --- everything that shows joules
function setText(node, words) {
  if (node && node.textContent !== words) node.textContent = words;
}
function refresh() {
  const link = isRun() ? null : linkNow();
  const spent = Object.fromEntries(page.methods.map((m) => [m.name, spentOn(m, link)]));
  const joules = Object.fromEntries(Object.entries(spent).map(([name, phases]) => [name, trainingJoules(phases)]));
  const contenders = page.contenders.map((m) => ({ ...m, joules: joules[m.name] }));
  const found = answers(contenders, state.budget);
  showCards(shownCards(contenders, state.budget));
  setText($("#answer"), sentence(where(), contenders, state.budget));
  setText($("#methods [data-part=where]"), where());
  const best = frontier(contenders).map((m) => m.name);
  showTable(spent, joules, best);
  showPresets();
  all("[data-part=dashed]").forEach((words) => { words.hidden = best.filter((name) => joules[name] > 0).length < 2; });
  all("svg[data-chart=quality]").forEach((svg) => {
    drawScatter(svg, joules, contenders, state.budget);
    const points = Object.keys(page.scatter.looks).map((n) => `${page.labels[n]}: ${page.qualities[n]} for ${si(joules[n], "J")}`);
    svg.querySelector("title").textContent = `${page.metric} against joules on ${where()}. ${points.join("; ")}`;
  });
  all("svg[data-chart=energy]").forEach((svg) => drawShares(svg, spent));
  if (link && $("#air")) setText($("#air"), LINKS[link.kind](link).words + (link.receives ? "; receiving counts too" : "; receiving is not charged"));
  else setText($("#air"), "");
  if ($("#reset")) $("#reset").hidden = isRun() && state.budget === Infinity;
  if (page.unseen) follow(found);
  announce(found);
}
function showCards(shown) {
  const box = $(".cards");
  while (box.children.length > shown.length) box.lastElementChild.remove();
  while (box.children.length < shown.length) box.append(box.firstElementChild.cloneNode(true));
  shown.forEach((each, i) => {
    const card = box.children[i];
    const { chosen } = each.answer;
    card.dataset.card = each.keys.join(" ");
    card.querySelector(".swatch").style.background = page.swatches[chosen.name];
    const words = { title: each.title, label: chosen.label, quality: qualityWords(chosen.error), joules: si(chosen.joules, "J"), sent: chosen.sent, note: noteWords(each) };
    for (const [part, text] of Object.entries(words)) setText(card.querySelector(`[data-part=${part}]`), text);
  });
}
function showPresets() {
  const within = state.budget < Infinity ? ` for at most ${si(state.budget, "J")}` : "";
  setText($(".radios [data-part=within]"), within);
  for (const row of all(".radios [data-link]")) {
    const on = page.methods.map((m) => [m.name, trainingJoules(spentOn(m, page.links[row.dataset.link]))]);
    const joules = Object.fromEntries(on);
    const { chosen } = answers(page.contenders.map((m) => ({ ...m, joules: joules[m.name] })), state.budget).value;
    setText(row.querySelector("[data-part=label]"), chosen ? chosen.short : "nothing fits");
    setText(row.querySelector("[data-part=joules]"), chosen ? si(chosen.joules, "J") : "");
  }
}
function showTable(spent, joules, best) {
  for (const cell of all("[data-method][data-part]")) {
    const { method, part } = cell.dataset;
    const phases = spent[method];
    if (part === "row") {
      cell.classList.toggle("best", best.includes(method));
      cell.classList.toggle("out", joules[method] > state.budget);
    } else if (part === "star") setText(cell, best.includes(method) ? "\u00a0★" : "");
    else if (part === "total") setText(cell, si(joules[method], "J"));
    else if (part === "with-server") setText(cell, si(joules[method] + (phases.server?.joules ?? 0), "J"));
    else if (part.startsWith("seconds-")) {
      const seconds = phases[part.slice(8)]?.seconds ?? null;
      setText(cell, seconds === null ? "–" : secondsText(seconds));
    } else setText(cell, phases[part] ? si(phases[part].joules, "J") : "–");
  }
}
let speaking, spokeOnce = false;
function announce({ value }) {
  clearTimeout(speaking);
  if (!spokeOnce) return void (spokeOnce = true); // nothing to say when the page opens
  const words = value.chosen ? `Best value: ${value.chosen.label}, ${si(value.chosen.joules, "J")}` : "No sensible method fits";
  speaking = setTimeout(() => setText($("#said"), words), 700);
}

// --- your radio
function buildSliders() {
  const link = linkNow();
  $("#sliders").replaceChildren(...controlsNow().map((control) => {
    const [low, high, step] = control.ends;
    const box = document.createElement("div");
    box.className = "slider";
    box.innerHTML = `<label><span></span><output></output></label><input type="range">`;
    const [label, input, output] = ["label", "input", "output"].map((name) => box.querySelector(name));
    input.id = label.htmlFor = control.key;
    label.firstChild.textContent = control.label;
    Object.assign(input, { min: low, max: high, step });
    const show = (value) => {
      output.textContent = valueText(control, value);
      input.setAttribute("aria-valuetext", output.textContent);
    };
    const value = link[control.key];
    input.value = value > 0 ? FORMS[control.form].at(value, control.one) : low;
    show(value);
    input.addEventListener("input", () => {
      const at = Number(input.value);
      const zero = at === low && MAY_BE_ZERO.includes(control.key);
      state.changes[control.key] = zero ? 0 : FORMS[control.form].value(at, control.one);
      show(state.changes[control.key]);
      changed();
    });
    return box;
  }));
}
function changed() {
  const words = new URLSearchParams();
  if (!isRun()) words.set("link", state.link);
  for (const [key, value] of Object.entries(state.changes)) words.set(key, Number(value.toPrecision(6)));
  if (state.budget < Infinity) words.set("budget", state.budget);
  history.replaceState(null, "", words.size ? `#${words}` : location.pathname + location.search);
  refresh();
}
function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  const link = words.get("link");
  state.link = link in page.links ? link : page.run;
  state.changes = {};
  if (state.link in page.links)
    for (const { key } of controlsNow()) {
      const value = Number(words.get(key));
      const fine = key === "spreading_factor" ? value in page.payloads : Number.isFinite(value) && value >= (MAY_BE_ZERO.includes(key) ? 0 : 1e-12);
      if (words.has(key) && words.get(key) !== "" && fine) state.changes[key] = value;
    }
  const budget = Number(words.get("budget"));
  state.budget = budget > 0 && Number.isFinite(budget) ? budget : Infinity;
}
function showState() {
  $("#link").value = state.link;
  $("#budget").value = state.budget < Infinity ? state.budget : "";
  if (state.link in page.links) buildSliders();
  refresh();
}
if (form) {
  const menu = $("#link");
  for (const [name, link] of Object.entries(page.links)) menu.add(new Option(link.title + (name === page.run ? " – this run" : ""), name));
  if (!(page.run in page.links)) menu.add(new Option(`${page.run} – this run`, page.run), 0);
  menu.addEventListener("change", () => {
    state.link = menu.value;
    state.changes = {};
    $("#sliders").replaceChildren();
    if (state.link in page.links) buildSliders();
    changed();
  });
  $("#budget").addEventListener("input", () => {
    const value = Number($("#budget").value);
    state.budget = value > 0 ? value : Infinity;
    changed();
  });
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    Object.assign(state, { link: page.run, changes: {}, budget: Infinity });
    showState();
    changed();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", () => { readAddress(); showState(); });
}

// --- what it does: the first figure follows the best value, the last is the reader's choice
const looks = all("[data-look]");
const chosen = [...page.looked];
function showLooks() {
  const task = Number($("#task").value) - 1;
  looks.forEach((figure, i) => {
    (page.unseen.kind === "curves" ? drawCurves : drawClasses)(figure, chosen[i], task);
    setText(figure.querySelector("[data-part=label]"), page.labels[chosen[i]]);
    setText(figure.querySelector("[data-part=score]"), scoreOf(chosen[i], task).at(-1) + (page.unseen.steps.at(-1) === 1 ? " step" : " steps"));
  });
  setText($("#task-value"), `${task + 1} of ${page.unseen.tasks}`);
}
function follow({ value }) {
  const name = value.chosen?.name;
  if (name in page.unseen.said && name !== chosen[0]) {
    chosen[0] = name;
    showLooks();
  }
}
if (page.unseen) {
  const other = $("#other");
  for (const name of Object.keys(page.unseen.said)) other.add(new Option(page.labels[name], name));
  other.value = chosen.at(-1);
  other.addEventListener("change", () => { chosen[chosen.length - 1] = other.value; showLooks(); });
  $("#task").addEventListener("input", showLooks);
  showLooks();
}

all(".controls").forEach((box) => { box.hidden = false; });
if (form) {
  $("#fine").open = innerWidth >= 700; // on a phone the numbers are folded away
  readAddress();
  showState();
}
document.documentElement.dataset.ready = "yes";
