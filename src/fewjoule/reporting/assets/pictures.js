// The pictures that follow the link or the chosen task: the same rules as reporting/svg.py, scatter.py, unseen.py.
const SVG = "http://www.w3.org/2000/svg";
function element(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
const tenth = (value) => Number(value.toFixed(1));
function textAt(x, y, words, attributes = {}) {
  return element("text", { x: tenth(x), y: tenth(y), "font-size": 11, fill: "var(--ink)", ...attributes }, words);
}
function logScale(values, start, end) {
  const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [1, 1];
  const factor = high > low ? Math.max((high / low) ** 0.05, 1.02) : 2;
  const [from, to] = [Math.log(low / factor), Math.log(high * factor)];
  const scale = (value) => start + ((Math.log(value) - from) / (to - from)) * (end - start);
  return Object.assign(scale, { low: low / factor, high: high * factor });
}
function logTicks(low, high) {
  const decades = Math.log10(high / low);
  const leads = decades < 0.9 ? [1, 2, 3, 4, 5, 6, 7, 8, 9] : decades < 2.5 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / 7));
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += every)
    for (const lead of leads) found.push(Number(`${lead}e${power}`));
  return found.filter((value) => low * (1 - 1e-9) <= value && value <= high * (1 + 1e-9));
}
function joulesTick(value) {
  const power = Math.min(Math.max(3 * Math.floor(Math.log10(value) / 3 + 1e-9), -12), 12);
  return `${Number((value / 10 ** power).toPrecision(3))} ${PREFIXES[power]}J`;
}
function roomOf(label) {
  const [narrow, broad] = [" ,.:;'()-fijlrtI", "MWmw"];
  return [...label].reduce((sum, c) => sum + 7.2 * (narrow.includes(c) ? 0.7 : broad.includes(c) ? 1.4 : 1), 0);
}
function placed(points, left, right, top, bottom) {
  const LINE = 13;
  const taken = points.map(({ x, y }) => [x - 6, y - 6, x + 6, y + 6]);
  const order = [...points].sort((a, b) => a.y - b.y || a.x - b.x || (a.label < b.label ? -1 : 1));
  for (const point of order.filter((p) => p.label)) {
    const wide = roomOf(point.label);
    const sides = point.x + 10 + wide <= right ? [[point.x + 10, point.x + 10, point.x + 10 + wide]] : [];
    if (point.x - 10 - wide >= left || !sides.length) sides.push([point.x - 10, point.x - 10 - wide, point.x - 10]);
    point.at = null; // no room
    for (let step = 0; step < 2 * Math.ceil((bottom - top) / 3) && point.at === null; step++) {
      const at = point.y + Math.floor((step + 1) / 2) * (step % 2 ? 3 : -3);
      if (at - LINE / 2 < top || at + LINE / 2 > bottom) continue;
      const free = sides.find(([, from, to]) => taken.every((b) => to <= b[0] || b[2] <= from || at + LINE / 2 <= b[1] || b[3] <= at - LINE / 2));
      if (!free) continue;
      Object.assign(point, { at, near: free[0], left: free[0] < point.x });
      taken.push([free[1], at - LINE / 2, free[2], at + LINE / 2]);
    }
  }
}

// --- quality against joules
function drawScatter(svg, joules, contenders, budget) {
  const { width, height, at, labels } = page.scatter.layouts[svg.dataset.layout];
  const { left, top, right, bottom, free } = page.scatter.margins;
  const names = Object.keys(at);
  const anyFree = names.some((name) => !joules[name]);
  const x = logScale(names.map((n) => joules[n]).filter((j) => j > 0), left + (anyFree ? 2 * free : 0), width - right);
  const floor = height - bottom;
  const line = (attributes) => element("line", attributes);
  const soft = { fill: "var(--soft)" };
  const group = element("g", { class: "moving" });
  for (const value of logTicks(x.low, x.high)) {
    const px = tenth(x(value));
    group.append(line({ x1: px, x2: px, y1: top, y2: floor, stroke: "var(--line)" }));
    group.append(textAt(x(value), floor + 14, joulesTick(value), { ...soft, "text-anchor": "middle" }));
  }
  const title = "joules per run, all agents, without pretraining";
  group.append(textAt(width - right, floor + 30, title, { ...soft, "text-anchor": "end" }));
  if (anyFree) group.append(textAt(left + free, floor + 14, "0 J", { ...soft, "text-anchor": "middle" }));
  if (budget > x.low && budget < x.high) {
    const px = tenth(x(budget));
    group.append(line({ x1: px, x2: px, y1: top, y2: floor, stroke: "var(--accent)", "stroke-width": 2, class: "budget" }));
  }
  const points = names.map((name) => {
    const px = joules[name] ? x(joules[name]) : left + free;
    return { name, x: px, y: at[name][0], label: labels[name] };
  });
  const by = Object.fromEntries(points.map((p) => [p.name, p]));
  const best = frontier(contenders).map((m) => m.name);
  const stairs = best.map((name) => by[name]).filter((p) => joules[p.name] > 0);
  const corners = stairs.flatMap((p, i) => (i ? [[p.x, stairs[i - 1].y], [p.x, p.y]] : [[p.x, p.y]]));
  const dashed = { fill: "none", stroke: "var(--soft)", "stroke-width": 1.3, "stroke-dasharray": "5 4", class: "frontier" };
  if (corners.length) group.append(element("path", { d: `M${corners.map((c) => c.map(tenth)).join("L")}`, ...dashed }));
  const faded = (name) => (joules[name] > budget ? 0.25 : null);
  for (const p of points) {
    const [, low, high] = at[p.name];
    const bar = { stroke: page.scatter.looks[p.name][0], "stroke-width": 1.5, opacity: faded(p.name) ?? 0.5 };
    if (low !== null) group.append(line({ x1: tenth(p.x), x2: tenth(p.x), y1: low, y2: high, ...bar }));
  }
  for (const p of points) {
    const [fill, d] = page.scatter.looks[p.name];
    const words = `${page.labels[p.name]}: ${page.qualities[p.name]} for ${si(joules[p.name], "J")}`;
    const shape = element("path", { d, fill }, element("title", {}, words));
    const place = `translate(${p.x.toFixed(1)},${p.y.toFixed(1)})`;
    group.append(element("g", { class: "point", "data-method": p.name, transform: place, opacity: faded(p.name) }, shape));
  }
  placed(points, left, width - 2, top - 8, floor);
  for (const p of points.filter((each) => each.label && each.at !== null)) {
    const halo = { "paint-order": "stroke", stroke: "var(--ground)", "stroke-width": 5, "stroke-linejoin": "round" };
    const bold = best.includes(p.name) ? "bold" : null;
    const anchor = { "text-anchor": p.left ? "end" : "start", "font-weight": bold, "data-label": p.name, opacity: faded(p.name) };
    if (Math.abs(p.at - p.y) >= 5) {
      const ends = { x1: tenth(p.x), y1: tenth(p.y), x2: tenth(p.near + (p.left ? 2 : -2)), y2: tenth(p.at) };
      group.append(line({ ...ends, stroke: "var(--soft)", "stroke-width": 0.7, opacity: faded(p.name) }));
    }
    group.append(textAt(p.near, p.at + 4, p.label, { ...halo, ...anchor }));
  }
  svg.querySelector(".moving").replaceWith(group);
}

// --- shares of joules
function drawShares(svg, spent) {
  for (const [name, phases] of Object.entries(spent)) {
    const bars = [...svg.querySelectorAll(`rect[data-method="${CSS.escape(name)}"]`)];
    const whole = trainingJoules(phases);
    const room = svg.viewBox.baseVal.width - 66 - Number(bars[0].dataset.start ??= bars[0].getAttribute("x"));
    let start = Number(bars[0].dataset.start);
    for (const bar of bars) {
      const wide = whole ? (room * (phases[bar.dataset.bar]?.joules ?? 0)) / whole : 0;
      bar.setAttribute("x", tenth(start));
      bar.setAttribute("width", tenth(wide));
      start += wide;
    }
  }
}

// --- what the methods do on an unseen task
function drawCurves(figure, method, task) {
  const { frame, x, truth, samples, said } = page.unseen;
  const across = (v) => frame.left + ((v - frame.x[0]) / (frame.x[1] - frame.x[0])) * (frame.width - frame.left - frame.right);
  const floor = frame.height - frame.bottom;
  const down = (v) => floor + ((v - frame.y[0]) / (frame.y[1] - frame.y[0])) * (frame.top - floor);
  const path = (values) =>
    `M${values.map((v, i) => `${tenth(across(x[task][i]))},${tenth(Math.min(Math.max(down(v), -frame.height), 2 * frame.height))}`).join("L")}`;
  for (const curve of figure.querySelectorAll("path[data-curve]")) {
    const which = curve.dataset.curve;
    curve.setAttribute("d", path(which === "truth" ? truth[task] : said[method][Number(which)][task]));
  }
  const dots = samples[task].map(([a, b]) => element("circle", { cx: tenth(across(a)), cy: tenth(down(b)), r: 2.2, fill: "var(--ink)" }));
  figure.querySelector("g[data-curve=samples]").replaceChildren(...dots);
}
function drawClasses(figure, method, task) {
  const { pictures, truth, said } = page.unseen;
  figure.querySelectorAll(".query").forEach((query, i) => {
    const answer = said[method].at(-1)[task][i];
    const wrong = answer !== truth[task][i];
    query.classList.toggle("wrong", wrong);
    query.querySelector("img").src = pictures[task][i] || "data:,";
    query.querySelector("[data-part=said]").textContent = wrong ? `${answer} not ${truth[task][i]}` : String(answer);
  });
}
function scoreOf(method, task) {
  const { kind, steps, truth, said } = page.unseen;
  return steps.map((count, i) => {
    const now = said[method][i][task];
    const right = now.filter((v, k) => v === truth[task][k]).length;
    const loss = now.reduce((sum, v, k) => sum + (v - truth[task][k]) ** 2, 0) / now.length;
    return kind === "classes" ? `${right} of ${now.length} right after ${count}` : `loss ${loss < 1e6 ? digits(loss) : "very large"} after ${count}`;
  });
}
